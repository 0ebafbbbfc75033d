"""Show the progress of a long step: a bar on a terminal or, under Snakemake, a file that Snakemake's terminal shows.

Snakemake's main process sets `JOB_LOGS`. Then a step writes its output into its `--log`, and its progress next to that.
"""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from relm.formatting import format_bytes

JOB_LOGS = "RELM_JOB_LOGS"
"""The variable that is 1 if steps write their output into their logs."""
SECONDS = 1.0
"""Between two reports in a progress file."""


class _JobLog:
    """The log of this process's step, if its output goes there."""

    path: Path | None = None


def progress_file(log: Path) -> Path:
    """Return the progress file of a job with this log."""
    return log.with_name(f"{log.name}.progress")


def print_into_log(log: Path) -> None:
    """Append standard output and error of this process and its children to a log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)
    _JobLog.path = log


class ProgressBar(tqdm):  # type: ignore[type-arg]  # at run time it takes no argument
    """A tqdm bar; under Snakemake it writes share done, rate and remaining time into the job's progress file."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Start a bar with tqdm's arguments."""
        self._file = None if _JobLog.path is None else progress_file(_JobLog.path)
        if self._file is not None:
            options |= {"file": io.StringIO(), "disable": False, "mininterval": SECONDS}
        super().__init__(*arguments, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Draw the bar, or write the progress file."""
        if self._file is None:
            super().display(msg, pos)
            return
        facts = self.format_dict
        done, total = facts["n"], facts["total"]
        rate = facts["rate"] or ((done - facts["initial"]) / facts["elapsed"] if facts["elapsed"] else 0)
        report = {
            "share": done / total if total else None,
            "text": facts["postfix"] or format_rate(rate, facts["unit"]),
            "seconds_left": (total - done) / rate if total and rate else None,
        }
        partial = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        try:
            partial.write_text(json.dumps(report))
            partial.replace(self._file)
        except OSError:  # a full disk is the step's to report
            partial.unlink(missing_ok=True)


def format_rate(rate: float, unit: str) -> str:
    """Return a rate; the unit of bytes is B.

    >>> format_rate(13_884.2, " tokens"), format_rate(2_500_000, "B"), format_rate(0.5, "steps"), format_rate(0, "steps")
    ('13,884 tokens/s', '2.5 MB/s', '0.5 steps/s', '')
    """
    if not rate:
        return ""
    if unit == "B":
        return f"{format_bytes(int(rate))}/s"
    return f"{rate:,.0f} {unit.strip()}/s" if rate >= 10 else f"{rate:.2g} {unit.strip()}/s"
