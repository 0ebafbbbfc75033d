"""Examples in other programs' formats: token files that are imported, and masked examples that are exported."""
