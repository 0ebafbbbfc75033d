"""Compare Graphcore's train_gpt2.py with its recipes, which differ only in size.

The original makes its schedule after PopTorch has read the optimizer, so that its first call has the peak learning rate. The
recipes do not repeat that: their first call has the schedule's, 0. `GRAPHCORE_GPT2` follows the original by a table of learning
rates, which has those of the recipes' schedule from the second call on.
"""

from pathlib import Path

import graphcore_gpt2_sizes as sizes
from golden_files import STEPS
from our_runs import Oracle, write_stream

from relm.recipes.optimization import Schedule
from relm.training.schedules import learning_rate_scale

SCHEDULE = {
    "name": "cosine",
    "warmup_share": sizes.WARMUP_SHARE,
    "decay_end": sizes.DECAY_CALLS,
    "first_step": 0,
    "updates_per_step": sizes.UPDATES_OF_A_CALL,
}


def tabulate_schedule() -> dict[int, float]:
    """Return the share of the peak of every call, which is 1 in the first."""
    recipes = Schedule.model_validate(SCHEDULE)
    calls = range(1, sizes.CALLS)
    shares = {call: learning_rate_scale(recipes, 1 + call * sizes.UPDATES_OF_A_CALL, STEPS) for call in calls}
    return {0: 1.0, **shares}


def write_documents(folder: Path) -> Path:
    """Write the original's documents, and return their manifest."""
    tokens, lengths = sizes.draw_documents()
    return write_stream(folder, tokens, lengths.tolist(), sizes.VOCABULARY_SIZE, end_of_text_id=0)


GRAPHCORE_GPT2 = Oracle(
    name="graphcore_gpt2",
    original="graphcore/examples v3.4.1, nlp/gpt2/pytorch/train_gpt2.py",
    recipes=(
        "gpt2_small_pod16",
        "gpt2_medium_pod16",
        "gpt2_large_512_pod16",
        "gpt2_large_1024_pod16",
        "gpt2_large_poprun_pod64",
    ),
    twin={
        "model": {
            "layers": sizes.LAYERS,
            "heads": sizes.HEADS,
            "hidden_size": sizes.HIDDEN_SIZE,
            "positions": sizes.SEQUENCE_LENGTH,
            "vocabulary_size": sizes.VOCABULARY_SIZE,
            "dropout": 0.0,
        },
        "pretrain": {
            "main": {
                "sequence_length": sizes.SEQUENCE_LENGTH,
                "as_published": {"epochs": sizes.EPOCHS},
                "global_batch_size": sizes.GRADIENT_ACCUMULATION,
                "steps": STEPS,
                "schedule": {
                    "name": "by_step",
                    "by_step": tabulate_schedule(),
                    "warmup_share": None,
                    "decay_end": None,
                    "updates_per_step": sizes.UPDATES_OF_A_CALL,
                },
                "precision": "float32",
            }
        },
    },
    run={"micro_batch_size": 1},
    write_examples=write_documents,
    convert=dict,
    note=(
        "PopTorch is replaced by torch on the CPU, in float32. The first call has the original's learning rate, where the "
        "recipes have 0."
    ),
)
