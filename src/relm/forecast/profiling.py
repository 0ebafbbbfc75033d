"""The distribution of a training step's time: a trace of a few steps, and its most expensive operations."""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from relm.artifact import atomic_file
from relm.forecast.prepared_run import PreparedRun
from relm.models.losses import Term
from relm.training.input import Round
from relm.training.updates import take_step

# Operations that are listed.
LISTED = 12


def profile_steps(ready: PreparedRun, inputs: Iterator[Round], steps: int, trace: Path) -> list[str]:
    """Take steps under torch's profiler, and return lines on their operations; rank 0 writes the trace, in Chrome's format."""
    run, device = ready.run, ready.run.device

    def named(batch: Mapping[str, Tensor]) -> Mapping[str, Term]:
        with record_function("forward"):
            return ready.updates.forward(batch)

    device.synchronise()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities) as profiler:
        for number in range(1, steps + 1):
            with record_function(f"step {number}"):
                with record_function("input"):
                    given = next(inputs)
                take_step(run, ready.learner, named, given.steps[0])
        device.synchronise()
    if run.writes:
        with TemporaryDirectory(prefix="relm-trace-") as folder:
            profiler.export_chrome_trace(str(Path(folder) / "trace.json"))
            with open(Path(folder) / "trace.json", "rb") as source, atomic_file(trace) as file:
                shutil.copyfileobj(source, file)
    ready.learner.meter.read(run.describe_failure)
    where = f" (trace: {trace}, for chrome://tracing or ui.perfetto.dev)" if run.writes else ""
    return [f"profile of {steps} steps{where}; operations by exclusive time:", *_list_operations(profiler, steps)]


def _list_operations(profiler: profile, steps: int) -> Iterator[str]:
    """Yield the most expensive operations: a GPU's kernels, otherwise operations of the host."""
    averages = [each for each in profiler.key_averages() if not each.is_user_annotation]
    kernels = [each for each in averages if each.device_type.name != "CPU"]
    found = [(each.self_device_time_total if kernels else each.self_cpu_time_total, each) for each in kernels or averages]
    whole, shown = sum(time for time, _ in found), sorted(found, key=lambda pair: -pair[0])[:LISTED]
    width = max((len(each.key) for _, each in shown), default=0)
    for time, each in shown:
        cost = f"{time / 1e6 / steps:10.6f} s a step  {time / whole:6.1%}"
        yield f"  {each.key:{width}}  {cost}  {each.count / steps:8,.0f} times"
