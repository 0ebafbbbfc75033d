"""The tables of the builders as training reads them."""

from pathlib import Path

import numpy as np
import pytest

from relm.examples.builders import open_examples, pregenerate
from relm.examples.contract import IGNORED
from relm.examples.manifest import write_manifest
from relm.recipes.objectives import Objective

STATIC = {"sentences": "lines", "masks": "static", "max_predictions": 20, "packing": "sentence_pairs"}


@pytest.mark.parametrize(
    ("builder", "masked"), [("tpu_pretrain", STATIC), ("graphcore_bert", STATIC), ("run_mlm", {"selection": "bernoulli"})]
)
def test_training_reads_what_a_builder_made(builder, masked, blocks, write_documents, wordpiece, tmp_path: Path) -> None:
    published = {"builder": builder}
    given = {"objective": "masked", "sequence_length": 128, "masked": masked, "as_published": published}
    objective = Objective.model_validate(given)
    documents, shard = write_documents("all.jsonl", blocks), tmp_path / "shard.arrow"
    pregenerate(documents, wordpiece, shard, objective, "en", 1)
    write_manifest({"train": [shard]}, tmp_path / "manifest.json")
    examples = open_examples(tmp_path / "manifest.json", "train", objective, seed=1)
    numbers = np.arange(len(examples))
    batch = examples.batch(numbers, np.zeros_like(numbers))
    used = batch["masked_labels"] != IGNORED
    assert used.sum(axis=1).min() >= 1
    assert ("next_sentence_labels" in batch) == (builder != "run_mlm")
    hidden = np.take_along_axis(batch["input_ids"], batch["masked_positions"], axis=1)
    assert 0.7 < (hidden[used] == 4).mean() < 0.9
    assert not batch["input_ids"][~batch["attention_mask"]].any()
