"""The recording of an original that trains with torch: what its own calls of clipping and of the optimizer saw."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import torch
from golden_files import hash_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt


@dataclass
class Recording:
    """The figures so far, one for each micro-batch or step."""

    batches: list[list[npt.NDArray[Any]]] = field(default_factory=list)
    """The arrays of each micro-batch, (sequences, ...)."""
    micro_losses: list[float] = field(default_factory=list)
    """The mean loss of each micro-batch."""
    gradient_norms: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)

    def note_batch(self, arrays: Sequence[torch.Tensor], loss: torch.Tensor) -> None:
        """Add a micro-batch's arrays and its mean loss."""
        self.batches.append([array.detach().numpy().copy() for array in arrays])
        self.micro_losses.append(float(loss.detach()))

    def losses(self, micro_batches: int) -> list[float]:
        """Return each step's mean loss."""
        return [float(np.mean(part)) for part in _chunks(self.micro_losses, micro_batches)]

    def hashes(self, micro_batches: int) -> list[str]:
        """Return each step's `hash_batch`."""
        steps = _chunks(self.batches, micro_batches)
        return [hash_batch(np.concatenate(arrays) for arrays in zip(*step)) for step in steps]


def _chunks(values: Sequence[Any], length: int) -> list[Sequence[Any]]:
    return [values[first : first + length] for first in range(0, len(values) - length + 1, length)]


def norm_of(gradients: Sequence[torch.Tensor]) -> float:
    """Return the norm of all gradients together."""
    return float(torch.stack([gradient.norm() for gradient in gradients]).norm())


@contextmanager
def record_optimizers(recording: Recording, kind: type[torch.optim.Optimizer] = torch.optim.AdamW) -> Iterator[None]:
    """Record each step's learning rate, and the norm of its gradient before clipping or, without clipping, at the step."""
    clip, step = torch.nn.utils.clip_grad_norm_, kind.step
    clipped: list[float] = []

    def recorded_clip(*arguments: Any, **options: Any) -> torch.Tensor:
        norm = clip(*arguments, **options)
        clipped.append(float(norm))
        return norm

    def recorded_step(optimizer: torch.optim.Optimizer, *arguments: Any, **options: Any) -> Any:
        recording.learning_rates.append(float(optimizer.param_groups[0]["lr"]))
        gradients = [weight.grad for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]
        recording.gradient_norms.append(clipped.pop() if clipped else norm_of(gradients))
        return step(optimizer, *arguments, **options)

    with patch.object(torch.nn.utils, "clip_grad_norm_", recorded_clip), patch.object(kind, "step", recorded_step):
        yield
