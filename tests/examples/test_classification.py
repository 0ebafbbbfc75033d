"""The table of labelled texts, and what the training loop reads of it."""

import json
from pathlib import Path

import numpy as np
import pytest

from glue_files import EXAMPLES, write_parquet, write_tsv
from question_files import SAMPLE
from relm.errors import RelmError
from relm.examples.builders import open_examples, pregenerate
from relm.examples.fine_tuning.classification import LabelledExamples, write_labelled_table
from relm.examples.fine_tuning.glue import parse_glue
from relm.examples.manifest import write_manifest
from relm.examples.text_pairs import encode_pairs
from relm.examples.tokenization.tokenizer_files import import_tokenizer, load_tokenizer
from relm.recipes.objectives import Objective

# Task -> its objective, and the name and the type of its labels in a batch.
OBJECTIVES = {
    "cola": ("two_classes", "class_labels", np.int64),
    "mnli": ("three_classes", "class_labels", np.int64),
    "stsb": ("score", "scores", np.float32),
}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    vocabulary = SAMPLE.with_name("prose-vocabulary.txt")
    import_tokenizer("bert_wordpiece_uncased", {"vocab.txt": vocabulary}, tmp_path / "tokenizer.json")
    return tmp_path / "tokenizer.json"


def opened(objective: Objective, table: Path) -> LabelledExamples:
    """Return the examples of one table."""
    write_manifest({"train": [table]}, table.with_name("manifest.json"))
    examples = open_examples(table.with_name("manifest.json"), "train", objective, seed=0)
    assert isinstance(examples, LabelledExamples)
    return examples


@pytest.mark.parametrize("task", OBJECTIVES)
def test_a_batch_is_the_texts_of_the_file_in_the_order_asked_for(task: str, tokenizer: Path, tmp_path: Path) -> None:
    name, key, kind = OBJECTIVES[task]
    objective, file = Objective(objective=name, sequence_length=24), write_parquet(tmp_path / "train.parquet", task)
    write_labelled_table(file, tokenizer, tmp_path / "train.arrow", objective, task)
    examples = opened(objective, tmp_path / "train.arrow")
    indices = np.arange(len(examples))[::-1].copy()
    batch = examples.batch(indices, np.zeros_like(indices))
    texts = parse_glue(file.read_bytes(), task, file.name)
    expected = encode_pairs(load_tokenizer(tokenizer), texts.first, texts.second, 24).inputs()
    assert set(batch) == {*expected, key}
    for array, values in expected.items():
        np.testing.assert_array_equal(batch[array], values[::-1], err_msg=array)
    assert batch[key].dtype == kind
    np.testing.assert_array_equal(batch[key], np.array([row[-1] for row in EXAMPLES[task]][::-1], kind))
    sidecar = json.loads((tmp_path / "train.arrow.json").read_text())
    assert (sidecar["examples"], sidecar["documents"]) == (len(EXAMPLES[task]), len(EXAMPLES[task]))
    assert sidecar["tokens"] == batch["attention_mask"].sum()


def test_both_formats_make_the_same_table_and_a_limit_a_shorter_one(tokenizer: Path, tmp_path: Path) -> None:
    objective = Objective(objective="score", sequence_length=16)
    files = write_parquet(tmp_path / "a.parquet", "stsb"), write_tsv(tmp_path / "a.tsv", "stsb")
    batches = []
    for number, file in enumerate(files):
        (tmp_path / str(number)).mkdir()
        said = write_labelled_table(file, tokenizer, tmp_path / str(number) / "train.arrow", objective, "stsb", limit=3)
        examples = opened(objective, tmp_path / str(number) / "train.arrow")
        batches.append(examples.batch(np.arange(3), np.zeros(3, np.int64)))
        assert len(examples) == 3
        assert "encoded 3 examples, of which 3 fill the 16 tokens" in said
    assert all(np.array_equal(array, batches[1][name]) for name, array in batches[0].items())


def test_a_table_of_another_objective_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    objective = Objective(objective="two_classes", sequence_length=16)
    write_labelled_table(write_tsv(tmp_path / "a.tsv", "rte"), tokenizer, tmp_path / "train.arrow", objective, "rte")
    with pytest.raises(RelmError, match="expected three_classes examples, found two_classes"):
        opened(Objective(objective="three_classes", sequence_length=16), tmp_path / "train.arrow")
    with pytest.raises(RelmError, match="expected examples with"):
        opened(Objective(objective="two_classes", sequence_length=17), tmp_path / "train.arrow")


def test_documents_make_no_labelled_texts(tokenizer: Path, tmp_path: Path) -> None:
    objective = Objective(objective="score", sequence_length=16)
    with pytest.raises(RelmError, match="objective score: not for pregeneration; an evaluation makes its examples"):
        pregenerate(tmp_path / "documents.jsonl", tokenizer, tmp_path / "train.arrow", objective, "en")
