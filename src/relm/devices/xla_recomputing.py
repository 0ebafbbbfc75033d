"""Activation checkpointing on XLA devices, where eliminating common subexpressions would undo torch's checkpointing.

A layer's inputs pass a barrier together with the gradient of its output before the layer is computed again. So the compiler
sees other values than in the forward pass, and cannot compute them before that gradient exists.
"""

from typing import Any

import torch
from torch import Tensor, nn


def recomputed(layer: nn.Module, *inputs: Tensor | None) -> Tensor:
    """Return `layer(*inputs)`, keeping only the inputs; the rest is computed again in the backward pass (Chen et al. 2016).

    Dropout draws the same numbers again. The host does not wait, and the backward pass stays in the same program.
    """
    if not torch.is_grad_enabled():
        output: Tensor = layer(*inputs)
        return output
    kept: Tensor = _Recomputed.apply(layer, *inputs)  # type: ignore[no-untyped-call]
    return kept


class _Recomputed(torch.autograd.Function):
    """A layer as one operation with a gradient function."""

    @staticmethod
    def forward(ctx: Any, layer: nn.Module, *inputs: Tensor | None) -> Tensor:
        """Return the layer's output."""
        import torch_xla.core.xla_model as xm

        ctx.layer = layer
        ctx.random_state = xm.get_rng_state()  # the host counts it too and fetches nothing
        ctx.precision = {"enabled": torch.is_autocast_enabled("xla"), "dtype": torch.get_autocast_dtype("xla")}
        ctx.save_for_backward(*inputs)
        output: Tensor = _computed(ctx, inputs)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs; those of the parameters are accumulated in place."""
        import torch_xla.core.xla_model as xm

        needs_gradient = ctx.needs_input_grad[1:]
        # Copies, because the barrier changes its tensors in place; the compiler removes them.
        inputs = [saved.clone() if wanted else saved for saved, wanted in zip(ctx.saved_tensors, needs_gradient, strict=True)]
        gradient = gradient.clone()
        xm.optimization_barrier_([gradient, *(tensor for tensor, wanted in zip(inputs, needs_gradient, strict=True) if wanted)])
        inputs = [
            tensor.detach().requires_grad_() if wanted else tensor
            for tensor, wanted in zip(inputs, needs_gradient, strict=True)
        ]
        xm.set_rng_state(ctx.random_state)
        with torch.enable_grad():
            output = _computed(ctx, inputs)
        torch.autograd.backward(output, gradient)
        return None, *(tensor.grad if wanted else None for tensor, wanted in zip(inputs, needs_gradient, strict=True))


def _computed(ctx: Any, inputs: Any) -> Any:
    """Return the layer's output in the precision of the forward pass, without autocast's cache, which holds no gradients."""
    with torch.autocast("xla", cache_enabled=False, **ctx.precision):
        return ctx.layer(*inputs)
