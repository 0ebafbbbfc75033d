"""`device.json`, next to `train.jsonl`: the counters of a device that compiles. A run's identity does not depend on it.

It has a line for each process that trained the phase, in order, because each process counts from 0.
"""

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from relm.artifact import write_json
from relm.errors import RelmError
from relm.json_shapes import read_shaped
from relm.recipes.run_folder import DEVICE_FIGURES, DEVICE_SHAPE
from relm.training.meter import Meter
from relm.training.phase_run import PhaseRun


@contextmanager
def device_figures(run: PhaseRun, meter: Meter) -> Iterator[None]:
    """Write this process's line of `device.json` at the end, also after an error."""
    try:
        yield
    finally:
        note_device_figures(run, meter.first_step, meter.step, run.device.figures())


def note_device_figures(run: PhaseRun, first_step: int, step: int, figures: Mapping[str, float]) -> None:
    """Write `device.json` with this process as its last line: the step it resumed after, its steps, and its counters so far.

    Every checkpoint does so, and a killed process leaves a line of the steps that count. Lines of processes that began at the
    same step or later are removed, because none of their steps was kept.
    """
    if not (run.writes and figures):
        return
    path = run.folder / DEVICE_FIGURES
    known: list[dict[str, Any]] = []
    if path.exists():
        with contextlib.suppress(RelmError):  # a damaged file of counters must not end training
            known = read_shaped(path, DEVICE_SHAPE)["processes"]
    others = [line for line in known if line["after_step"] < first_step]
    own = {"after_step": first_step, "steps": step - first_step, **figures}
    write_json(path, {"phase": run.phase, "processes": [*others, own]})
