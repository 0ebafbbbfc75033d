"""The learning rate as a function of the step alone, so that nothing of it needs saving."""

import math

from relm.recipes.optimization import Schedule


def learning_rate_scale(schedule: Schedule, step: int, steps: int) -> float:
    """The share of the peak learning rate with which an update is made.

    Rises from 0 (before the first step) to 1 at the end of the warm-up, then falls in the schedule's shape to `floor` at the
    last step, or where the schedule says.

    Args:
        step: the update's number, from 1 to `steps`.
        steps: updates of the whole phase.

    >>> [learning_rate_scale(Schedule(name="linear", warmup_steps=2), step, 4) for step in (1, 2, 3, 4)]
    [0.5, 1.0, 0.5, 0.0]
    """
    number = (step - 1) // schedule.updates_per_step + schedule.first_step
    if schedule.name == "by_step":
        return max(schedule.floor, schedule.by_step[max(begin for begin in schedule.by_step if begin <= number)])
    warmup = schedule.warmup(steps)
    if number <= warmup and warmup:
        share: float = (number / warmup) ** schedule.warmup_power
        return max(schedule.floor, share) if schedule.floor_cuts_off else share
    end = schedule.decay_end or schedule.length(steps)
    share = _shape(schedule, number + schedule.decay_ahead - warmup, end - warmup)
    if schedule.floor_cuts_off:
        return max(schedule.floor, share)
    return share if schedule.name == "constant" else schedule.floor + (1 - schedule.floor) * share


def _shape(schedule: Schedule, number: int, end: int) -> float:
    """What is left of 1 at a step after the warm-up.

    Args:
        number: of the step, counted from the warm-up's last.
        end: where the shape arrives at 0, counted likewise.
    """
    if schedule.name == "constant":
        return 1.0
    if schedule.name == "natural_exponential":
        assert schedule.decay_rate is not None, "the section sees to it"
        return math.exp(-schedule.decay_rate * (number // schedule.decay_period))
    progress = min(1.0, number / end)
    if schedule.name == "cosine":
        return (1 + math.cos(math.pi * progress)) / 2
    return 1 - progress if schedule.name == "linear" else (1 - progress) ** schedule.power
