"""Twin size of Graphcore's GPT-2, for both sides. Imports nothing of relm, which the original's Python 3.8 does not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from golden_files import SEED

if TYPE_CHECKING:
    import numpy.typing as npt

VOCABULARY_SIZE, SEQUENCE_LENGTH, LAYERS, HEADS, HIDDEN_SIZE = 72, 32, 2, 4, 32
# 100 updates are 25 calls of the device.
UPDATES_OF_A_CALL, GRADIENT_ACCUMULATION, EPOCHS = 4, 4, 2
CALLS = 25
# The original divides its calls by the epochs, rounds down, and multiplies again.
DECAY_CALLS = 24
WARMUP_SHARE = 0.2
DOCUMENTS = 41


def draw_documents() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return concatenated documents, each a random walk and an end of text (0), and their sizes."""
    draws = np.random.RandomState(SEED)
    sizes = draws.randint(130, 200, DOCUMENTS).astype(np.int32)
    tokens = 1 + draws.randint(-2, 3, sizes.sum()).cumsum() % (VOCABULARY_SIZE - 1)
    tokens[np.cumsum(sizes) - 1] = 0
    return tokens.astype(np.int32), sizes
