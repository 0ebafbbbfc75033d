"""Losses of masked tokens; every evaluation of masked models computes them here.

Sequences of similar length go through the model together, padded to the longest of them.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from relm.errors import RelmError
from relm.evaluation.masked_models import MaskedModel
from relm.evaluation.scoring import LARGEST_LOGITS, Flags, Floats, Integers, batches
from relm.examples.contract import IGNORED
from relm.examples.manifest import Manifest, read_manifest
from relm.examples.tokenization.tokenizer_files import SPECIAL_TOKENS

# Tokens of sequences prepared together, padding included, which bounds the memory besides the model's.
CHUNK = 2**20


class MaskedScores(NamedTuple):
    """Scores of sequences, in the order given."""

    nats: Floats
    """(rows, slots) -ln P of the label in each slot, 0 if there is none."""
    likeliest: Flags
    """(rows, slots) True if no other token has a higher probability: of equal ones the first id counts."""
    next_sentence: Floats | None
    """(rows, 2) -ln P that the second segment follows, and that it does not; None: the model has no such head."""


def score_masked(
    model: MaskedModel, batch: Mapping[str, npt.NDArray[Any]], batch_tokens: int, done: Callable[[int], Any] | None = None
) -> MaskedScores:
    """Return the loss of every masked token of examples as `relm.examples.contract.Examples` defines them.

    A batch has at most `batch_tokens` tokens, padding included, which changes the loss by rounding at most. Activations,
    arrays, and `LARGEST_LOGITS` logits or those of one sequence bound the memory. `done` is called after each batch with
    its number of sequences.
    """
    labels = batch["masked_labels"]
    lengths, counts = batch["attention_mask"].sum(axis=1), (labels != IGNORED).sum(axis=1)
    nats, likeliest = np.zeros(labels.shape), np.zeros(labels.shape, np.bool_)
    pairs = np.zeros((len(labels), 2)) if model.has_next_sentence else None
    with torch.inference_mode():
        for rows in _batches(model, lengths, counts, batch_tokens):
            slots = max(1, int(counts[rows].max()))
            fed = _trimmed(batch, rows, int(lengths[rows].max()), slots)
            found = model.read(fed)
            used = torch.from_numpy(labels[rows, :slots] != IGNORED).to(found.logits.device)
            wanted = torch.from_numpy(labels[rows, :slots]).to(found.logits.device).where(used, 0)
            losses = found.logits.logsumexp(-1) - found.logits.gather(-1, wanted[:, :, None])[:, :, 0]
            nats[rows, :slots] = losses.double().where(used, 0.0).cpu().numpy()
            likeliest[rows, :slots] = ((found.logits.argmax(-1) == wanted) & used).cpu().numpy()
            if pairs is not None and found.next_sentence is not None:
                pairs[rows] = -found.next_sentence.double().log_softmax(-1).cpu().numpy()
            if done is not None:
                done(len(rows))
    if not (np.isfinite(nats).all() and (pairs is None or np.isfinite(pairs).all())):
        raise RelmError(f"{model.folder}: the loss is not finite: training diverged; train with a lower learning rate")
    return MaskedScores(nats, likeliest, pairs)


def _batches(model: MaskedModel, lengths: Integers, counts: Integers, batch_tokens: int) -> Iterator[Integers]:
    """Yield the rows of each batch, with bounded tokens and logits."""
    for together in batches(lengths, batch_tokens):
        logits = model.vocabulary_size * int(counts[together].max())
        at_once = max(1, LARGEST_LOGITS // max(1, logits))
        yield from (together[first : first + at_once] for first in range(0, len(together), at_once))


def _trimmed(batch: Mapping[str, npt.NDArray[Any]], rows: Integers, length: int, slots: int) -> dict[str, torch.Tensor]:
    arrays = {name: batch[name][rows, :length] for name in ("input_ids", "attention_mask", "token_type_ids")}
    arrays["masked_positions"] = batch["masked_positions"][rows, :slots]
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def masked_manifest(path: Path) -> Manifest:
    """Return the manifest of masked examples."""
    facts = read_manifest(path)
    if facts.objective != "masked":
        raise RelmError(
            f"{path}: holds {facts.objective} examples, expected masked ones; give the manifest of a masked phase's examples"
        )
    facts.split("held_out", path)
    if not facts.splits["held_out"].examples:
        raise RelmError(f"{path}: split held_out has no examples to score; use more documents")
    return facts


def mask_token(mask: int | None, path: Path) -> int:
    """Return the id of a tokenizer's mask token, or raise if it has none; `path` is the tokenizer's or its examples'."""
    if mask is None:
        names = " or ".join(SPECIAL_TOKENS["mask"])
        raise RelmError(f"{path}: the tokenizer has no mask token {names}, so nothing can be masked; use one with a mask token")
    return mask


def require_positions(model: MaskedModel, longest: int) -> None:
    """Reject sequences that are longer than the model's positions."""
    if model.positions is not None and longest > model.positions:
        raise RelmError(
            f"{model.folder}: has {model.positions} positions, but the longest sequence has {longest} tokens; "
            "build examples with a shorter sequence_length"
        )


def split_rows(rows: int, length: int) -> Iterator[Integers]:
    """Yield all numbers below `rows` in order, in chunks of sequences of this length to prepare together."""
    size = max(1, CHUNK // length)
    yield from (np.arange(first, min(first + size, rows)) for first in range(0, rows, size))
