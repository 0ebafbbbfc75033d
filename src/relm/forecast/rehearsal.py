"""Takes a few real training steps of a recipe at full size, which show its speed and whether it fits.

Examples are generated, so nothing has to be downloaded or made first, and weights are random, which does not change the speed.
Nothing is written into a run folder.
"""

import os
from contextlib import closing
from pathlib import Path

from relm.errors import RelmError
from relm.forecast.prepared_run import Rehearsal, micro_batch_count, prepare
from relm.forecast.profiling import profile_steps
from relm.forecast.rehearsal_lines import describe_request, describe_steps, take_steps
from relm.limits import nearest_existing
from relm.training.loop import WARM_UP
from relm.training.updates import DeviceUpdates

# Steps that --profile traces after the others, fewer if a step has many micro-batches: a trace must fit into memory.
PROFILED_STEPS, PROFILED_MICRO_BATCHES = 3, 24


def rehearse(rehearsal: Rehearsal) -> str:
    """Take the steps, and return a few lines on their speed, memory and loss."""
    with prepare(rehearsal) as ready:
        reader, updates, trace = ready.run.reader, ready.updates, rehearsal.trace
        if trace is not None and isinstance(updates, DeviceUpdates):
            raise RelmError(
                "--profile: torch's profiler cannot see an IPU; leave it out, and set POPLAR_ENGINE_OPTIONS="
                '\'{"autoReport.all":"true","autoReport.directory":"FOLDER"}\' for Graphcore\'s PopVision'
            )
        profiled = 0 if trace is None else max(1, min(PROFILED_STEPS, PROFILED_MICRO_BATCHES // micro_batch_count(reader)))
        count = 1 if rehearsal.compile_only else rehearsal.steps
        with closing(reader.rounds(1, count + profiled, lambda: False)) as inputs:
            if rehearsal.compile_only and isinstance(updates, DeviceUpdates):
                seconds = updates.compile(next(inputs))
                return "\n".join([*describe_request(ready), f"compiled in {seconds:,.1f} s; no update was taken"])
            lines = describe_steps(ready, take_steps(ready, inputs, count))
            if trace is not None:
                lines += profile_steps(ready, inputs, profiled, trace)
    return "\n".join(lines)


def require_options(steps: int | None, compile_only: bool, trace: Path | None) -> None:
    """Raise if options exclude each other, or if a trace could not be written at the end."""
    if compile_only and (steps is not None or trace is not None):
        extra = "--steps" if steps is not None else "--profile"
        raise RelmError(f"--compile-only stops after one compiled step; leave {extra} or --compile-only out")
    if steps is not None and steps <= WARM_UP:
        raise RelmError(f"--steps {steps}: the first {WARM_UP} steps are the warm-up; take more, or use --compile-only")
    if trace is not None:
        existing = nearest_existing(trace.absolute().parent)
        if trace.is_dir() or not existing.is_dir() or not os.access(existing, os.W_OK):
            raise RelmError(f"--profile {trace}: cannot write this file; correct the path or its permissions")
