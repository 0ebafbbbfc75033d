"""Optimizers of torch without its compiler.

Torch keeps its compiler from tracing some methods of an optimizer by decorators that import the compiler, sympy included, at
the first call: seconds of each process, though nothing is compiled. The methods here are torch's own without the decorators.
"""

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch

_add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
_zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
_adamw_step = cast(Callable[["AdamW"], None], inspect.unwrap(torch.optim.AdamW.step))


class EagerOptimizer(torch.optim.Optimizer):
    """An optimizer whose methods do not import torch's compiler; none of them may be called in a function that is compiled."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with their own settings."""
        _add_param_group(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove the gradients of all parameters, or set them to 0."""
        _zero_grad(self, set_to_none)


class AdamW(EagerOptimizer, torch.optim.AdamW):
    """Torch's AdamW."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step with the parameters' gradients; a parameter without one stays unchanged."""
        _adamw_step(self)
