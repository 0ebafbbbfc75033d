"""What a device that compiles counted while a process trained, beside `train.jsonl`: no part of what a run means."""

from collections.abc import Iterator
from contextlib import contextmanager

from relm.artifact import write_json
from relm.training.meter import Meter
from relm.training.phase_run import PhaseRun
from relm.training.run_folder import DEVICE_FIGURES


@contextmanager
def device_figures(run: PhaseRun, meter: Meter) -> Iterator[None]:
    """Write `device.json` at the end, however that comes: the device's figures, transfers of a step on average as well."""
    try:
        yield
    finally:
        figures, steps = run.device.figures(), meter.step - meter.first_step
        if run.writes and figures:
            transfers = [name for name in figures if name.startswith("transfers_")] if steps else []
            a_step = {f"{name}_per_step": round(figures[name] / steps, 2) for name in transfers}
            write_json(run.folder / DEVICE_FIGURES, {"phase": run.phase, "steps": steps, **figures, **a_step})
