"""The checkpoint interval that costs the least time where hosts are lost without a warning. Imports no torch."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from relm.forecast.machine_figures import USUAL, PhaseWork, hours_at_peak
from relm.formatting import format_bytes, format_table
from relm.recipes.machine.machines import Machine
from relm.recipes.run import Run

BYTES_PER_SECOND = 1e9
"""The assumed speed at which a checkpoint is written; a rehearsal or a log shows the disk's own."""
HOURS_OF_PREEMPTIBLE = 24.0
"""The longest life of a preemptible host: https://cloud.google.com/compute/docs/instances/preemptible."""
HOURS_OF_GPU = 54 * 24 * 16_384 / 419
"""The mean time between failures of one H100: 419 in 54 days on 16,384 of them (Llama 3, arXiv 2407.21783, table 5)."""


class Saving(NamedTuple):
    """The work of a phase, and what it saves."""

    name: str
    work: PhaseWork
    checkpoint: int
    """Bytes of one checkpoint."""


def best_interval(write: float, between: float) -> float:
    """Return the seconds between checkpoints that cost least, if each takes `write` seconds: Young 1974, first order.

    >>> best_interval(write=2, between=3600)
    120.0
    """
    return math.sqrt(2 * write * between)


def lost_share(interval: float, write: float, between: float) -> float:
    """Return the share of the time that goes into checkpoints, and into steps that are taken again after a loss.

    >>> lost_share(120, write=2, between=3600)
    0.03333333333333333
    """
    return write / interval + interval / 2 / between


def interval_lines(savings: Sequence[Saving], run: Run, machine: Machine | None) -> Iterator[str]:
    """Yield a table of intervals on the run's machine; nothing if its peak is unknown."""
    rows = [["phase", "a loss every", "checkpoint_interval", "loses", "best", "loses"]]
    if machine is None:
        return
    for saving in savings:
        hours = hours_at_peak([saving.work], machine, run.float32_matmul_precision)
        if hours is None:
            return
        step, write = hours * 3600 / USUAL / saving.work.phase.steps, saving.checkpoint / BYTES_PER_SECOND
        losses = [HOURS_OF_PREEMPTIBLE / machine.host_count, HOURS_OF_GPU / machine.device_count]
        for between in losses if machine.device == "cuda" else losses[:1]:
            best = min(max(1, round(best_interval(write, between * 3600) / step)), saving.work.phase.steps)
            shares = [f"{lost_share(steps * step, write, between * 3600):.2%}" for steps in (run.checkpoint_interval, best)]
            rows.append([saving.name, f"{between:,.0f} h", f"{run.checkpoint_interval:,}", shares[0], f"{best:,}", shares[1]])
    if len(rows) > 1:
        size = " and ".join(dict.fromkeys(format_bytes(saving.checkpoint) for saving in savings))
        yield ""
        yield f"checkpoint interval in steps, by arithmetic at {USUAL:.0%} of peak; a checkpoint of {size} ASSUMED at 1 GB/s"
        yield from format_table(rows, "<" + ">" * (len(rows[0]) - 1), indent="  ")
