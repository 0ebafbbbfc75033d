"""A few real training steps of a recipe, at full size, before it runs: they show whether it fits, and its speed.

The examples are generated, so that nothing has to be downloaded or pregenerated first. The weights are random: their values
do not change the speed. Nothing is written into any run folder.
"""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from relm.errors import RelmError
from relm.forecast.prepared_run import PreparedRun, Rehearsal, micro_batch_count, prepare, read_ahead
from relm.forecast.profiling import profile_steps
from relm.forecast.rehearsal_lines import describe_request, describe_steps, take_steps
from relm.limits import nearest_existing
from relm.training.input import Reader, Round
from relm.training.loop import WARM_UP
from relm.training.updates import DeviceUpdates, Forward, TorchUpdates, Updates, take_step

# Steps that --profile traces after the others, fewer where a step has many micro-batches: a trace must fit into memory.
PROFILED_STEPS, PROFILED_MICRO_BATCHES = 3, 24


def rehearse(rehearsal: Rehearsal) -> str:
    """Take the steps, and return a few lines on their speed, memory and loss."""
    with prepare(rehearsal) as ready:
        run, count = ready.run, 1 if rehearsal.compile_only else rehearsal.steps
        if rehearsal.compile_only and isinstance(ready.updates, DeviceUpdates):
            return "\n".join(compile_updates(ready, ready.updates))
        if rehearsal.trace is not None:
            require_torch_updates(ready.updates)
        profiled = profiled_step_count(run.reader) if rehearsal.trace is not None else 0
        with closing(read_ahead(run.reader, count + profiled)) as inputs:
            steps = take_steps(ready, inputs, count)
            lines = describe_steps(ready, steps)
            if rehearsal.trace is not None:
                lines += trace_steps(ready, inputs, profiled, rehearsal.trace)
    return "\n".join(lines)


def compile_updates(ready: PreparedRun, updates: DeviceUpdates) -> list[str]:
    """Compile the program of a device that takes whole updates, and return lines on it."""
    with closing(read_ahead(ready.run.reader, ready.run.device.updates_per_call)) as inputs:
        seconds = updates.compile(next(inputs))
    return [*describe_request(ready), f"compiled in {seconds:,.1f} s; no update was taken"]


def require_torch_updates(updates: Updates) -> TorchUpdates:
    """Return updates that torch's profiler can trace."""
    if not isinstance(updates, TorchUpdates):
        raise RelmError(
            "--profile: torch's profiler sees nothing of an IPU; leave it out, and set POPLAR_ENGINE_OPTIONS="
            '\'{"autoReport.all":"true","autoReport.directory":"FOLDER"}\' for Graphcore\'s PopVision'
        )
    return updates


def profiled_step_count(reader: Reader) -> int:
    """Return how many steps are traced."""
    return max(1, min(PROFILED_STEPS, PROFILED_MICRO_BATCHES // micro_batch_count(reader)))


def trace_steps(ready: PreparedRun, inputs: Iterator[Round], count: int, trace: Path) -> list[str]:
    """Take further steps under the profiler, and return lines on them; rank 0 writes the trace."""
    run, updates = ready.run, require_torch_updates(ready.updates)

    def step(forward: Forward, given: Round) -> None:
        take_step(run, ready.learner, forward, given.steps[0])

    found = profile_steps(step, updates.forward, inputs, count, run.device, trace if run.writes else None)
    ready.learner.meter.read(run.describe_failure)
    return found


def require_options(steps: int | None, compile_only: bool, trace: Path | None) -> None:
    """Raise if options exclude each other, or if a trace could not be written at the end."""
    if compile_only and (steps is not None or trace is not None):
        extra = "--steps" if steps is not None else "--profile"
        raise RelmError(f"--compile-only stops after one compiled step; leave {extra} or --compile-only out")
    if steps is not None and steps <= WARM_UP:
        raise RelmError(f"--steps {steps}: the first {WARM_UP} steps are the warm-up; give more, or --compile-only")
    if trace is not None:
        existing = nearest_existing(trace.absolute().parent)
        if trace.is_dir() or not existing.is_dir() or not os.access(existing, os.W_OK):
            raise RelmError(f"--profile {trace}: cannot be written as a file; correct the path or its permissions")
