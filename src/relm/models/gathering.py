"""Gather positions of sequences, with a backward pass that keeps each sequence on its device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def gathered(hidden: Tensor, positions: Tensor | None, traced: bool = False) -> Tensor:
    """(batch, sequence, hidden) -> (batch, gathered, hidden), at `positions`, (batch, gathered) int64; None: all positions

    Sequences are gathered one by one, since they may be on different devices. Positions may be repeated.
    """
    if positions is None:
        return hidden
    if traced:
        rows: Tensor = _Gathered.apply(hidden, positions)  # type: ignore[no-untyped-call]
        return rows
    return gathered_rows(hidden, positions)


def gathered_rows(hidden: Tensor, positions: Tensor) -> Tensor:
    """Return `gathered` by row numbers: the backward pass then adds whole rows, where that of `gather` adds single numbers.

    On a GPU with deterministic kernels the addition first sorts its indices, which are `hidden` times fewer this way.
    """
    batch, length, width = hidden.shape
    first_rows = torch.arange(0, batch * length, length, device=positions.device)
    rows = (positions + first_rows[:, None]).view(-1)
    return hidden.reshape(batch * length, width).index_select(0, rows).view(batch, -1, width)


def _indices(positions: Tensor, hidden: Tensor) -> Tensor:
    return positions[:, :, None].expand(-1, -1, hidden.shape[2])


class _Gathered(torch.autograd.Function):
    """The same gather with a matrix product as its backward pass, which leaves each sequence on its device.

    The gather's own backward pass adds rows at indices, for which XLA sends all gradients and indices to every TPU core.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, positions: Tensor) -> Tensor:
        ctx.save_for_backward(positions)
        ctx.length = hidden.shape[1]
        return hidden.gather(1, _indices(positions, hidden))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (positions,) = ctx.saved_tensors
        # (batch, sequence, gathered), true where a position was taken, so that gradients of repeated positions add up.
        taken = positions[:, None, :] == torch.arange(ctx.length, device=positions.device)[None, :, None]
        return taken.to(gradient.dtype) @ gradient, None
