"""The distribution of a training step's time: a trace of a few steps, its most expensive operations, and each part's share."""

import dataclasses
import json
import shutil
from collections import Counter, defaultdict
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
OPERATION, KERNEL = "cpu_op", "kernel"


class Event(NamedTuple):
    """An event of the trace; its length includes the events inside it."""

    name: str
    kind: str
    """`OPERATION`, `KERNEL`, or another category of Chrome's format."""
    thread: str
    start: float
    """In microseconds."""
    length: float


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

    Raises:
        RelmError: the trace cannot be written.
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
    with TemporaryDirectory(prefix="relm-trace-") as folder:
        written = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(written))
        if trace is not None:
            with open(written, "rb") as source, atomic_file(trace) as file:
                shutil.copyfileobj(source, file)
        return profile_of(events_of(json.loads(written.read_text())["traceEvents"]), steps, trace)


def events_of(trace: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Return the events with a length in Chrome's format, the profiler's own and copies of annotations left out."""
    return [
        Event(event["name"], event["cat"], f"{event['pid']} {event['tid']}", event["ts"], event["dur"])
        for event in trace
        if event.get("ph") == "X" and event["cat"] in (OPERATION, KERNEL, "user_annotation")
    ]


def profile_of(events: Sequence[Event], steps: int, trace: Path | None = None) -> Profile:
    """Return the summary of the events of some steps."""
    own, parts = own_times(events)
    seconds = sum(event.length for event in events if event.name.startswith(STEP)) / 1e6
    kind = KERNEL if any(event.kind == KERNEL for event in events) else OPERATION
    times: dict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for event, time in zip(events, own, strict=True):
        if event.kind == kind:
            times[event.name] += time / 1e6
            counts[event.name] += 1
    operations = sorted((Operation(name, time, counts[name]) for name, time in times.items()), key=lambda one: -one.seconds)
    return Profile(steps, seconds, {**parts, REST: seconds - sum(parts.values())}, operations, trace)


def own_times(events: Sequence[Event]) -> tuple[list[float], dict[str, float]]:
    """Return each event's time without the events inside it, in microseconds, and the seconds of each of `PARTS`.

    An event belongs to the part whose events enclose it. Two events of a thread are nested or disjoint.
    """
    own = [event.length for event in events]
    parts = dict.fromkeys(PARTS, 0.0)
    part_of: list[str | None] = [None] * len(events)
    open_events: list[int] = []
    for index in sorted(range(len(events)), key=lambda i: (events[i].thread, events[i].start, -events[i].length)):
        event = events[index]
        while open_events and not _is_inside(event, events[open_events[-1]]):
            open_events.pop()
        if open_events:
            own[open_events[-1]] -= event.length
            part_of[index] = part_of[open_events[-1]]
        named = next((part for part, name in PARTS.items() if event.kind != KERNEL and event.name.startswith(name)), None)
        if part_of[index] is None and named is not None:
            part_of[index] = named
            parts[named] += event.length / 1e6
        open_events.append(index)
    return own, parts


def _is_inside(event: Event, other: Event) -> bool:
    return event.thread == other.thread and event.start < other.start + other.length
