"""An optimizer and a schedule from outside the package: steps in the direction of the gradient's sign, in three stairs."""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from relm.recipes.optimization import (
    Optimizer,
    OptimizerDeclaration,
    Schedule,
    ScheduleDeclaration,
    register_optimizer,
    register_schedule,
)
from relm.recipes.section import Section


class SignDescent(Section):
    """Options of sign descent."""

    share: float = Field(default=1.0, gt=0)
    """Factor of each step."""


class Stairs(Section):
    """Options of the stairs."""

    count: int = Field(default=3, gt=0)
    """Parts of the phase, each with half the learning rate of the one before."""


class SignDescentOptimizer(torch.optim.Optimizer):
    def __init__(self, groups: list[dict[str, Any]], learning_rate: float, share: float) -> None:
        super().__init__(groups, {"lr": learning_rate})
        self.share = share

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient: Tensor = parameter.grad
                parameter.sub_(gradient.sign(), alpha=group["lr"] * self.share)


def count_state(shape: tuple[int, ...], settings: Optimizer) -> int:
    return 0


def build(groups: list[dict[str, Any]], settings: Optimizer) -> SignDescentOptimizer:
    return SignDescentOptimizer(groups, settings.learning_rate, settings.sign_descent.share)


def scale(schedule: Schedule, number: int, steps: int) -> float:
    return 0.5 ** ((number - 1) * schedule.stairs.count // steps)


register_optimizer(OptimizerDeclaration("sign_descent", "sign_descent:build", count_state, options=SignDescent))
register_schedule(ScheduleDeclaration("stairs", "sign_descent:scale", options=Stairs))
