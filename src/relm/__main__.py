"""`relm STEP ...`, and `python -m relm STEP ...`, the form in which Snakemake's rules call the steps."""

import sys


def main() -> int:
    """Run one command, and return the process's exit status; Ctrl-C ends it quietly, also while it is loaded."""
    try:
        try:
            from relm.cli import main as run
        except MemoryError:
            sys.exit("relm: memory ran out while the program was loaded; give it more, or end other programs, and run it again")
        return run()
    except KeyboardInterrupt:
        return 130  # as a shell reports a command that Ctrl-C has ended


if __name__ == "__main__":
    sys.exit(main())
