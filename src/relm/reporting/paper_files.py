"""Names of the files of a paper's page, without what writing them imports."""

from pathlib import Path

PAPERS = Path("results/papers")
TABLE = "table.json"
FILES = ("index.html", "README.md", TABLE)
DIFFERENCES = "differences"
"""Key of the table of recipes with a control, in `table.json`; null without such recipes."""
