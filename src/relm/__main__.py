"""`python -m relm STEP ...`, the form in which Snakemake's rules call the steps."""

import sys

try:
    from relm.cli import main
except MemoryError:
    sys.exit("relm: memory ran out while the program was loaded; give it more, or end other programs, and run it again")
except KeyboardInterrupt:
    sys.exit(130)  # as a shell reports a command that Ctrl-C has ended

if __name__ == "__main__":
    sys.exit(main())
