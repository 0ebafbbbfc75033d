"""`as_published.corrected` leaves out one defect of an original, and changes nothing else of its examples."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_phases import published_objective

from relm.examples.as_published.tables import read_documents
from relm.examples.as_published.tpu_pretrain import pregenerate_tpu_pretrain
from relm.examples.table import ExampleTable
from relm.recipes.as_published import AsPublished

objective = functools.partial(published_objective, "tpu_pretrain", 42, 1)
UNK, MASK = 3, 261  # of the byte-level tokenizer, as RoBERTa's
SENTENCES = {"packing": "document_sentences", "whole_words": True}


@pytest.fixture
def rows(blocks, write_documents, byte_level: Path, tmp_path: Path):
    """Returns the columns of the table that a phase's examples are."""
    documents = write_documents("all.jsonl", blocks)

    def made(*corrected: str, **changes: Any) -> dict[str, Any]:
        output = tmp_path / f"{'-'.join(corrected)}.arrow"
        pregenerate_tpu_pretrain(documents, byte_level, output, objective(corrected=list(corrected), **changes), "en", 1)
        table = ExampleTable(output)
        return {name: table.rows(name, np.arange(len(table))) for name in table.columns}

    return made


def test_without_the_first_defect_a_masked_token_is_the_mask_and_all_else_stays(rows) -> None:
    published, corrected = rows(**SENTENCES), rows("unk_for_mask", **SENTENCES)
    assert MASK not in published["input_ids"]
    assert np.array_equal(published["input_ids"] == UNK, corrected["input_ids"] == MASK)
    assert np.array_equal(np.where(corrected["input_ids"] == MASK, UNK, corrected["input_ids"]), published["input_ids"])
    for name in set(published) - {"input_ids"}:
        assert np.array_equal(published[name], corrected[name]), name


def test_without_the_second_defect_words_are_masked_whole(rows, blocks, write_documents, byte_level) -> None:
    corrected = rows("partly_masked_words", "unk_for_mask", **SENTENCES)
    with read_documents(write_documents("again.jsonl", blocks), byte_level, "lines", "en", 1) as (corpus, _, _):
        tokens, starts = corpus.tokens.astype(np.int64), np.array(corpus.word_starts)
    found = 0
    for ids, length, positions, labels, count in zip(
        *(corrected[name] for name in ("input_ids", "length", "masked_positions", "masked_labels", "masked_count")), strict=True
    ):
        text = ids[:length].astype(np.int64)
        text[positions[:count]] = labels[:count]
        windows = np.lib.stride_tricks.sliding_window_view(tokens, length - 2)
        places = np.flatnonzero((windows == text[1:-1]).all(axis=1))
        if not len(places):  # the sentences of a random document follow
            continue
        found += 1
        word = np.cumsum(starts[places[0] : places[0] + length - 2])
        hidden = np.zeros(length, bool)
        hidden[positions[:count]] = True
        assert not set(word[hidden[1:-1]]) & set(word[~hidden[1:-1]]), "a word is masked in part"
    assert found > 5


def test_without_the_third_defect_the_second_segment_of_a_true_pair_is_its_own(rows) -> None:
    published, corrected = rows(), rows("empty_second_segments")
    for columns, empty in ((published, True), (corrected, False)):
        follows = columns["next_sentence_label"] == 0
        second = columns["length"].astype(int) - columns["second_start"] - 1
        assert follows.any()
        assert ((second[follows] == 0) == empty).all()


@pytest.mark.parametrize(
    ("section", "fault"),
    [
        ({"builder": "tpu_pretrain", "corrected": ["scored_padding"]}, "tpu_pretrain has no defect scored_padding; expected"),
        ({"builder": "run_mlm", "corrected": ["unk_for_mask"]}, "run_mlm has no defect unk_for_mask; none of its defects"),
        ({"builder": "tpu_pretrain", "corrected": ["unk_for_mask"] * 2}, "each name once, in the order of the alphabet"),
    ],
)
def test_other_names_are_refused(section: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        AsPublished.model_validate(section)
