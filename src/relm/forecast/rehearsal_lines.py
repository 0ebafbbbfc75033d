"""The measurements of a rehearsal's steps, and the lines that are printed on them."""

import dataclasses
import math
import time
from collections.abc import Iterator

from relm.devices.contract import UpdatingDevice
from relm.forecast.prepared_run import PreparedRun, micro_batch_count
from relm.formatting import format_bytes, format_duration
from relm.progress import ProgressBar
from relm.training.input import Round
from relm.training.loop import WARM_UP


@dataclasses.dataclass(frozen=True)
class StepMeasurements:
    """Measurements of the steps."""

    first_seconds: float
    """The duration of the first step or, if a call takes several, of the first call; compiling included."""
    first_steps: int
    """The count of steps in that time."""
    steady: int
    """The count of steps after the warm-up."""
    seconds: float
    """The mean duration of a steady step; 0 if there was none."""
    first_terms: dict[str, float]
    """The first step's terms: TERM_loss in nats a label, and TERM_accuracy."""
    last_loss: float
    programs: int
    """The count of compiled programs."""
    memory: int | None
    """Peak memory in bytes; None: the device does not report it."""


def take_steps(ready: PreparedRun, inputs: Iterator[Round], count: int) -> StepMeasurements:
    """Take steps as the loop does; read the clock after the first round, after the warm-up, and at the end."""
    run, device, meter = ready.run, ready.run.device, ready.learner.meter
    clock = {0: time.perf_counter()}
    first_terms = dict[str, float]()
    length = device.updates_per_call
    count, warm_up = -(-count // length), -(-WARM_UP // length)
    for number in ProgressBar(range(1, count + 1), desc=f"rehearse {run.phase}", unit="step", disable=None):
        ready.updates.take(next(inputs))
        if number in (1, warm_up, count):
            device.synchronise()
            clock[number] = time.perf_counter()
            meter.read(run.describe_failure)
        if number == 1:
            first_terms = meter.terms
    steady = max(0, count - warm_up) * length
    return StepMeasurements(
        first_seconds=clock[1] - clock[0],
        first_steps=length,
        steady=steady,
        seconds=(clock[count] - clock[warm_up]) / steady if steady else 0.0,
        first_terms=first_terms,
        last_loss=meter.loss,
        programs=device.programs(),
        memory=device.peak_memory(),
    )


def describe_request(ready: PreparedRun) -> list[str]:
    """Return a line each on the phase and the device."""
    run, settings = ready.run, ready.run.settings
    count = micro_batch_count(run.reader)
    pieces = f"{count:,} micro-batch{'' if count == 1 else 'es'}" + (" a process" if run.device.parts > 1 else "")
    device = ", ".join(f"{value}" if key == "device" else f"{key} {value}" for key, value in run.device.describe().items())
    return [
        f"phase {run.phase}: {ready.learner.model.parameter_count():,} parameters, {settings.global_batch_size:,} sequences of "
        f"{settings.sequence_length:,} tokens a step in {pieces}, {settings.precision}; the examples are generated",
        f"device: {device}",
    ]


def describe_steps(ready: PreparedRun, steps: StepMeasurements) -> list[str]:
    """Return a line for each measurement."""
    in_pipeline = isinstance(ready.run.device, UpdatingDevice)
    return [
        *describe_request(ready),
        f"ready: {_describe_first_step(ready, steps)}; {steps.programs} compiled programs",
        *([_describe_speed(ready, steps)] if steps.steady else []),
        f"memory: {memory_line(steps.memory, in_pipeline)}",
        f"loss: {_describe_loss(ready, steps)}",
    ]


def _describe_first_step(ready: PreparedRun, steps: StepMeasurements) -> str:
    """Return the extra time of the first step, which compiles and allocates memory."""
    count = "step" if steps.first_steps == 1 else f"{steps.first_steps} steps"
    first = f"the model was made in {ready.preparation_seconds:.2f} s; the first {count} took {steps.first_seconds:.2f} s"
    more = max(0.0, steps.first_seconds - steps.first_steps * steps.seconds)
    others = "a steady one" if steps.first_steps == 1 else "later ones"
    return f"{first}, {more:.2f} s more than {others}" if steps.steady else first


def _describe_speed(ready: PreparedRun, steps: StepMeasurements) -> str:
    run, rate = ready.run, 1 / steps.seconds
    return (
        f"speed: {rate:,.3g} steps/s, {rate * run.tokens_per_step:,.0f} tokens/s, "
        f"{rate * run.settings.global_batch_size:,.1f} samples/s, over {steps.steady} step{'s' * (steps.steady != 1)} of "
        f"{steps.seconds:.4g} s; all {run.settings.steps:,} take {format_duration(run.settings.steps * steps.seconds)}"
    )


def memory_line(memory: int | None, in_pipeline: bool = False) -> str:
    """Return the peak memory, or the command that reports it.

    >>> memory_line(None)
    'not reported by this device, which had enough; `relm compile NAME` reports what a step needs'
    """
    if memory is not None:
        return f"{format_bytes(memory)} at most"
    command = (
        "`relm estimate NAME` prints the memory of each IPU" if in_pipeline else "`relm compile NAME` reports what a step needs"
    )
    return f"not reported by this device, which had enough; {command}"


def _describe_loss(ready: PreparedRun, steps: StepMeasurements) -> str:
    """Return the first loss and that of a uniform guess; a large difference suggests wrong weights or data."""
    parts = []
    for name, value in steps.first_terms.items():
        if term := name.removesuffix("_loss") if name.endswith("_loss") else "":
            classes = ready.run.settings.declaration.classes.get(term, ready.learner.model.config.vocabulary_size)
            parts.append(f"{term} {value:.3f} (a guess among {classes:,}: {math.log(classes):.3f})")
    return ", ".join(parts) + (f"; of the last: {steps.last_loss:.3f} in all" if steps.steady else "")
