"""Compare nanoGPT's train.py with the recipe `shakespeare_char`.

Its `get_batch` cuts the windows from train.bin. Their starts are those that the twin's seed draws: nanoGPT draws them by
torch's global generator, whose state no recipe can repeat.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from golden_files import Weights
from our_runs import Bounds, Oracle, write_walk

VOCABULARY_SIZE, TOKENS = 65, 4000
SEQUENCE_LENGTH, BATCH_SIZE = 32, 6
WARMUP, DECAY_END = 10, 90
STORED_TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def transpose_projections(weights: Weights) -> Mapping[str, npt.NDArray[np.float32]]:
    """Return weights of torch's linear layers, (out, in), as GPT-2's first code stored them, (in, out)."""
    return {name: weight.T if name.endswith(STORED_TRANSPOSED) else weight for name, weight in weights.items()}


NANOGPT = Oracle(
    name="nanogpt",
    original="karpathy/nanoGPT, train.py",
    recipes=("shakespeare_char", "shakespeare_char_gpu"),
    twin={
        "model": {"layers": 2, "heads": 4, "hidden_size": 32, "positions": SEQUENCE_LENGTH, "dropout": 0.0},
        "pretrain": {
            "main": {
                "sequence_length": SEQUENCE_LENGTH,
                "global_batch_size": BATCH_SIZE,
                "steps": 100,
                "schedule": {"warmup_steps": WARMUP + 1, "decay_end": DECAY_END + 1},
                "precision": "float32",
            }
        },
    },
    run={"micro_batch_size": BATCH_SIZE},
    write_examples=write_walk(TOKENS, VOCABULARY_SIZE),
    convert=transpose_projections,
    bounds=Bounds(),
    note="The starts of windows are relm's draws: nanoGPT draws them by torch's generator.",
)
