"""Compare llama2.c's train.py with the recipe `stories260k`.

Its batches are relm's windows of a stream of tokens: llama2.c draws the order of its files and windows by Python's generator.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from golden_files import Weights, draw_tokens
from our_runs import Oracle, write_stream

VOCABULARY_SIZE, TOKENS = 65, 4000
SEQUENCE_LENGTH, MICRO_BATCH_SIZE, MICRO_BATCHES, WARMUP, STEPS = 32, 3, 2, 10, 100
LAYERS, HEADS, KEY_VALUE_HEADS, HIDDEN_SIZE = 2, 4, 2, 32
# Matrices of a layer in llama2.c, (out, in) -> in relm, (in, out).
MATRICES = {
    "attention.wo": "attn.c_proj",
    "feed_forward.w1": "mlp.c_gate",
    "feed_forward.w2": "mlp.c_proj",
    "feed_forward.w3": "mlp.c_fc",
}
NORMS = {"attention_norm": "ln_1", "ffn_norm": "ln_2"}


def write_examples(folder: Path) -> Path:
    """Write a stream of tokens, and return its manifest."""
    return write_stream(folder, draw_tokens(TOKENS, VOCABULARY_SIZE), [TOKENS], VOCABULARY_SIZE, end_of_text_id=1)


def convert(weights: Weights) -> Mapping[str, npt.NDArray[np.float32]]:
    """Return the weights under relm's names, with queries, keys and values in one matrix."""
    own = {"transformer.wte.weight": weights["tok_embeddings.weight"], "transformer.ln_f.weight": weights["norm.weight"]}
    for layer in range(LAYERS):
        theirs, ours = f"layers.{layer}.", f"transformer.h.{layer}."
        query, key, value = (weights[f"{theirs}attention.w{part}.weight"] for part in "qkv")
        joined = [by_halves(query, HEADS), by_halves(key, KEY_VALUE_HEADS), value]
        own[f"{ours}attn.c_attn.weight"] = np.concatenate(joined).T
        own |= {f"{ours}{mine}.weight": weights[f"{theirs}{name}.weight"].T for name, mine in MATRICES.items()}
        own |= {f"{ours}{mine}.weight": weights[f"{theirs}{name}.weight"] for name, mine in NORMS.items()}
    return own


def by_halves(matrix: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Return a projection whose rotated pairs are the halves of a head, not neighbours as in llama2.c."""
    pairs = matrix.reshape(heads, -1, 2, matrix.shape[1])
    return pairs.transpose(0, 2, 1, 3).reshape(matrix.shape)


LLAMA2_C = Oracle(
    name="llama2_c",
    original="karpathy/llama2.c, train.py",
    recipes=("stories260k",),
    twin={
        "model": {
            "layers": LAYERS, "heads": HEADS, "key_value_heads": KEY_VALUE_HEADS, "hidden_size": HIDDEN_SIZE,
            "positions": SEQUENCE_LENGTH, "dropout": 0.0,
        },
        "pretrain": {
            "main": {
                "sequence_length": SEQUENCE_LENGTH,
                "global_batch_size": MICRO_BATCH_SIZE * MICRO_BATCHES,
                "steps": STEPS,
                "schedule": {"warmup_steps": WARMUP},
                "precision": "float32",
            }
        },
    },
    run={"micro_batch_size": MICRO_BATCH_SIZE},
    write_examples=write_examples,
    convert=convert,
    note="The windows are relm's draws: llama2.c draws files and windows by Python's generator.",
)  # fmt: skip
