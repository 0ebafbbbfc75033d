"""The lines that a rehearsal prints on its steps."""

import math

from relm.devices.contract import Device, UpdatingDevice
from relm.forecast.measured_steps import StepMeasurements
from relm.forecast.prepared_run import PreparedRun, micro_batch_count
from relm.formatting import format_bytes, format_duration
from relm.models.configuration import Configuration
from relm.recipes.phase import Phase
from relm.training.phase_run import PhaseRun


def describe_request(ready: PreparedRun) -> list[str]:
    """Return a line each on the phase and the device."""
    run, settings = ready.run, ready.run.settings
    count = micro_batch_count(run.reader)
    pieces = f"{count:,} micro-batch{'' if count == 1 else 'es'}" + (" a process" if run.device.parts > 1 else "")
    return [
        f"phase {run.phase}: {ready.learner.model.parameter_count():,} parameters, {settings.global_batch_size:,} sequences of "
        f"{settings.sequence_length:,} tokens a step in {pieces}, {settings.precision}; the examples are generated",
        f"device: {describe_device(run.device)}",
    ]


def describe_steps(ready: PreparedRun, steps: StepMeasurements) -> list[str]:
    """Return a line for each measurement."""
    run = ready.run
    return [
        *describe_request(ready),
        f"ready: {describe_first_step(steps)}; {steps.programs} compiled programs",
        *([describe_speed(run, steps)] if steps.steady else []),
        f"memory: {memory_line(steps.memory, isinstance(run.device, UpdatingDevice))}",
        f"loss: {describe_loss(steps, run.settings, ready.config)}",
    ]


def describe_device(device: Device) -> str:
    """Return a device's description of itself in one line."""
    return ", ".join(f"{value}" if key == "device" else f"{key} {value}" for key, value in device.describe().items())


def describe_speed(run: PhaseRun, steps: StepMeasurements) -> str:
    """Return the rate of the steady steps."""
    rate = 1 / steps.seconds
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
    if memory is None and in_pipeline:
        return "not reported by this device, which had enough; `relm estimate NAME` prints what lies on each IPU"
    if memory is None:
        return "not reported by this device, which had enough; `relm compile NAME` reports what a step needs"
    return f"{format_bytes(memory)} at most"


def describe_first_step(steps: StepMeasurements) -> str:
    """Return the time of the first step beyond a steady one: compiling, and allocating memory for the first time."""
    count = "step" if steps.first_steps == 1 else f"{steps.first_steps} steps"
    first = f"the model was made in {steps.preparation_seconds:.2f} s; the first {count} took {steps.first_seconds:.2f} s"
    more = max(0.0, steps.first_seconds - steps.first_steps * steps.seconds)
    return (
        f"{first}, {more:.2f} s more than {'a steady one' if steps.first_steps == 1 else 'later ones'}"
        if steps.steady
        else first
    )


def describe_loss(steps: StepMeasurements, phase: Phase, config: Configuration) -> str:
    """Return the first loss beside that of a uniform guess; a large difference points to wrong weights or data."""
    parts = []
    for name, value in steps.first_terms.items():
        if term := name.removesuffix("_loss") if name.endswith("_loss") else "":
            classes = phase.declaration.classes.get(term, config.vocabulary_size)
            parts.append(f"{term} {value:.3f} (a guess among {classes:,}: {math.log(classes):.3f})")
    return ", ".join(parts) + (f"; of the last: {steps.last_loss:.3f} in all" if steps.steady else "")
