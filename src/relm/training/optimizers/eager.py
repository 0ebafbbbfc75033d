"""Optimizers of torch without its compiler.

Torch decorates some methods of an optimizer so that its compiler does not trace them. At the first call the decorators import
the compiler and sympy, which takes seconds though nothing is compiled. These are torch's methods without the decorators.
"""

import inspect
from collections.abc import Callable
from typing import Any, cast

import torch

_add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
_zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
_adamw_step = cast(Callable[["AdamW"], None], inspect.unwrap(torch.optim.AdamW.step))


class EagerOptimizer(torch.optim.Optimizer):
    """An optimizer whose methods do not import torch's compiler; a compiled function must not call them."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with separate settings."""
        _add_param_group(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove the gradients of all parameters, or set them to 0."""
        _zero_grad(self, set_to_none)


class AdamW(EagerOptimizer, torch.optim.AdamW):
    """Torch's AdamW."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step; a parameter without a gradient stays unchanged."""
        _adamw_step(self)
