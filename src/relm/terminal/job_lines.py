"""The line of a job: its number, name, share done, rate and remaining time."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relm.progress import progress_file
from relm.terminal.faults import read_last_words

# Wildcards that do not help a user to distinguish jobs.
UNNAMED = ("key", "fingerprint", "recipe")


@dataclass
class JobLine:
    """A running job."""

    number: str
    """Such as [ 6/11]."""
    name: str
    log: Path | None
    started: float = field(default_factory=time.monotonic)

    def describe_progress(self) -> str:
        """Return the line of a running job."""
        report = self._read_progress()
        left = report.get("seconds_left") or None
        parts = [
            f"{self.number} {self.name}",
            f"{100 * report['share']:.0f} %" if report.get("share") is not None else "",
            report.get("text", ""),
            self._format_elapsed() if left is None else f"{format_clock(left)} left",
        ]
        return "  ".join(part for part in parts if part)

    def describe_end(self, width: int | None = None) -> str:
        """Return the line of a finished job, with its step's sentence, cut to a width."""
        line = f"{self.number} {self.name}  done in {self._format_elapsed()}"
        words = self.last_words()
        line += f"  {' '.join(words.split())}" if words else ""
        return line if width is None or len(line) <= width else f"{line[: width - 1]}…"

    def describe_failure(self) -> str:
        """Return the line of a failed job."""
        line = f"{self.number} {self.name}  failed after {self._format_elapsed()}"
        return f"{line}; its log is {self.log}" if self.log is not None and self.log.exists() else line

    def describe_stop(self) -> str:
        """Return the line of a job that was stopped on request."""
        return f"{self.number} {self.name}  stopped after {self._format_elapsed()}"

    def last_words(self) -> str:
        """Return the last sentence in the job's log, without the step's name."""
        if self.log is None:
            return ""
        step, colon, sentence = read_last_words(self.log).removeprefix("relm ").partition(": ")
        return sentence if colon and " " not in step else step + colon + sentence

    def has_error(self) -> bool:
        """Return True if the last line of the job's log is an error."""
        return self.log is not None and read_last_words(self.log).startswith(("relm ", "an unexpected error"))

    def forget_progress(self) -> None:
        """Delete the job's progress file."""
        if self.log is not None:
            progress_file(self.log).unlink(missing_ok=True)

    def _read_progress(self) -> dict[str, Any]:
        try:
            return {} if self.log is None else dict(json.loads(progress_file(self.log).read_text()))
        except (OSError, ValueError, TypeError, RecursionError):
            return {}

    def _format_elapsed(self) -> str:
        return format_clock(time.monotonic() - self.started)


def name_job(rule: str, wildcards: Mapping[str, str], with_recipe: bool, seed: int | None = None) -> str:
    """Return a job's name for users: its step and what distinguishes it.

    >>> name_job("download_data", {"dataset": "wiki", "key": "0123456789ab", "shard": "00.bz2"}, False)
    'download 00.bz2'
    >>> name_job("evaluate", {"recipe": "tiny", "fingerprint": "0123456789ab", "of": "eval", "task": "held_out"}, True)
    'evaluate held_out of tiny'
    >>> name_job("pretrain", {"recipe": "tiny", "fingerprint": "0123456789ab", "phase": "main"}, False, seed=2)
    'pretrain main seed 2'
    """
    step = {"download_data": "download", "download_model": "download", "download_test": "download"}.get(rule, rule)
    unnamed = (*UNNAMED, "dataset") if "shard" in wildcards else UNNAMED
    details = [value for name, value in wildcards.items() if name not in unnamed and (name, value) != ("of", "eval")]
    details += [f"seed {seed}"] if seed is not None else []
    recipe = wildcards.get("recipe") if with_recipe else None
    return " ".join([step.replace("_", " "), *details, *(["of", recipe] if recipe else [])])


def format_clock(seconds: float) -> str:
    """Return a duration in the form of a clock.

    >>> format_clock(7), format_clock(201), format_clock(7440), format_clock(273_600)
    ('0:07', '3:21', '2:04:00', '3 d 4 h')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
