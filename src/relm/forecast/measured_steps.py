"""Steps of a prepared run, and their measurements."""

import dataclasses
import math
import time
from collections.abc import Iterator

from relm.forecast.prepared_run import PreparedRun
from relm.progress import ProgressBar
from relm.training.input import Round
from relm.training.loop import WARM_UP


@dataclasses.dataclass(frozen=True)
class StepMeasurements:
    """Measurements of the steps."""

    preparation_seconds: float
    """Seconds until the model was on its device."""
    first_seconds: float
    """The duration of the first step, compiling included; of a device that takes several in a call, of the first call."""
    first_steps: int
    """The count of steps in that time."""
    steady: int
    """The count of steps after the warm-up."""
    seconds: float
    """The mean duration of a steady step; 0 where there was none."""
    first_terms: dict[str, float]
    """The first step's terms: TERM_loss in nats a label, and TERM_accuracy."""
    first_loss: float
    last_loss: float
    programs: int
    """The count of compiled programs."""
    memory: int | None
    """Peak memory in bytes; None: the device does not report it."""


def take_steps(ready: PreparedRun, inputs: Iterator[Round], count: int) -> StepMeasurements:
    """Take steps as the loop does; read the clock after the first round, after the warm-up, and at the end."""
    run, device, meter = ready.run, ready.run.device, ready.learner.meter
    clock = {0: time.perf_counter()}
    first_terms, first_loss = {}, math.nan
    length = device.updates_per_call
    count, warm_up = -(-count // length), -(-WARM_UP // length)
    for number in ProgressBar(range(1, count + 1), desc=f"rehearse {run.phase}", unit="step", disable=None):
        ready.updates.take(next(inputs))
        if number in (1, warm_up, count):
            device.synchronise()
            clock[number] = time.perf_counter()
            meter.read(run.describe_failure)
        if number == 1:
            first_terms, first_loss = meter.terms, meter.loss
    steady = max(0, count - warm_up) * length
    return StepMeasurements(
        preparation_seconds=ready.preparation_seconds,
        first_seconds=clock[1] - clock[0],
        first_steps=length,
        steady=steady,
        seconds=(clock[count] - clock[warm_up]) / steady if steady else 0.0,
        first_terms=first_terms,
        first_loss=first_loss,
        last_loss=meter.loss,
        programs=device.programs(),
        memory=device.peak_memory(),
    )
