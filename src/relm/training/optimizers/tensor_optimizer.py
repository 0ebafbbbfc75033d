"""The base class of relm's optimizers, whose changing values are tensors on the device from the beginning."""

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from relm.recipes.optimization import Optimizer
from relm.training.optimizers.eager import EagerOptimizer

Groups = list[dict[str, Any]]
Tensors = list[Tensor] | tuple[Tensor, ...]
ELEMENTS_PER_OPERATION = 1 << 18


class TensorOptimizer(EagerOptimizer):
    """An optimizer that needs no values from the host.

    Learning rate, count of updates and state are tensors on the parameters' device that exist before the first step: a
    compiler that traces steps sees the same program each time, and nothing is read back.
    """

    found_inf: Tensor | None = None
    """Scalar float32 on the device: if it is 1, `step` changes nothing and gradients must be finite. None: never skip."""

    def __init__(self, groups: Groups, settings: Optimizer) -> None:
        """Create the state of all parameters in `groups`, as zeros of each parameter's dtype.

        `relm.training.optimizers.building` describes the keys of a group.
        """
        super().__init__(groups, {"traced": False, "elements_per_operation": ELEMENTS_PER_OPERATION, "rate_ratio": 1.0})
        self.traced: bool = any(group["traced"] for group in self.param_groups)
        first = self.param_groups[0]["params"][0]
        self.learning_rate = torch.full((), settings.learning_rate, dtype=torch.float32, device=first.device)
        self.updates = torch.zeros((), dtype=torch.float32, device=first.device)
        for group in self.param_groups:
            group["lr"] = self.learning_rate
            for parameter in group["params"]:
                shapes = self.state_shapes(parameter)
                self.state[parameter] = {key: parameter.new_zeros(shape) for key, shape in shapes.items()}

    @abstractmethod
    def state_shapes(self, parameter: Tensor) -> dict[str, tuple[int, ...]]:
        """Return key -> shape of a parameter's state."""

    @abstractmethod
    def update(self, group: dict[str, Any], parameters: Tensors, gradients: Tensors) -> None:
        """Update some parameters of a group, and their state, in place."""

    def begin_step(self) -> None:
        """Compute the values that all calls of `update` in one step share, after `updates` was incremented."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step; a parameter without a gradient stays unchanged."""
        self.updates.add_(1.0 if self.found_inf is None else 1.0 - self.found_inf)
        self.begin_step()
        for group in self.param_groups:
            for parameters in _pieces([p for p in group["params"] if p.grad is not None], group["elements_per_operation"]):
                self.update(group, parameters, [p.grad for p in parameters if p.grad is not None])

    def states(self, key: str, parameters: Tensors) -> list[Tensor]:
        """Return the state `key` of each parameter."""
        return [self.state[parameter][key] for parameter in parameters]

    def unless_skipped(self, value: float | Tensor, otherwise: float) -> float | Tensor:
        """Return `value`, or `otherwise` if the step is skipped: 1 for factors and 0 for shares, so that nothing changes."""
        if self.found_inf is None:
            return value
        return torch.where(self.found_inf > 0, otherwise, value)

    def update_number(self) -> Tensor:
        """Return the index of this update, from 1."""
        return self.updates.clamp(min=1)

    def rate(self) -> Tensor:
        """Return the learning rate, 0 if the step is skipped."""
        return self.learning_rate * self.unless_skipped(1.0, 0.0)

    def approach(self, averages: Tensors, values: Tensors, share: float | Tensor) -> None:
        """Move `averages` towards `values` by `share` of the difference, in place."""
        share = self.unless_skipped(share, 0.0)
        weight = [share.to(averages[0].dtype)] * len(averages) if isinstance(share, Tensor) else share
        if self.traced:
            for average, value in zip(averages, values, strict=True):
                average.copy_(_between(average, value, share))
        else:
            torch._foreach_lerp_(averages, values, weight)

    def with_decay(self, group: dict[str, Any], parameters: Tensors, gradients: Tensors) -> Tensors:
        """Return the gradients with weight decay added, 0 if the step is skipped."""
        if not group["weight_decay"]:
            return gradients
        decayed = torch._foreach_add(gradients, parameters, alpha=group["weight_decay"])
        if self.found_inf is not None:
            torch._foreach_mul_(decayed, self.unless_skipped(1.0, 0.0))
        return decayed


def one_minus_power(decay: float, updates: Tensor) -> Tensor:
    """Return 1 - decay ** updates without the cancellation that costs precision in float32 for a decay near 1."""
    return -torch.expm1(updates * (math.log(decay) if decay else -math.inf))


def _between(start: Tensor, end: Tensor, share: float | Tensor) -> Tensor:
    """Return torch.lerp(start, end, share) as the CPU computes it, exact at both ends.

    PyTorch/XLA always computes from `start`: 1 + 1 * (1e-30 - 1) is 0 in float32, by whose root Adafactor divides.
    """
    way = end - start
    if not isinstance(share, Tensor):
        return start + way * share if share < 0.5 else end - way * (1 - share)
    return torch.where(share < 0.5, start + way * share, end - way * (1 - share)).to(start.dtype)


def _pieces(parameters: list[Tensor], bound: int) -> Iterator[list[Tensor]]:
    """Yield the parameters in order, in lists of at most `bound` elements; a larger one has a list for itself."""
    if not parameters:
        return
    piece: list[Tensor] = []
    size = 0
    for parameter in parameters:
        if piece and size + parameter.numel() > bound:
            yield piece
            piece, size = [], 0
        piece.append(parameter)
        size += parameter.numel()
    yield piece
