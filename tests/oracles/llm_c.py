"""Compare llm.c's two programs for a CPU, train_gpt2.py and train_gpt2.c, with the recipe `gpt2_124m_fineweb10b`.

The recipe's own program, train_gpt2.cu, needs a GPU. The program train_gpt2.py has the same optimizer, clipping and schedule,
and reads its shards in order: here each holds one batch, in the order in which llm.c's C code shuffles them. The program
train_gpt2.c has that order itself, a constant learning rate, and no clipping or decay: its twin follows it in that.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from golden_files import SEED, STEPS, Weights
from nanogpt import transpose_projections
from our_runs import Bounds, Oracle, write_shards

VOCABULARY_SIZE, SEQUENCE_LENGTH, LAYERS, HEADS, HIDDEN_SIZE = 61, 32, 2, 4, 32
BATCH, MICRO_BATCHES, WARMUP = 2, 2, 10
# Tokens of each shard: training reads the first epoch of them to its end, and begins the second.
SHARDS = (4000, 3500, 3001)


def draw_shards() -> list[npt.NDArray[np.int64]]:
    """Return the shards' tokens, a random walk each."""
    draws = np.random.RandomState(SEED)
    return [draws.randint(-2, 3, count).cumsum() % VOCABULARY_SIZE for count in SHARDS]


def write_examples(folder: Path) -> Path:
    """Write the shards as relm's examples."""
    return write_shards(folder, draw_shards(), VOCABULARY_SIZE, end_of_text_id=0)


def twin(batch: int, global_batch_size: int, **optimization: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that twin size changes."""
    sizes = {"layers": LAYERS, "heads": HEADS, "hidden_size": HIDDEN_SIZE, "positions": SEQUENCE_LENGTH}
    phase = {
        "sequence_length": SEQUENCE_LENGTH,
        "as_published": {"ranks": 1, "batch": batch},
        "global_batch_size": global_batch_size,
        "steps": STEPS,
        "precision": "float32",
        **optimization,
    }
    return {"model": {**sizes, "vocabulary_size": VOCABULARY_SIZE}, "pretrain": {"main": phase}}


LLM_C_PYTHON = Oracle(
    name="llm_c_python",
    original="karpathy/llm.c, train_gpt2.py",
    recipes=("gpt2_124m_fineweb10b",),
    twin=twin(BATCH, BATCH * MICRO_BATCHES, schedule={"warmup_steps": WARMUP}),
    run={"micro_batch_size": BATCH},
    write_examples=write_examples,
    convert=transpose_projections,
    note="The recipe's train_gpt2.cu needs a GPU. Each shard holds one batch, in the order of llm.c's C code.",
)

# The arrays of a checkpoint of llm.c's C code, in their order -> the parameter of GPT-2; those of layers have all layers.
ARRAYS = {
    "wte": "transformer.wte.weight",
    "wpe": "transformer.wpe.weight",
    "ln1w": "transformer.h.{}.ln_1.weight",
    "ln1b": "transformer.h.{}.ln_1.bias",
    "qkvw": "transformer.h.{}.attn.c_attn.weight",
    "qkvb": "transformer.h.{}.attn.c_attn.bias",
    "attprojw": "transformer.h.{}.attn.c_proj.weight",
    "attprojb": "transformer.h.{}.attn.c_proj.bias",
    "ln2w": "transformer.h.{}.ln_2.weight",
    "ln2b": "transformer.h.{}.ln_2.bias",
    "fcw": "transformer.h.{}.mlp.c_fc.weight",
    "fcb": "transformer.h.{}.mlp.c_fc.bias",
    "fcprojw": "transformer.h.{}.mlp.c_proj.weight",
    "fcprojb": "transformer.h.{}.mlp.c_proj.bias",
    "lnfw": "transformer.ln_f.weight",
    "lnfb": "transformer.ln_f.bias",
}


def split_layers(weights: Weights) -> Mapping[str, npt.NDArray[np.float32]]:
    """Return the arrays of a checkpoint, (layers, ...) and (out, in), as GPT-2's parameters."""
    parameters = {
        ARRAYS[name].format(layer): weight[layer] if "{}" in ARRAYS[name] else weight
        for name, weight in weights.items()
        for layer in range(LAYERS if "{}" in ARRAYS[name] else 1)
    }
    return transpose_projections(parameters)


LLM_C = Oracle(
    name="llm_c",
    original="karpathy/llm.c, train_gpt2.c",
    recipes=("gpt2_124m_fineweb10b",),
    twin=twin(
        2 * BATCH,
        2 * BATCH,
        optimizer={"learning_rate": 1e-4, "betas": (0.9, 0.999), "weight_decay": 0.0, "gradient_clipping": None},
        schedule={"name": "constant", "warmup_steps": 0, "decay_ahead": 0},
    ),
    run={"micro_batch_size": 2 * BATCH},
    write_examples=write_examples,
    convert=split_layers,
    # The C code adds one by one in float32, and has the learning rate in it.
    bounds=Bounds(loss=3e-6, weights=8e-6, learning_rate=1e-7),
    also_changes=(
        "pretrain.main.optimizer.betas",
        "pretrain.main.optimizer.weight_decay",
        "pretrain.main.optimizer.gradient_clipping",
    ),
    note="The C program has a constant learning rate, betas of 0.9 and 0.999, no clipping and no decay: so has the twin.",
)
