"""Checks that reject models whose losses would mean nothing."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from relm.errors import RelmError

# Largest difference of logits between two computations of one model, absolute and relative.
PROBE_TOLERANCE = 1e-4
NOT_FINITE = "the model's logits are not finite: training diverged; lower the learning rate and train again"


def alike(some: Tensor, others: Tensor) -> bool:
    """Return whether two arrays are equal but for rounding."""
    return some.shape == others.shape and torch.allclose(some, others, PROBE_TOLERANCE, PROBE_TOLERANCE)


def require_finite_weights(folder: Path, model: nn.Module) -> None:
    """Reject a model with a weight that is NaN or infinite.

    A buffer that is saved with the weights, such as a mask or a bound, may be infinite but not NaN: some are learnt, and if a
    NaN only chooses a model's experts, the logits stay finite.
    """
    saved = model.state_dict().keys()
    buffers = [(name, each) for name, each in model.named_buffers() if name in saved and each.is_floating_point()]
    odd = [(name, bound) for name, each in model.named_parameters() for bound in _bounds(each) if not math.isfinite(bound)]
    odd += [(name, bound) for name, each in buffers for bound in _bounds(each) if math.isnan(bound)]
    if odd:
        raise RelmError(
            f"{folder}: the weight {odd[0][0]} has {odd[0][1]}, expected finite numbers: training diverged, or the file is "
            "damaged; give an earlier checkpoint, or train again with a lower learning rate"
        )


def _bounds(weight: Tensor) -> list[float]:
    """Return the least and largest number of an array, both NaN if it has a NaN; an empty list for an empty array."""
    return [bound.item() for bound in weight.detach().aminmax()] if weight.numel() else []


def require_finite_logits(folder: Path, logits: Tensor) -> None:
    """Reject a model whose largest logits are not finite; ids without a token have minus infinity."""
    if not bool(logits.amax(-1).isfinite().all()):
        raise RelmError(
            f"{folder}: the logits are not finite, though the weights are: they are too large, or config.json does not fit "
            "them. Give an earlier checkpoint, or the configuration that the model was trained with"
        )


def require_causal(folder: Path, logits: Tensor) -> None:
    """Reject a model that is not causal, by its (2, sequence, vocabulary) logits for inputs that differ in the last token."""
    before = logits[:, :-1]
    if not alike(before[0], before[1]):
        raise RelmError(f"{folder}: sees later tokens, so its losses mean nothing; give a causal language model")


def require_vocabulary(folder: Path, model: int, tokenizer: int) -> None:
    """Reject a tokenizer with ids that the model lacks."""
    if model < tokenizer:
        raise RelmError(
            f"{folder}: the model has {model:,} tokens, the tokenizer {tokenizer:,}; give the tokenizer it was trained with"
        )
