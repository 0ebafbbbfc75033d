"""Choose the tokens of rows to mask, and replace them: pure functions on arrays of token ids.

They make the masks of BERT (Devlin et al. 2019, section 3.1) and RoBERTa (Liu et al. 2019, section 4.1). Every candidate (a
token, or with `whole_words` a word) gets a random number from its row's key and its position. `exact` takes candidates by
ascending number up to the required count, skipping words that would exceed it; `bernoulli` takes those below the probability.
The draws of a row depend on nothing else: not on its neighbours, the batch or the number of processes.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.draws import Draws, drawn
from relm.examples.tokenization.tokenizer_files import SpecialIds
from relm.recipes.objectives import Masked, Objective

Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]
Ids = npt.NDArray[np.integer]

# Positions in rows that are masked together, so that intermediate results stay in the cache.
BLOCK = 2**16
OVERFLOW_CHANCE = 1e-8
# Draws from this index on decide replacements; those before decide which tokens are masked.
REPLACEMENTS = 2**16
LAST = np.uint32(2**32 - 1)


class MaskedRows(NamedTuple):
    """Rows whose masked tokens are replaced."""

    input_ids: Ids
    """(rows, L)."""
    positions: npt.NDArray[np.uint16]
    """(rows, P), positions of masked tokens, ascending; 0 in unused entries at the end."""
    labels: Ids
    """(rows, P), the original tokens; 0 in unused entries."""
    counts: npt.NDArray[np.uint16]
    """(rows,), number of masked tokens."""


def capacity(options: Masked, sequence_length: int) -> int:
    """Return how many positions each row has for masked tokens.

    With `bernoulli` and without `max_predictions` it is the least multiple of 8 that a row exceeds with a chance below 1e-8,
    such as 128 of 512 at 15 %.
    """
    if options.selection == "exact":
        most = max(1, round(options.probability * sequence_length))
        return min(most, options.max_predictions or most)
    if options.max_predictions is not None:
        return min(options.max_predictions, sequence_length)
    return min(sequence_length, -(-_binomial_bound(sequence_length, options.probability) // 8) * 8)


def prediction_capacity(objective: Objective) -> int:
    """Return how many positions a row has for masked tokens: `capacity`, or the fixed number of an original's script."""
    if objective.as_published is not None and objective.masked.masks == "static" and objective.masked.max_predictions:
        return objective.masked.max_predictions
    return capacity(objective.masked, objective.sequence_length)


def masked_lengths(objective: Objective) -> tuple[int, int, int]:
    """Return the lengths of an example, which is scored only at its positions for masked tokens."""
    return objective.sequence_length, 0, prediction_capacity(objective)


def _binomial_bound(number: int, probability: float) -> int:
    """Return the least value that a binomial variable exceeds with a chance below `OVERFLOW_CHANCE`."""
    # In logarithms, because `probability ** number` underflows for long rows.
    odds, above, value = math.log(probability) - math.log1p(-probability), 0.0, number
    log_chance = number * math.log(probability)
    while value > 0 and above + math.exp(log_chance) < OVERFLOW_CHANCE:
        above += math.exp(log_chance)
        log_chance += math.log(value) - math.log(number - value + 1) - odds
        value -= 1
    return value


def mask_rows(
    input_ids: Ids,
    lengths: Ids,
    keys: Draws,
    options: Masked,
    special: SpecialIds,
    vocabulary_size: int,
    places: int,
    word_starts: Flags | None = None,
) -> MaskedRows:
    """Mask tokens of rows: `input_ids` (rows, L), which stay unchanged, and `lengths` (rows,) without padding.

    `keys` (rows,) come from `order.row_keys`, `places` is P, see `capacity`. [CLS] and [SEP] are never masked, and a random
    replacement is never a special token. Whole words need `word_starts`, (rows, L); a word also begins after every token that
    cannot be masked.
    """
    rows, length = input_ids.shape
    result = MaskedRows(
        input_ids.copy(),
        np.zeros((rows, places), np.uint16),
        np.zeros((rows, places), input_ids.dtype),
        np.zeros(rows, np.uint16),
    )
    slots = np.arange(places, dtype=np.uint16)
    for part in _blocks(rows, length):
        candidate = candidates(input_ids[part], lengths[part], special)
        words = word_starts[part] if options.whole_words and word_starts is not None else None
        masked = selected(keys[part], candidate, lengths[part], options, places, words)
        counts = np.count_nonzero(masked, axis=1)
        flat = np.flatnonzero(masked)
        row = np.repeat(np.arange(len(counts)), counts)
        position = flat - row * length
        draws = drawn(keys[part][row], REPLACEMENTS + position)
        labels = input_ids[part].ravel()[flat]
        used = slots < counts.astype(np.uint16)[:, None]
        result.positions[part][used] = position
        result.labels[part][used] = labels
        result.counts[part] = counts
        result.input_ids[part].ravel()[flat] = replaced(draws, labels, options, special, vocabulary_size)
    return result


def _blocks(rows: int, length: int) -> Iterator[slice]:
    step = max(1, BLOCK // length)
    yield from (slice(start, start + step) for start in range(0, rows, step))


def candidates(input_ids: Ids, lengths: Ids, special: SpecialIds) -> Flags:
    """Return (rows, L), True for tokens that may be masked: all except [CLS], [SEP] and padding."""
    result: Flags = np.arange(input_ids.shape[1], dtype=np.uint16) < lengths.astype(np.uint16)[:, None]
    for token in (special.cls, special.sep):
        if token is not None:
            result &= input_ids != token
    return result


def selected(
    keys: Draws, candidate: Flags, lengths: Ids, options: Masked, places: int, word_starts: Flags | None = None
) -> Flags:
    """Return (rows, L), True for masked tokens.

    With `exact` their number is the probability times the row's length, rounded half to even, at least one and at most
    `places`; the length includes special tokens, as in the originals.
    """
    exact = options.selection == "exact"
    # `exact` takes any number; a probability of 1 must not overflow 32 bits.
    limit = LAST if exact else np.uint32(min(options.probability * 2.0**32, 2.0**32 - 1))
    wanted = np.full(len(keys), places)
    if exact:
        wanted = np.clip(np.rint(options.probability * lengths).astype(np.int64), 1, places)
    unit = candidate if word_starts is None else candidate & _boundaries(candidate, word_starts)
    # Tokens that cannot be drawn get the largest number, and are sorted to the end.
    order = _order(keys, candidate.shape[1]) | np.multiply(~unit, LAST)
    ranked = np.sort(order, axis=1)
    if word_starts is not None:
        return _whole_words(ranked, ~candidate | unit, wanted, limit)
    # One number more than fits is enough to see that a row has too many.
    found = np.count_nonzero(ranked[:, : places + 1] < limit, axis=1)
    if not exact and options.max_predictions is None and (found > places).any():
        raise RelmError(
            f"masked.selection: bernoulli drew more than {places} tokens of one sequence, a chance of one in "
            f"{1 / OVERFLOW_CHANCE:,.0f}; set masked.max_predictions: {places}, or another seed"
        )
    wanted = np.minimum(wanted, found)
    last = np.take_along_axis(ranked, np.maximum(wanted - 1, 0)[:, None], axis=1)
    masked: Flags = candidate & (order <= last) & (wanted > 0)[:, None]
    return masked


def _boundaries(candidate: Flags, word_starts: Flags) -> Flags:
    """Return True where a word, or a token that cannot be masked, begins; a truncated word begins with its row or segment."""
    boundary = word_starts | ~candidate
    boundary[:, 0] = True
    boundary[:, 1:] |= ~candidate[:, :-1]
    return boundary


def _order(keys: Draws, length: int) -> npt.NDArray[np.uint32]:
    """Return (rows, length), a random number for each position; its lowest bits are the position, so all in a row differ."""
    draws = drawn(keys[:, None], np.arange(-(-length // 2))).view(np.uint32)[:, :length]
    bits = (length - 1).bit_length()
    return draws >> np.uint32(bits) << np.uint32(bits) | np.arange(length, dtype=np.uint32)


def _whole_words(ranked: npt.NDArray[np.uint32], boundary: Flags, wanted: Integers, limit: np.uint32) -> Flags:
    """Return the tokens of words, taken in the order of their numbers; a word that would exceed `wanted` is skipped.

    `ranked`, (rows, L), has the numbers of `_order` of the words' first tokens, ascending; others are `LAST`. `boundary`,
    (rows, L), is True where a word begins, or a token outside words. Only words with a number below `limit` are offered.
    """
    rows, length = boundary.shape
    ends = np.append(boundary.ravel(), True)
    position_bits = np.uint32(2 ** (length - 1).bit_length() - 1)
    masked = np.zeros(rows * length, np.bool_)
    step = max(1, int(wanted.max(initial=1)))  # this many words of one token fill a row
    open_rows, left = np.arange(rows), wanted.copy()
    for column in range(0, length, step):
        offered = ranked[open_rows, column : column + step]
        there = offered < limit
        starts = (offered & position_bits) + (open_rows * length)[:, None]
        sizes = np.zeros(offered.shape, np.int32)
        sizes[there] = _sizes(ends, starts[there])
        taken = choose_fitting(sizes, left)
        masked[_filled(starts[taken], sizes[taken])] = True
        left = left - np.multiply(sizes, taken).sum(axis=1)
        again = (left > 0) & there[:, -1]
        open_rows, left = open_rows[again], left[again]
        if not len(open_rows):
            break
    return masked.reshape(rows, length)


def _sizes(ends: Flags, starts: Integers) -> npt.NDArray[np.int32]:
    """Return the count of tokens from each start to the next boundary."""
    sizes = np.ones(len(starts), np.int32)
    growing = np.arange(len(starts))
    while len(growing):
        growing = growing[~ends[starts[growing] + sizes[growing]]]
        sizes[growing] += 1
    return sizes


def _filled(starts: Integers, sizes: npt.NDArray[np.integer]) -> Integers:
    """Return the concatenated ranges of `sizes` numbers from each start on.

    >>> _filled(np.array([10, 5]), np.array([2, 3]))
    array([10, 11,  5,  6,  7])
    """
    shifts: Integers = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    return shifts + np.arange(len(shifts))


def choose_fitting(sizes: npt.NDArray[np.integer], room: Integers) -> Flags:
    """Take a row's items in turn, each if it still fits, and return True for those that were taken.

    `sizes` are (rows, items), 0 for no item; `room` is (rows,).

    >>> choose_fitting(np.array([[2, 3, 1, 1]]), np.array([4]))
    array([[ True, False,  True,  True]])
    """
    taken = np.zeros(sizes.shape, np.bool_)
    rows, left, offered = np.arange(len(sizes)), room.astype(sizes.dtype), sizes
    while len(rows):
        fitting = np.where(offered <= left[:, None], offered, 0)
        sums = np.cumsum(fitting, axis=1, dtype=np.int32)
        now = sums <= left[:, None]  # all before the first that no longer fits
        now &= fitting > 0
        taken[rows] |= now
        used = np.multiply(fitting, now).sum(axis=1, dtype=np.int32)
        # That one is larger than the room left, as are all skipped before it: the next round begins after it.
        again = np.flatnonzero((sums[:, -1] > left) & (used < left))
        rows, left, offered = rows[again], (left - used)[again], np.where(now[again], 0, offered[again])
    return taken


def replaced(draws: Draws, tokens: Ids, options: Masked, special: SpecialIds, vocabulary_size: int) -> Ids:
    """Return the replacements of masked tokens, (tokens,): the mask, a random ordinary token, or the token itself."""
    assert special.mask is not None, "see `masked.require_special`"
    # The lower half of a draw decides the kind of replacement, the upper half which random token.
    chance = (draws & np.uint64(LAST)) * 2.0**-32
    result = np.where(chance < options.mask_share, tokens.dtype.type(special.mask), tokens)
    is_random = np.flatnonzero((chance >= options.mask_share) & (chance < options.mask_share + options.random_share))
    specials = sorted({token for token in vars(special).values() if token is not None})
    number = ((draws[is_random] >> np.uint64(32)) * np.uint64(vocabulary_size - len(specials))) >> np.uint64(32)
    for token in specials:  # ascending, so that each shifts the numbers above it
        number += number >= token
    result[is_random] = number
    return result
