"""`device.json`, beside `train.jsonl`: the counters of a device that compiles. It is no part of a run's identity.

It has a line for each process that trained the phase, in order, since counters start anew with a process.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from relm.artifact import read_json, write_json
from relm.recipes.run_folder import DEVICE_FIGURES
from relm.training.meter import Meter
from relm.training.phase_run import PhaseRun


@contextmanager
def device_figures(run: PhaseRun, meter: Meter) -> Iterator[None]:
    """Write this process's line of `device.json` at the end, also after an error."""
    try:
        yield
    finally:
        note_device_figures(run, meter)


def note_device_figures(run: PhaseRun, meter: Meter) -> None:
    """Write `device.json` with this process as its last line: the step it resumed after, its steps, and its counters so far.

    This happens with every checkpoint, so that a killed process leaves a line of the steps that count. Lines of processes that
    began at the same step or later are removed: none of their steps was kept.
    """
    figures = run.device.figures()
    if not (run.writes and figures):
        return
    path = run.folder / DEVICE_FIGURES
    known = read_json(path)["processes"] if path.exists() else []
    others = [line for line in known if line["after_step"] < meter.first_step]
    own = {"after_step": meter.first_step, "steps": meter.step - meter.first_step, **figures}
    write_json(path, {"phase": run.phase, "processes": [*others, own]})
