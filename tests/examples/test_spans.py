"""The table of windows, and what the training loop reads of it."""

import json
from pathlib import Path

import numpy as np
import pytest

from question_files import SAMPLE, made_file, misplaced_file
from relm.errors import RelmError
from relm.examples.builders import open_examples
from relm.examples.fine_tuning.answer_windows import WindowLengths, window_questions
from relm.examples.fine_tuning.squad import parse_squad
from relm.examples.manifest import write_manifest
from relm.examples.spans import write_span_table
from relm.examples.tokenization.tokenizer_files import import_tokenizer, load_tokenizer
from relm.recipes.objectives import Objective

OBJECTIVE = Objective(objective="spans", sequence_length=40)
LENGTHS = WindowLengths(40, 12, 7)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    vocabulary = SAMPLE.with_name("prose-vocabulary.txt")
    import_tokenizer("bert_wordpiece_uncased", {"vocab.txt": vocabulary}, tmp_path / "tokenizer.json")
    return tmp_path / "tokenizer.json"


def test_a_batch_is_the_windows_of_the_file_in_the_order_asked_for(tokenizer: Path, tmp_path: Path) -> None:
    file, manifest = tmp_path / "made.json", tmp_path / "manifest.json"
    file.write_text(json.dumps(made_file()))
    write_span_table(file, tokenizer, tmp_path / "train.arrow", OBJECTIVE, LENGTHS)
    write_manifest({"train": [tmp_path / "train.arrow"]}, manifest)
    examples = open_examples(manifest, "train", OBJECTIVE, seed=0)
    paragraphs = parse_squad(file.read_bytes(), file.name)
    windows = window_questions(paragraphs, load_tokenizer(tokenizer), LENGTHS, labelled=True).windows
    indices = np.arange(len(examples))[::-1].copy()
    batch = examples.batch(indices, np.zeros_like(indices))
    expected = {**windows.inputs(), "answer_positions": np.stack([windows.starts, windows.ends], 1)}
    assert set(batch) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(batch[name], array[::-1], err_msg=name)
    sidecar = json.loads((tmp_path / "train.arrow.json").read_text())
    assert (sidecar["questions"], sidecar["skipped"], sidecar["examples"]) == (13, 0, len(windows.lengths))
    assert sidecar["unanswered"] == (windows.ends == 0).sum() > 0


def test_a_file_without_a_usable_answer_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    content = misplaced_file()
    paragraph = content["data"][0]["paragraphs"][0]
    paragraph["qas"] = paragraph["qas"][3:]
    content["data"][0]["paragraphs"] = [paragraph]
    (tmp_path / "made.json").write_text(json.dumps(content))
    with pytest.raises(RelmError, match=r"made.json: no answer is at its offset; give a file of SQuAD 1.1"):
        write_span_table(tmp_path / "made.json", tokenizer, tmp_path / "train.arrow", OBJECTIVE, LENGTHS)
    assert not (tmp_path / "train.arrow.json").exists()
