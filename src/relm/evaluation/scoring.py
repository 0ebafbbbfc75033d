"""Losses of tokens by a causal model; every protocol computes them here.

A protocol chooses the scored tokens and what each of them sees, as sequences that share one array of tokens. This module
sorts them by length, batches them and runs the model; the head reads only the scored positions.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from relm.errors import RelmError
from relm.evaluation.causal_model import CausalModel, require_context
from relm.progress import ProgressBar

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
# Logits in memory at once: an eighth of a gigabyte in float32, and as much again during logsumexp.
LARGEST_LOGITS = 2**25


@dataclass(frozen=True)
class ScoredSequences:
    """Sequences of tokens whose last tokens are scored, each given the earlier ones in its sequence."""

    tokens: npt.NDArray[np.integer]
    """(tokens,) ids, which sequences may share, so that overlapping windows cost nothing."""
    starts: Integers
    """(sequences,) index in `tokens` at which each begins."""
    ends: Integers
    """(sequences,) index in `tokens` at which each ends, exclusive."""
    scored: Integers
    """(sequences,) number of last tokens to score: at least 1, and not all, for the first sees nothing."""

    def __post_init__(self) -> None:
        inside = (self.starts >= 0) & (self.ends <= len(self.tokens))
        if not (inside & (self.scored >= 1) & (self.scored < self.ends - self.starts)).all():
            raise ValueError("a sequence scores no token, its first one, or one beyond the array")

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def offsets(self) -> Integers:
        """Return the index in `Scores` at which each sequence's scored tokens begin, and the end, (sequences + 1,)."""
        return np.concatenate([[0], np.cumsum(self.scored, dtype=np.int64)])

    def __getitem__(self, rows: Integers) -> "ScoredSequences":
        """Return some of the sequences."""
        return replace(self, starts=self.starts[rows], ends=self.ends[rows], scored=self.scored[rows])


@dataclass(frozen=True)
class Scores:
    """Scores of each scored token, in the order of the sequences and within them."""

    nats: Floats
    """(scored,) -ln P."""
    likeliest: Flags
    """(scored,) True if no other token has a higher probability: of equal ones the first id counts."""


def score(
    model: CausalModel, sequences: ScoredSequences, batch_tokens: int, done: Callable[[int], Any] | None = None
) -> Scores:
    """Return the loss of every scored token; batches change it by rounding at most.

    A batch has at most `batch_tokens` tokens, padding included; its activations and `LARGEST_LOGITS` logits bound the memory.
    `done` is called after each batch with its number of scored tokens; None: show a progress bar.
    """
    offsets, lengths = sequences.offsets, sequences.ends - sequences.starts - 1  # nothing sees the last token
    if len(lengths):
        require_context(model, int(lengths.max()))
    total = int(offsets[-1])
    nats, likeliest = np.empty(total), np.empty(total, dtype=np.bool_)
    hidden = True if done is not None else None
    with torch.inference_mode(), ProgressBar(total=total, unit=" tokens", unit_scale=True, disable=hidden) as bar:
        for rows in batches(lengths, batch_tokens, model.short_rows):
            indices = concatenated_ranges(offsets[rows], sequences.scored[rows])
            found, likeliest[indices] = _batch_scores(model, sequences, rows)
            if not np.isfinite(found).all():
                raise RelmError(f"{model.folder}: the loss is not finite: training diverged; train with a lower learning rate")
            nats[indices] = found
            (done or bar.update)(len(indices))
    return Scores(nats, likeliest)


def batches(lengths: Integers, batch_tokens: int, short: int | None = None) -> Iterator[Integers]:
    """Yield the indices of each batch's sequences, longest first, with little padding.

    No batch mixes sequences of at most `short` tokens with longer ones.
    """
    order = np.argsort(-lengths, kind="stable")
    longer = 0 if short is None else int((lengths > short).sum())
    first = 0
    while first < len(order):
        count = max(1, batch_tokens // int(lengths[order[first]]))
        count = min(count, longer - first) if first < longer else count
        yield order[first : first + count]
        first += count


def concatenated_ranges(starts: Integers, sizes: Integers) -> Integers:
    """Return the concatenation of ranges of these starts and sizes.

    >>> concatenated_ranges(np.array([10, 5]), np.array([2, 3]))
    array([10, 11,  5,  6,  7])
    """
    found: Integers = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
    return found


def _batch_scores(model: CausalModel, sequences: ScoredSequences, rows: Integers) -> tuple[Floats, Flags]:
    """Return the nats of the scored tokens of a batch, and whether each is the likeliest, (scored,) each."""
    starts, scored = sequences.starts[rows], sequences.scored[rows]
    lengths = sequences.ends[rows] - starts - 1
    # Padding repeats a sequence's last token; nothing before it sees that.
    columns = np.minimum(np.arange(lengths.max()), lengths[:, None] - 1)
    inputs = torch.from_numpy(sequences.tokens[starts[:, None] + columns].astype(np.int64))
    row = np.repeat(np.arange(len(rows)), scored)
    column = concatenated_ranges(lengths - scored, scored)
    targets = torch.from_numpy(sequences.tokens[starts[row] + column + 1].astype(np.int64))
    hidden = model.hidden_at(inputs, torch.from_numpy(row), torch.from_numpy(column))
    nats, likeliest = np.empty(len(targets)), np.empty(len(targets), dtype=np.bool_)
    at_once = max(1, LARGEST_LOGITS // model.vocabulary_size)
    for first in range(0, len(hidden), at_once):
        part = slice(first, first + at_once)
        logits = model.head(hidden[part])
        nats[part], likeliest[part] = _token_scores(logits, targets[part].to(logits.device))
    return nats, likeliest


def _token_scores(logits: Tensor, targets: Tensor) -> tuple[Floats, Flags]:
    """Return the nats of each target, and whether it is the likeliest id, from (targets, vocabulary) logits."""
    chosen = logits.gather(-1, targets[:, None])[:, 0]
    likeliest = chosen == logits.amax(-1)
    likeliest[likeliest.clone()] = logits[likeliest].argmax(-1) == targets[likeliest]  # the slow search for the first of equals
    nats = logits.logsumexp(-1) - chosen
    return nats.double().cpu().numpy(), likeliest.cpu().numpy()
