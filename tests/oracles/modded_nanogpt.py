"""Compare two programs of modded-nanogpt's optimization track with `modded_nanogpt_muon` and `modded_nanogpt_adamw`.

Both sides have Newton-Schulz steps in float32: in bfloat16 a difference in the last digit of a gradient becomes one of 0.4 %.
`tests/training/test_muon.py` compares the steps themselves in bfloat16.
"""

from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
from golden_files import SEED, STEPS, Weights
from our_runs import Bounds, Oracle, write_shards

from relm.training.optimizers import muon

VOCABULARY_SIZE, SEQUENCE_LENGTH, LAYERS, HEADS, HIDDEN_SIZE = 61, 32, 2, 2, 32
BATCH, MICRO_BATCHES, WARMUP = 2, 2, 10
# Tokens of each shard. The second has 30 batches and one token more, of which the original leaves out the last batch.
SHARDS = (4000, 3841, 3500, 2049)
# The original's names in a layer -> relm's; queries, keys and values are one matrix here.
IN_LAYER = {"attn.proj": "attn.c_proj", "mlp.fc": "mlp.c_fc", "mlp.proj": "mlp.c_proj"}
NORMS = {"norm1.gains": "ln_1.weight", "norm2.gains": "ln_2.weight"}


def draw_shards() -> list[npt.NDArray[np.int64]]:
    """Return the shards' tokens, a random walk each."""
    draws = np.random.RandomState(SEED)
    return [draws.randint(-2, 3, count).cumsum() % VOCABULARY_SIZE for count in SHARDS]


def convert(weights: Weights) -> Mapping[str, npt.NDArray[np.float32]]:
    """Return the original's parameters under relm's names."""
    found = {
        "transformer.wte.weight": weights["embed.weight"],
        "transformer.ln_e.weight": weights["norm1.gains"],
        "transformer.ln_f.weight": weights["norm2.gains"],
        "lm_head.weight": weights["proj.weight"],
        "lm_head.bias": weights["proj.bias"],
    }
    for layer in range(sum(name.endswith(".fc.weight") for name in weights)):
        theirs, ours = f"blocks.{layer}.", f"transformer.h.{layer}."
        for kind in ("weight", "bias"):
            parts = [weights[f"{theirs}attn.{part}.{kind}"] for part in "qkv"]
            found[f"{ours}attn.c_attn.{kind}"] = np.concatenate(parts).T
            found |= {f"{ours}{name}.{kind}": weights[f"{theirs}{other}.{kind}"].T for other, name in IN_LAYER.items()}
        found |= {ours + name: weights[theirs + other] for other, name in NORMS.items()}
    return found


def oracle(name: str, program: str, recipe: str, warmup: int, note: str) -> Oracle:
    """Return the oracle of a program."""
    phase = {
        "sequence_length": SEQUENCE_LENGTH,
        "as_published": {"ranks": 1, "batch": BATCH * MICRO_BATCHES},
        "global_batch_size": BATCH * MICRO_BATCHES,
        "steps": STEPS,
        "schedule": {"warmup_steps": warmup},
        "precision": "float32",
    }
    sizes = {"layers": LAYERS, "heads": HEADS, "hidden_size": HIDDEN_SIZE, "positions": SEQUENCE_LENGTH}
    return Oracle(
        name=name,
        original=f"KellerJordan/modded-nanogpt, {program}",
        recipes=(recipe,),
        twin={"model": {**sizes, "vocabulary_size": VOCABULARY_SIZE}, "pretrain": {"main": phase}},
        run={"micro_batch_size": BATCH},
        write_examples=lambda folder: write_shards(folder, draw_shards(), VOCABULARY_SIZE, end_of_text_id=0),
        convert=convert,
        # The embedding learns so fast that its weights reach 8: these are 6e-6 of them.
        bounds=Bounds(weights=5e-5),
        surroundings=lambda: patch.object(muon, "PRECISION", torch.float32),
        note=note,
    )


TRACK = Path("records/track_3_optimization")
MUON_PROGRAM = TRACK / "train_gpt_simple.py"
ADAMW_PROGRAM = TRACK / "results/a63a68d1-24aa-4a22-af9a-224e43209ea4.txt"
REPLACED = "The GPU's lines are replaced: float32 for bfloat16, no compiler, one process (docs/as_published.md)."
MODDED_NANOGPT_MUON = oracle("modded_nanogpt_muon", "train_gpt_simple.py", "modded_nanogpt_muon", 0, REPLACED)
MODDED_NANOGPT_ADAMW = oracle("modded_nanogpt_adamw", "the program of result 2", "modded_nanogpt_adamw", WARMUP, REPLACED)
