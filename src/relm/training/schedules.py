"""Learning-rate schedules: pure functions of the step, of which a checkpoint saves nothing."""

import math
from collections.abc import Callable

from relm.recipes.declaration import load
from relm.recipes.optimization import SCHEDULES, Schedule
from relm.recipes.phase import Phase


def learning_rate_scale(schedule: Schedule, step: int, steps: int) -> float:
    """Return the share of the peak learning rate with which an update is made.

    It rises from 0 (before the first step) to 1 at the end of the warm-up, then falls in the schedule's shape to `floor` at the
    last step or at `decay_end`. `step` counts from 1 to `steps`, the updates of the phase.

    >>> [learning_rate_scale(Schedule(name="linear", warmup_steps=2), step, 4) for step in (1, 2, 3, 4)]
    [0.5, 1.0, 0.5, 0.0]
    """
    number = (step - 1) // schedule.updates_per_step + schedule.first_step
    scale: float = load(SCHEDULES[schedule.name].scale)(schedule, number, steps)
    return scale


def learning_rate_of(phase: Phase, step: int) -> float:
    """Return the learning rate of an update, counted from 1."""
    return phase.optimizer.learning_rate * learning_rate_scale(phase.schedule, step, phase.steps)


def constant(schedule: Schedule, number: int, steps: int) -> float:
    """Return the share at a step: the peak after the warm-up."""
    warming = _warm_up(schedule, number, steps)
    return 1.0 if warming is None else warming


def linear(schedule: Schedule, number: int, steps: int) -> float:
    """Return the share at a step: a straight line down."""
    return _decayed(schedule, number, steps, lambda progress: 1 - progress)


def cosine(schedule: Schedule, number: int, steps: int) -> float:
    """Return the share at a step: half a cycle of a cosine."""
    return _decayed(schedule, number, steps, lambda progress: (1 + math.cos(math.pi * progress)) / 2)


def polynomial(schedule: Schedule, number: int, steps: int) -> float:
    """Return the share at a step: a power of the remaining share of the schedule's length."""
    return _decayed(schedule, number, steps, lambda progress: (1 - progress) ** schedule.power)


def natural_exponential(schedule: Schedule, number: int, steps: int) -> float:
    """Return the share at a step: the same factor less each `decay_period` steps."""
    assert schedule.decay_rate is not None, "the section requires it"
    warming = _warm_up(schedule, number, steps)
    if warming is not None:
        return warming
    return _above_floor(schedule, math.exp(-schedule.decay_rate * ((number - schedule.warmup(steps)) // schedule.decay_period)))


def trapezoid(schedule: Schedule, number: int, steps: int) -> float:
    """Return the share at a step: a rise, the peak, and a straight line down at the end."""
    warming = _warm_up(schedule, number, steps)
    progress = (number + schedule.decay_ahead) / schedule.length(steps)
    share = min(1.0, max(0.0, 1 - progress) / schedule.decay_share)
    return (1.0 if warming is None else warming) * _above_floor(schedule, share)


def by_step(schedule: Schedule, number: int, steps: int) -> float:
    """Return the share at a step: that of the table's last step up to this one."""
    return max(schedule.floor, schedule.by_step[max(begin for begin in schedule.by_step if begin <= number)])


def _warm_up(schedule: Schedule, number: int, steps: int) -> float | None:
    """Return the share at a step of the warm-up; None after it."""
    warmup = schedule.warmup(steps)
    if number > warmup or not warmup:
        return None
    share: float = (number / warmup) ** schedule.warmup_power
    return max(schedule.floor, share) if schedule.floor_cuts_off else share


def _decayed(schedule: Schedule, number: int, steps: int, shape: Callable[[float], float]) -> float:
    """Return the share at a step of a schedule with an end.

    `shape` maps progress after the warm-up, from 0 to 1, to the share before the floor, from 1 to 0.
    """
    warming = _warm_up(schedule, number, steps)
    if warming is not None:
        return warming
    warmup, end = schedule.warmup(steps), schedule.decay_end or schedule.length(steps)
    progress = (number + schedule.decay_ahead - warmup) / (end - warmup)  # below 0 at step 0 with decay_ahead: -1, no warm-up
    return _above_floor(schedule, shape(min(1.0, max(0.0, progress))))


def _above_floor(schedule: Schedule, share: float) -> float:
    """Return a share cut off at the floor, or squeezed so that 0 becomes the floor."""
    return max(schedule.floor, share) if schedule.floor_cuts_off else schedule.floor + (1 - schedule.floor) * share
