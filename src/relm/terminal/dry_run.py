"""Format a dry-run as a table: which jobs would run, and why."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from relm.formatting import format_table

# The first words of Snakemake's reasons -> what a user reads instead; "" if another job's line already says it.
REASONS = {
    "Missing output files": "not made yet",
    "Incomplete output files": "was interrupted",
    "Updated input files": "its input is newer",
    "Input files updated by another job": "",
    "Set of input files has changed since last execution": "its inputs are other files",
    "Params have changed since last execution": "its parameters changed",
    "Forced execution": "forced",
}
MOST_NAMED = 3
"""Jobs of one step that get a line each."""


@dataclass(frozen=True)
class PlannedJob:
    """A job that would run."""

    name: str
    reason: str
    """In Snakemake's words."""

    @property
    def step(self) -> str:
        """Return the first word of the name."""
        return self.name.partition(" ")[0]


def shorten_reason(reason: str) -> str:
    """Return Snakemake's reason in a few words.

    >>> shorten_reason("Missing output files: a.json, b.json; Input files updated by another job: c.json")
    'not made yet'
    >>> shorten_reason("Input files updated by another job: c.json")
    'its input is made again'
    """
    found = []
    for part in re.split(r"; (?=[A-Z])", reason):
        known = next((start for start in REASONS if part.startswith(start)), None)
        found.append(part if known is None else REASONS[known])
    return ", ".join(dict.fromkeys(word for word in found if word)) or "its input is made again"


def format_plan(jobs: Sequence[PlannedJob]) -> str:
    """Return a row for each job, or one row for many jobs of one step with the same reason."""
    if not jobs:
        return ""
    groups: dict[tuple[str, str], list[str]] = {}
    for job in jobs:
        groups.setdefault((job.step, shorten_reason(job.reason)), []).append(job.name)
    rows = []
    for (step, reason), names in groups.items():
        many = (
            f"{step}: {len(names)} jobs, from {names[0].removeprefix(step).strip()} to {names[-1].removeprefix(step).strip()}"
        )
        rows += [(name, reason) for name in names] if len(names) <= MOST_NAMED else [(many, reason)]
    total = f"{len(jobs)} {'job' if len(jobs) == 1 else 'jobs'} would run:"
    return "\n".join([total, *format_table(rows, "<<", indent="  ")])
