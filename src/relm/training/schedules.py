"""The learning rate as a function of the step alone, so that nothing of it needs saving."""

import math

from relm.recipe import Schedule


def learning_rate_scale(schedule: Schedule, step: int, steps: int) -> float:
    """The share of the peak learning rate with which a step is taken.

    Rises linearly from 0 (before the first step) to 1 at step `warmup_steps`, then falls in the schedule's shape to `floor` at
    the last step.

    Args:
        step: from 1 to `steps`.
        steps: of the whole phase.

    >>> [learning_rate_scale(Schedule(name="linear", warmup_steps=2), step, 4) for step in (1, 2, 3, 4)]
    [0.5, 1.0, 0.5, 0.0]
    """
    if step <= schedule.warmup_steps:
        return step / schedule.warmup_steps
    if schedule.name == "constant":
        return 1.0
    progress = (step - schedule.warmup_steps) / (steps - schedule.warmup_steps)
    shape = 1 - progress if schedule.name == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return schedule.floor + (1 - schedule.floor) * shape
