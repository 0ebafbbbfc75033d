"""Compare run_mlm.py of transformers 4.2.2 with the recipe `bert_large_wikitext103_v3-8_fp32`.

Sequences, loss, clipping, optimizer and schedule are the original's own. The masks and the order of sequences are relm's, since
the original draws both by torch's global generator.
"""

from pathlib import Path

from made_text import make_articles, wordpieces
from our_runs import Oracle, write_table

from small_tokenizers import save_uncased_wordpieces

ARTICLES, TEXT_SEED, LENGTH, BATCH_SIZE, STEPS = 120, 0, 64, 8, 100
LEARNING_RATE = 1e-3


def write_examples(folder: Path) -> Path:
    """Build the sequences by the recipe's builder, and return their manifest."""
    tokenizer = save_uncased_wordpieces(folder / "tokenizer.json", wordpieces())
    texts = ["\n".join(lines) for lines in make_articles(ARTICLES, TEXT_SEED)]
    return write_table(RUN_MLM, folder, texts, tokenizer)


RUN_MLM = Oracle(
    name="run_mlm",
    original="huggingface/transformers 4.2.2, run_mlm.py",
    recipes=("bert_large_wikitext103_v3-8_fp32",),
    twin={
        "init_from": None,
        "model": {
            "layers": 2, "heads": 4, "hidden_size": 32, "intermediate_size": 64, "positions": LENGTH,
            "hidden_dropout": 0.0, "attention_dropout": 0.0,
        },
        "pretrain": {
            "main": {
                "sequence_length": LENGTH,
                "global_batch_size": BATCH_SIZE,
                "steps": STEPS,
                "optimizer": {"learning_rate": LEARNING_RATE},
            }
        },
    },
    run={"micro_batch_size": BATCH_SIZE // 2},
    write_examples=write_examples,
    convert=dict,
    arrays=("input_ids", "masked_positions", "masked_labels"),
    note="The masks and the order are relm's draws: run_mlm.py draws them by torch's generator.",
)  # fmt: skip
