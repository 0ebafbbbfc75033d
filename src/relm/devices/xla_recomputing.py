"""Activation checkpointing on XLA devices, where the compiler would undo torch's own: it computes nothing twice if it can help.

What goes into a layer passes a barrier together with the gradient of what came out, before the layer is computed anew. So
the compiler sees other values than in the forward pass, and none that it could compute before that gradient is there.
"""

from typing import Any

import torch
from torch import Tensor, nn


def recomputed(layer: nn.Module, *inputs: Tensor | None) -> Tensor:
    """`layer(*inputs)`, of which the inputs alone are kept; the rest is computed anew in the backward pass (Chen et al. 2016).

    Dropout draws the same numbers again. Nothing waits for the device, and the backward pass stays in the same program.
    """
    if not torch.is_grad_enabled():
        output: Tensor = layer(*inputs)
        return output
    kept: Tensor = _Recomputed.apply(layer, *inputs)  # type: ignore[no-untyped-call]
    return kept


class _Recomputed(torch.autograd.Function):
    """A layer as one operation, with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, layer: nn.Module, *inputs: Tensor | None) -> Tensor:
        """What the layer makes of its inputs."""
        import torch_xla.core.xla_model as xm

        ctx.layer = layer
        ctx.random_state = xm.get_rng_state()  # counted on the host too, so that nothing is fetched
        ctx.precision = {"enabled": torch.is_autocast_enabled("xla"), "dtype": torch.get_autocast_dtype("xla")}
        ctx.save_for_backward(*inputs)
        output: Tensor = _computed(ctx, inputs)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the inputs; those of the parameters are added to what they have."""
        import torch_xla.core.xla_model as xm

        learns = ctx.needs_input_grad[1:]
        # Copies, since the barrier changes its tensors in place; they cost nothing in the program.
        inputs = [saved.clone() if wanted else saved for saved, wanted in zip(ctx.saved_tensors, learns, strict=True)]
        gradient = gradient.clone()
        xm.optimization_barrier_([gradient, *(tensor for tensor, wanted in zip(inputs, learns, strict=True) if wanted)])
        inputs = [tensor.detach().requires_grad_() if wanted else tensor for tensor, wanted in zip(inputs, learns, strict=True)]
        xm.set_rng_state(ctx.random_state)
        with torch.enable_grad():
            output = _computed(ctx, inputs)
        torch.autograd.backward(output, gradient)
        return None, *(tensor.grad if wanted else None for tensor, wanted in zip(inputs, learns, strict=True))


def _computed(ctx: Any, inputs: Any) -> Any:
    """In the precision of the forward pass; a weight cast there, without its gradient, must not be found again later."""
    with torch.autocast("xla", cache_enabled=False, **ctx.precision):
        return ctx.layer(*inputs)
