"""The distribution of a training step's time: a trace of a few steps, its most expensive operations, and each part's share."""

import dataclasses
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

from relm.artifact import atomic_file
from relm.devices.contract import Device
from relm.models.losses import Term
from relm.training.input import Round
from relm.training.updates import Forward

# Operations that are listed.
LISTED = 12
STEP = "step "
# The prefixes of the names of a part's events. The backward pass is everything that autograd's engine evaluates, recomputed
# layers included.
PARTS = {
    "input": "input",
    "forward": "forward",
    "backward": "autograd::engine::evaluate_function",
    "optimizer": "Optimizer.",
}
REST = "rest"
"""The gradient's norm, seeding, copies to the device, and whatever else happens between the parts."""


class Operation(NamedTuple):
    """One kind of operation, in all traced steps together."""

    name: str
    seconds: float
    """Its own time, without the operations inside it."""
    calls: int


@dataclasses.dataclass(frozen=True)
class Profile:
    """A summary of a trace."""

    steps: int
    seconds: float
    """The duration of all traced steps."""
    parts: Mapping[str, float]
    """Seconds of each of `PARTS`, on the host, and of the rest."""
    operations: Sequence[Operation]
    """The most expensive first: kernels where there is a GPU, otherwise operations of the host."""
    trace: Path | None

    def lines(self) -> list[str]:
        """Return the lines that are printed."""
        where = f" (trace: {self.trace}, for chrome://tracing or ui.perfetto.dev)" if self.trace else ""
        total = sum(operation.seconds for operation in self.operations)
        shown = self.operations[:LISTED]
        width = max((len(operation.name) for operation in shown), default=0)
        return [
            f"profile of {self.steps} steps, {self.seconds / self.steps:.4g} s each under the profiler{where}",
            f"time of the host: {', '.join(f'{name} {share(part, self.seconds)}' for name, part in self.parts.items())}",
            f"operations by their own time, {len(shown)} of {len(self.operations)}:",
            *(
                f"  {name:{width}}  {seconds / self.steps:10.6f} s a step  {share(seconds, total):>6}  "
                f"{calls / self.steps:8,.0f} times"
                for name, seconds, calls in shown
            ),
        ]


def share(part: float, whole: float) -> str:
    """Return a share as a percentage.

    >>> share(1, 8)
    '12.5 %'
    """
    return f"{100 * part / whole:.1f} %" if whole else "0.0 %"


def profile_steps(
    take: Callable[[Forward, Round], object],
    forward: Forward,
    inputs: Iterator[Round],
    steps: int,
    device: Device,
    trace: Path | None,
) -> Profile:
    """Take steps under torch's profiler.

    Args:
        take: takes one step with a forward pass.
        trace: the path of the trace in Chrome's format, written whole or not at all; None: it is not kept.
    """

    def named(batch: Mapping[str, Tensor]) -> Mapping[str, Term]:
        with record_function(PARTS["forward"]):
            return forward(batch)

    device.synchronise()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities) as profiler:
        for number in range(1, steps + 1):
            with record_function(f"{STEP}{number}"):
                with record_function(PARTS["input"]):
                    given = next(inputs)
                take(named, given)
        with record_function("wait for the device"):
            device.synchronise()
    if trace is not None:
        with TemporaryDirectory(prefix="relm-trace-") as folder:
            profiler.export_chrome_trace(str(Path(folder) / "trace.json"))
            with open(Path(folder) / "trace.json", "rb") as source, atomic_file(trace) as file:
                shutil.copyfileobj(source, file)
    events = profiler.events() or []
    parts, seconds = time_parts(events), sum(event.cpu_time_total for event in events if event.name.startswith(STEP)) / 1e6
    return Profile(steps, seconds, {**parts, REST: seconds - sum(parts.values())}, list_operations(profiler), trace)


def time_parts(events: Iterable[Any]) -> dict[str, float]:
    """Return the seconds of each of `PARTS` in a profiler's events; what is inside a part belongs to it."""
    parts = dict.fromkeys(PARTS, 0.0)
    for event in events:
        names, parent = [event.name], event.cpu_parent
        while parent is not None:
            names.append(parent.name)
            parent = parent.cpu_parent
        if not any(name.startswith(tuple(PARTS.values())) for name in names[1:]):
            for part in (part for part, prefix in PARTS.items() if event.name.startswith(prefix)):
                parts[part] += event.cpu_time_total / 1e6
    return parts


def list_operations(profiler: profile) -> list[Operation]:
    """Return the operations by their own time, the most expensive first: kernels where there is a GPU."""
    averages = [each for each in profiler.key_averages() if not each.is_user_annotation]
    kernels = [each for each in averages if each.device_type.name != "CPU"]
    found = [Operation(each.key, each.self_device_time_total / 1e6, each.count) for each in kernels] or [
        Operation(each.key, each.self_cpu_time_total / 1e6, each.count) for each in averages
    ]
    return sorted(found, key=lambda each: -each.seconds)
