"""Compare iliemihai/t5x_diacritics' run_distributed_tpus.py with the recipe `mt5_base_romanian_diacritics_v3-8`.

Texts are longer than a sequence, so that no position is padding: the original scores padding, and masks it in the decoder.
"""

from pathlib import Path

from made_text import make_lines, unigrams
from our_runs import Bounds, Oracle, write_table

from small_tokenizers import save_unigrams

BATCH_SIZE, STEPS, LENGTH, WORDS, TEXT_SEED = 4, 100, 24, 36, 0


def write_examples(folder: Path) -> Path:
    """Build the pairs by the recipe's objective, and return their manifest."""
    tokenizer = save_unigrams(folder / "tokenizer.json", unigrams())
    texts = make_lines(BATCH_SIZE * STEPS, WORDS, TEXT_SEED)
    return write_table(T5X_DIACRITICS, folder, texts, tokenizer, "ro")


T5X_DIACRITICS = Oracle(
    name="t5x_diacritics",
    original="iliemihai/t5x_diacritics, run_distributed_tpus.py",
    recipes=("mt5_base_romanian_diacritics_v3-8",),
    twin={
        "init_from": None,
        "model": {
            "layers": 2, "heads": 4, "head_size": 8, "hidden_size": 32, "intermediate_size": 48, "dropout": 0.0,
        },
        "pretrain": {
            "main": {
                "sequence_length": LENGTH,
                "seq2seq": {"target_length": LENGTH},
                "global_batch_size": BATCH_SIZE,
                "steps": STEPS,
            }
        },
    },
    run={"micro_batch_size": BATCH_SIZE},
    write_examples=write_examples,
    convert=dict,
    arrays=("input_ids", "attention_mask", "labels"),
    bounds=Bounds(loss=3e-6),
    note="Texts fill a sequence: the original scores padding. They come in relm's order, and one replica is trained.",
)  # fmt: skip
