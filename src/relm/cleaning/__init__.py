"""Remove from the work folder what nothing needs any more."""
