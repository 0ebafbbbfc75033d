"""`python -m relm STEP ...`, the form in which Snakemake's rules call the steps."""

import sys

from relm.cli import main

if __name__ == "__main__":
    sys.exit(main())
