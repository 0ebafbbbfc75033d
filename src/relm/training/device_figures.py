"""What a device that compiles counted while a phase was trained, beside `train.jsonl`: no part of what a run means.

`device.json` has a line for each process that trained the phase, in order, since a count belongs to a process.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from relm.artifact import read_json, write_json
from relm.recipes.run_folder import DEVICE_FIGURES
from relm.training.meter import Meter
from relm.training.phase_run import PhaseRun


@contextmanager
def device_figures(run: PhaseRun, meter: Meter) -> Iterator[None]:
    """Write the line of this process at the end, however that comes."""
    try:
        yield
    finally:
        note_device_figures(run, meter)


def note_device_figures(run: PhaseRun, meter: Meter) -> None:
    """Write `device.json` with this process as its last line: from which step it went on, its steps, and its figures so far.

    With every checkpoint, so that a process that is killed leaves a line of the steps that count. Lines of others that began
    at the same step or later are taken away: nothing of theirs was gone on with.
    """
    figures = run.device.figures()
    if not (run.writes and figures):
        return
    path = run.folder / DEVICE_FIGURES
    known = read_json(path)["processes"] if path.exists() else []
    others = [line for line in known if line["after_step"] < meter.first_step]
    own = {"after_step": meter.first_step, "steps": meter.step - meter.first_step, **figures}
    write_json(path, {"phase": run.phase, "processes": [*others, own]})
