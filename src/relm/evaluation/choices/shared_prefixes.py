"""Losses of groups of sequences that begin alike, such as a question's context before each of its choices.

The tokens with which all sequences of a group begin go through the model once, in one row with what follows them in each
(`relm.evaluation.choices.branched_rows`); where a token is scored in several sequences after the same tokens, its logits are
computed once too.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from relm.evaluation.causal_model import CausalModel, require_context
from relm.evaluation.choices.branched_rows import PADDING, SHARED, BranchedRows
from relm.evaluation.models import OwnCausalModel
from relm.evaluation.scoring import (
    Flags,
    Floats,
    Integers,
    ScoredSequences,
    Scores,
    batches,
    concatenated_ranges,
    progress,
    require_finite,
    score,
    token_scores,
)

# The row length at which attention costs as much as all else, for a model of usual width.
COSTLY = 4096


@dataclass(frozen=True)
class Fork:
    """Sequences as one row: the tokens they share, then a branch of each."""

    members: Integers
    """(sequences,) their numbers."""
    input_ids: Integers
    """(length,)"""
    positions: Integers
    """(length,) number of each token in its sequence."""
    branches: Integers
    """(length,) `SHARED`, then the number of each branch from 1."""
    columns: Integers
    """(scored,) column whose output predicts each scored token, sequence by sequence."""
    targets: Integers
    """(scored,) ids of these tokens."""


def score_groups(
    model: CausalModel,
    sequences: ScoredSequences,
    sizes: Iterable[int],
    batch_tokens: int,
    done: Callable[[int], Any] | None = None,
) -> Scores:
    """Return the loss of every scored token, as `score` does but for rounding.

    `sizes` has the count of sequences of each group, which follow one another. A model of `transformers` reads each sequence by
    itself.
    """
    if not isinstance(model, OwnCausalModel):
        return score(model, sequences, batch_tokens, done)
    require_context(model, int((sequences.ends - sequences.starts - 1).max()))
    forks = list(_forks(sequences, sizes))
    offsets = sequences.offsets
    nats, likeliest = np.empty(offsets[-1]), np.empty(offsets[-1], dtype=np.bool_)
    forked = np.concatenate([np.empty(0, np.int64), *[fork.members for fork in forks]])
    alone = np.setdiff1d(np.arange(len(sequences)), forked)
    with torch.inference_mode(), progress(int(offsets[-1]), done) as report:
        for rows in batches(np.array([len(fork.input_ids) for fork in forks], dtype=np.int64), batch_tokens):
            chosen = [forks[row] for row in rows]
            members = np.concatenate([fork.members for fork in chosen])
            indices = concatenated_ranges(offsets[members], sequences.scored[members])
            nats[indices], likeliest[indices] = _fork_scores(model, chosen)
            require_finite(model, nats[indices])
            report(len(indices))
        if len(alone):
            indices = concatenated_ranges(offsets[alone], sequences.scored[alone])
            found = score(model, sequences[alone], batch_tokens, report)
            nats[indices], likeliest[indices] = found.nats, found.likeliest
    return Scores(nats, likeliest)


def _forks(sequences: ScoredSequences, sizes: Iterable[int]) -> Iterator[Fork]:
    """Yield the groups whose one row costs less than their sequences by themselves."""
    first = 0
    for size in sizes:
        members = np.arange(first, first + size)
        rows = [sequences.tokens[sequences.starts[number] : sequences.ends[number]].astype(np.int64) for number in members]
        shared = common_length([row[:-1] for row in rows])
        lengths = np.array([len(row) - 1 for row in rows])
        if _cost(shared + (lengths - shared).sum()) < sum(map(_cost, lengths)):
            yield _fork(members, rows, shared, sequences.scored[members])
        first += size


def common_length(rows: Sequence[npt.NDArray[np.integer]]) -> int:
    """Return with how many equal values all rows begin.

    >>> common_length([np.array([4, 5, 6]), np.array([4, 5, 7, 8]), np.array([4, 5])])
    2
    """
    shortest = min(map(len, rows))
    stacked = np.stack([row[:shortest] for row in rows])
    different = np.flatnonzero((stacked != stacked[0]).any(axis=0))
    return int(different[0]) if len(different) else shortest


def _cost(length: int) -> int:
    """Return what a row of this length costs, in units of a token's work outside attention, times `COSTLY`."""
    return int(length) * (COSTLY + int(length))


def _fork(members: Integers, rows: Sequence[Integers], shared: int, scored: Integers) -> Fork:
    """Return sequences, each with its last token, which no other one sees, as one row."""
    rests = [row[shared:-1] for row in rows]
    sizes = np.array([shared, *map(len, rests)])
    begins = np.cumsum(sizes) - sizes
    columns = []
    for row, begin, count in zip(rows, begins[1:], scored, strict=True):
        places = np.arange(len(row) - 1 - count, len(row) - 1)
        columns.append(np.where(places < shared, places, places - shared + begin))
    return Fork(
        members,
        np.concatenate([rows[0][:shared], *rests]),
        np.concatenate([np.arange(shared), *[np.arange(shared, len(row) - 1) for row in rows]]),
        np.repeat(np.arange(SHARED, SHARED + len(sizes)), sizes),
        np.concatenate(columns),
        np.concatenate([row[len(row) - count :] for row, count in zip(rows, scored, strict=True)]),
    )


def _fork_scores(model: OwnCausalModel, forks: Sequence[Fork]) -> tuple[Floats, Flags]:
    """Return the nats of the scored tokens of a batch of rows, and whether each is the likeliest, (scored,) each."""
    width = max(len(fork.input_ids) for fork in forks)
    arrays = np.zeros((3, len(forks), width), dtype=np.int64)
    arrays[2] = PADDING
    for number, fork in enumerate(forks):
        arrays[:, number, : len(fork.input_ids)] = fork.input_ids, fork.positions, fork.branches
    rows = BranchedRows(*torch.from_numpy(arrays))
    places = np.concatenate([number * width + fork.columns for number, fork in enumerate(forks)])
    read, positions = np.unique(places, return_inverse=True)
    hidden = model.hidden_of_branches(rows, torch.from_numpy(read // width), torch.from_numpy(read % width))
    return token_scores(model, hidden, torch.from_numpy(np.concatenate([fork.targets for fork in forks])), positions)
