"""Gather positions of sequences, forwards and backwards, so that each sequence stays on its device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def gathered(hidden: Tensor, positions: Tensor | None, traced: bool = False) -> Tensor:
    """Gather some positions of each sequence by itself, so that sequences may lie on different devices.

    Args:
        hidden: (batch, sequence, hidden).
        positions: (batch, gathered) int64, in which one may be given several times; None: all positions.
        traced: as of `relm.models.layers.TracedModule`.

    Returns:
        (batch, gathered, hidden).
    """
    if positions is None:
        return hidden
    if traced:
        rows: Tensor = _Gathered.apply(hidden, positions)  # type: ignore[no-untyped-call]
        return rows
    return hidden.gather(1, _indices(positions, hidden))


def _indices(positions: Tensor, hidden: Tensor) -> Tensor:
    return positions[:, :, None].expand(-1, -1, hidden.shape[2])


class _Gathered(torch.autograd.Function):
    """The same gather, with a matrix product for its backward pass, in which each sequence stays where it is.

    Its own one, to add up rows at indices, has XLA send the gradients and indices of all sequences to every TPU core.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, positions: Tensor) -> Tensor:
        ctx.save_for_backward(positions)
        ctx.length = hidden.shape[1]
        return hidden.gather(1, _indices(positions, hidden))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (positions,) = ctx.saved_tensors
        taken = positions[:, None, :] == torch.arange(ctx.length, device=positions.device)[None, :, None]
        return taken.to(gradient.dtype) @ gradient, None
