"""Copy tensors to main memory, so that training can change them while a checkpoint is written."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from relm import limits

# Share of the available memory that copies may take: the steps that follow need some as well.
SHARE = 0.8


def fit_into_memory(tensors: Iterable[Tensor], times: int = 1) -> bool:
    """Return True if copies of the tensors, each `times` as large as its tensor, fit into the available memory."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return times * size <= SHARE * limits.available_memory()


def clone_tensors(tensors: Sequence[Tensor]) -> list[Tensor] | None:
    """Return contiguous copies of tensors in main memory; None: they do not fit."""
    if not fit_into_memory(tensors):
        return None
    return [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]
