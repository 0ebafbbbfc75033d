"""The one place that scores tokens: sequences in, the loss of each scored token out, whatever the protocol.

A protocol says which tokens are scored and what each of them sees, as sequences that share one array of tokens. Here they are
sorted by length, batched, and pushed through the model; the head sees the scored places alone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from tqdm import tqdm

from relm.errors import RelmError
from relm.evaluation.models import CausalModel, SelectiveModel, require_context

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
# Logits in memory at once: an eighth of a gigabyte in float32, and as much again while their logarithms are summed.
LARGEST_LOGITS = 2**25


@dataclass(frozen=True)
class ScoredSequences:
    """Sequences of tokens of which the last ones are scored, each given those before it in the sequence.

    Raises:
        ValueError: a sequence is not within the tokens, scores nothing, or scores its first token.
    """

    tokens: npt.NDArray[np.integer]
    """(tokens,) ids, which sequences may share: windows overlap, and cost nothing."""
    starts: Integers
    """(sequences,) where each begins in `tokens`."""
    ends: Integers
    """(sequences,) where each ends, its last token excluded as usual."""
    scored: Integers
    """(sequences,) how many of its last tokens are scored: at least 1, and fewer than it has, for the first sees nothing."""
    every_first: int | None = None
    """An id that replaces the first token of every sequence; None: they stay."""

    def __post_init__(self) -> None:
        if not len(self.starts) == len(self.ends) == len(self.scored):
            raise ValueError(f"{len(self.starts)} starts, {len(self.ends)} ends, {len(self.scored)} numbers of scored tokens")
        wrong = (self.starts < 0) | (self.ends > len(self.tokens))
        wrong |= (self.scored < 1) | (self.scored >= self.ends - self.starts)
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                f"sequence {place} scores {self.scored[place]} tokens of {self.starts[place]} to {self.ends[place]} of "
                f"{len(self.tokens)}: expected at least one, and never its first"
            )

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def offsets(self) -> Integers:
        """(sequences + 1,) where the scored tokens of each sequence begin in `Scores`."""
        return np.concatenate([[0], np.cumsum(self.scored, dtype=np.int64)])


@dataclass(frozen=True)
class Scores:
    """Of each scored token, in the order of the sequences and within them."""

    nats: Floats
    """(scored,) -ln P."""
    likeliest: Flags
    """(scored,) whether no other token had a higher probability: of equal ones the first id counts."""


def score(
    model: CausalModel, sequences: ScoredSequences, batch_tokens: int, done: Callable[[int], Any] | None = None
) -> Scores:
    """The loss of every scored token; batches change it by rounding at most.

    Memory is bounded by a batch: its activations, and `LARGEST_LOGITS` logits.

    Args:
        batch_tokens: tokens at once, padding included.
        done: told after each batch how many tokens were scored; None: a progress bar is.

    Raises:
        RelmError: a sequence is longer than the model takes, or a loss is not finite.
    """
    offsets, lengths = sequences.offsets, sequences.ends - sequences.starts - 1  # the last token is seen by none
    if len(lengths):
        require_context(model, int(lengths.max()))
    total = int(offsets[-1])
    nats, likeliest = np.empty(total), np.empty(total, dtype=np.bool_)
    with torch.inference_mode(), _progress(total, done) as tell:
        for rows in batches(lengths, batch_tokens):
            places = _concatenated_ranges(offsets[rows], sequences.scored[rows])
            nats[places], likeliest[places] = _batch_scores(model, sequences, rows)
            if not np.isfinite(nats[places]).all():
                raise RelmError(
                    f"{model.folder}: its loss is not finite: training diverged; lower the learning rate and train again"
                )
            tell(len(places))
    return Scores(nats, likeliest)


@contextmanager
def _progress(total: int, done: Callable[[int], Any] | None) -> Iterator[Callable[[int], Any]]:
    """Whom to tell how many more tokens were scored."""
    if done is not None:
        yield done
        return
    with tqdm(total=total, unit=" tokens", unit_scale=True, disable=None) as bar:
        yield bar.update


def batches(lengths: Integers, batch_tokens: int) -> Iterator[Integers]:
    """Numbers of sequences that go through the model together: longest first, so that hardly anything is padded."""
    order = np.argsort(-lengths, kind="stable")
    first = 0
    while first < len(order):
        count = max(1, batch_tokens // int(lengths[order[first]]))
        yield order[first : first + count]
        first += count


def _concatenated_ranges(starts: Integers, sizes: Integers) -> Integers:
    """
    >>> _concatenated_ranges(np.array([10, 5]), np.array([2, 3]))
    array([10, 11,  5,  6,  7])
    """
    found: Integers = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
    return found


def _batch_scores(model: CausalModel, sequences: ScoredSequences, rows: Integers) -> tuple[Floats, Flags]:
    """(scored,) nats, and whether each token is the likeliest, of some sequences together."""
    starts, scored = sequences.starts[rows], sequences.scored[rows]
    lengths = sequences.ends[rows] - starts - 1
    # A place beyond a sequence's end reads its last token again; nothing before it sees that.
    columns = np.minimum(np.arange(lengths.max()), lengths[:, None] - 1)
    inputs = torch.from_numpy(sequences.tokens[starts[:, None] + columns].astype(np.int64))
    if sequences.every_first is not None:
        inputs[:, 0] = sequences.every_first
    row = np.repeat(np.arange(len(rows)), scored)
    column = _concatenated_ranges(lengths - scored, scored)
    targets = torch.from_numpy(sequences.tokens[starts[row] + column + 1].astype(np.int64))
    return _token_scores(model, _hidden_at(model, inputs, row, column), targets)


def _hidden_at(model: CausalModel, inputs: Tensor, row: Integers, column: Integers) -> Tensor:
    """(places, width): what the head reads at some places."""
    if isinstance(model, SelectiveModel):
        return model.hidden_at(inputs, torch.from_numpy(row), torch.from_numpy(column))
    hidden = model.hidden(inputs)
    return hidden.flatten(0, 1)[torch.from_numpy(row * inputs.shape[1] + column).to(hidden.device)]


def _token_scores(model: CausalModel, hidden: Tensor, targets: Tensor) -> tuple[Floats, Flags]:
    """(places, width) and (places,) ids -> (places,) nats, and whether the id is the likeliest."""
    targets = targets.to(hidden.device)
    nats, likeliest = [], []
    at_once = max(1, LARGEST_LOGITS // model.vocabulary_size)
    for first in range(0, len(targets), at_once):
        logits = model.head(hidden[first : first + at_once])
        target = targets[first : first + at_once]
        nats.append(logits.logsumexp(-1) - logits.gather(1, target[:, None])[:, 0])
        likeliest.append(logits.argmax(-1) == target)
    return torch.cat(nats).double().cpu().numpy(), torch.cat(likeliest).cpu().numpy()
