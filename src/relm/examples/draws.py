"""Counter-based random numbers: a draw follows from the example's key (`order.row_keys`) and the draw's index.

Unlike a generator they have no state: any part of any example can be drawn by itself, and is the same in every batch.
"""

import numpy as np
import numpy.typing as npt

from relm.examples.order import mixed

Draws = npt.NDArray[np.uint64]
# 2**64 divided by the golden ratio, odd: the steps of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
STEP = 0x9E3779B97F4A7C15


def drawn(keys: Draws, number: int | npt.NDArray[np.integer]) -> Draws:
    """Return the draws with these indices, one for all keys or an array that broadcasts with them, as 64 random bits each."""
    steps = np.asarray(number).astype(np.uint64) * np.array([STEP], np.uint64)
    return mixed(keys + (steps if np.ndim(number) else steps[0]))


def drawn_tokens(
    keys: Draws, length: int, vocabulary_size: int, last: int | None = None, first: int | None = None
) -> npt.NDArray[np.int64]:
    """Draw (rows, length) tokens below `vocabulary_size`, the first and last of each row given or drawn as well."""
    tokens = below(drawn(keys[:, None], np.arange(length)[None]), vocabulary_size)
    for position, token in ((-1, last), (0, first)):
        if token is not None:
            tokens[:, position] = token
    return tokens


def happens(draws: Draws, probability: float) -> npt.NDArray[np.bool_]:
    """Return True for this share of draws."""
    return (draws >> np.uint64(11)) * 2.0**-53 < probability  # 53 bits, all that a float64 holds exactly


def below(draws: Draws, limit: int | npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Return an integer from 0 to `limit` - 1 for each draw; limits are far below 2**64, so the bias is negligible."""
    return (draws % np.asarray(limit).astype(np.uint64)).astype(np.int64)
