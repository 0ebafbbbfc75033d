"""Removal of what nothing needs any more from the work folder."""
