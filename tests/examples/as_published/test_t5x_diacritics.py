"""The padding and the ends of texts in iliemihai/t5x_diacritics, by the lines 43-44 and 55-71 of its program."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relm.errors import RelmError
from relm.examples.builders import open_examples, pregenerate
from relm.examples.contract import IGNORED
from relm.examples.manifest import write_manifest
from relm.recipes.objectives import Objective
from small_tokenizers import save_words

PAD, END, UNK = 0, 1, 2
WORDS = ["<pad>", "</s>", "<unk>", "să", "sa", "casă", "casa"]


@pytest.fixture
def opened(tmp_path: Path, write_documents):
    """Returns the one batch of a split, under some `as_published`."""

    def batch(split: str, padding: bool = True, **section: Any) -> dict[str, Any]:
        specials = WORDS[:3] if padding else ["</s>", "<unk>"]
        words = [word for word in WORDS if padding or word != "<pad>"]
        tokenizer = save_words(tmp_path / "words.json", words, special=specials, unknown="<unk>")
        published = {"builder": "t5x_diacritics", **section}
        objective = Objective.model_validate(
            {"objective": "seq2seq", "sequence_length": 5, "seq2seq": {"target_length": 4}, "as_published": published}
        )
        documents = write_documents("a.jsonl", ["să", "casă să casă", "să casă să casă să"])
        shard = tmp_path / "a.arrow"
        pregenerate(documents, tokenizer, shard, objective, "ro", 1)
        write_manifest({"train": [shard], "held_out": [shard]}, tmp_path / "manifest.json")
        examples = open_examples(tmp_path / "manifest.json", split, objective, 0)
        return examples.batch(np.arange(3), np.zeros(3, np.int64))

    return batch


def test_texts_end_twice_and_the_padding_of_the_target_is_predicted(opened) -> None:
    found = opened("train")
    assert found["input_ids"].tolist() == [[4, END, END, PAD, PAD], [6, 4, 6, END, END], [4, 6, 4, 6, END]]
    assert found["attention_mask"].sum(axis=1).tolist() == [3, 5, 5]
    assert found["labels"].tolist() == [[3, END, END, PAD], [5, 3, 5, END], [3, 5, 3, END]]


def test_each_defect_can_be_left_out(opened) -> None:
    assert opened("train", corrected=["scored_padding"])["labels"][0].tolist() == [3, END, END, IGNORED]
    found = opened("train", corrected=["second_end_of_text"])
    assert found["labels"][0].tolist() == [3, END, PAD, PAD]
    assert found["input_ids"].tolist() == [[4, END, PAD, PAD, PAD], [6, 4, 6, END, PAD], [4, 6, 4, 6, END]]


def test_held_out_texts_have_no_defect(opened) -> None:
    assert opened("held_out")["labels"][0].tolist() == [3, END, IGNORED, IGNORED]


def test_a_tokenizer_without_padding_is_refused(opened) -> None:
    with pytest.raises(RelmError, match="has no token for padding, which t5x_diacritics predicts"):
        opened("train", padding=False)
