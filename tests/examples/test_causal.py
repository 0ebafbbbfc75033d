from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from token_streams import write_stream

from relm.artifact import read_json, write_json
from relm.errors import RelmError
from relm.examples.causal import CausalExamples, document_ids, window_count, with_end_of_text
from relm.examples.contract import numbers_at
from relm.recipes.as_published import AsPublished
from relm.recipes.objectives import Causal, Objective


def i4(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def zeros(count: int) -> np.ndarray:
    return np.zeros(count, dtype=np.int64)


def test_the_end_of_text_follows_each_document() -> None:
    tokens, sizes = with_end_of_text(i4(5, 6, 7), i4(2, 0, 1), 0)
    assert tokens.tolist() == [5, 6, 0, 0, 7, 0]
    assert sizes.tolist() == [3, 1, 2]
    assert tokens.dtype == sizes.dtype == np.int32


def test_windows_share_one_token_and_the_rest_is_left_out() -> None:
    assert [window_count(n, 4) for n in (0, 1, 4, 5, 8, 9, 12, 13)] == [0, 0, 0, 1, 1, 2, 2, 3]


def test_windows_begin_every_stride_tokens_while_they_are_whole() -> None:
    assert [window_count(n, 4, stride=2) for n in (0, 4, 5, 6, 7, 8, 9)] == [0, 0, 1, 1, 2, 2, 3]
    assert [window_count(n, 4, stride=6) for n in (4, 5, 10, 11, 16, 17)] == [0, 1, 1, 2, 2, 3]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Write a stream of 0 to 10 for training, in two shards, and of 0 to 2 held out."""
    train = {"a": list(range(7)), "b": list(range(7, 11))}
    return write_stream(tmp_path, {"train": train, "held_out": {"a": [0, 1, 2]}})


def test_a_batch_holds_the_requested_windows(manifest) -> None:
    examples = CausalExamples(manifest, "train", 4)
    assert len(examples) == 2
    windows = examples.windows(np.array([1, 0, 1]))
    assert windows.dtype == np.int64
    assert windows.tolist() == [[4, 5, 6, 7, 8], [0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]
    assert examples.windows(np.array([], dtype=np.int64)).shape == (0, 5)


def test_labels_are_the_inputs_shifted_by_one(manifest) -> None:
    batch = CausalExamples(manifest, "train", 4).batch(np.array([1, 0]), zeros(2))
    assert {name: (array.dtype, array.tolist()) for name, array in batch.items()} == {
        "input_ids": (np.int64, [[4, 5, 6, 7], [0, 1, 2, 3]]),
        "labels": (np.int64, [[5, 6, 7, 8], [1, 2, 3, 4]]),
    }
    assert all(array.flags.c_contiguous for array in batch.values())
    batch["input_ids"][:] = 0
    assert batch["labels"].tolist() == [[5, 6, 7, 8], [1, 2, 3, 4]]


def test_a_smaller_stride_makes_windows_overlap(manifest) -> None:
    examples = CausalExamples(manifest, "train", 4, Causal(stride=3))
    assert examples.windows(np.arange(len(examples))).tolist() == [[0, 1, 2, 3, 4], [3, 4, 5, 6, 7], [6, 7, 8, 9, 10]]
    assert len(CausalExamples(manifest, "train", 4, Causal(stride=1))) == 7


def test_the_end_of_text_after_the_last_document_can_be_left_out(tmp_path) -> None:
    manifest = write_stream(tmp_path, {"train": {"a": [5, 6, 0, 7, 8, 9, 0]}})
    after, between = (CausalExamples(manifest, "train", 3, Causal(end_of_text=where)) for where in ("after", "between"))
    assert [len(after), len(between)] == [2, 1]
    last = CausalExamples(manifest, "train", 5, Causal(end_of_text="between"))
    assert last.windows(np.arange(len(last))).tolist() == [[5, 6, 0, 7, 8, 9]]
    with pytest.raises(RelmError, match="split train has 6 tokens, but an example of sequence_length 6 needs 7"):
        CausalExamples(manifest, "train", 6, Causal(end_of_text="between"))


def test_documents_are_counted_from_zero_in_each_row(tmp_path) -> None:
    manifest = write_stream(tmp_path, {"train": {"a": [5, 0, 6, 7, 0], "b": [0, 8, 9, 10, 11]}})
    batch = CausalExamples(manifest, "train", 4, Causal(document_attention=True)).batch(np.array([0, 1]), zeros(2))
    assert batch["input_ids"].tolist() == [[5, 0, 6, 7], [0, 0, 8, 9]]
    assert batch["document_ids"].tolist() == [[0, 0, 1, 1], [0, 1, 2, 2]]
    assert batch["document_ids"].dtype == np.int64
    assert document_ids(np.array([[0, 0, 0]]), 0).tolist() == [[0, 1, 2]]


def test_without_an_end_of_text_every_token_is_text(tmp_path) -> None:
    manifest = write_stream(tmp_path, {"train": {"a": [5, 6, 0, 7], "b": [8]}}, end_of_text_id=None)
    examples = CausalExamples(manifest, "train", 4, Causal(end_of_text="never"))
    assert examples.windows(np.arange(len(examples))).tolist() == [[5, 6, 0, 7, 8]]


def test_the_option_must_match_the_tokenizers_end_of_text(manifest, tmp_path) -> None:
    (tmp_path / "none").mkdir()
    without = write_stream(tmp_path / "none", {"train": {"a": [1, 2, 3]}}, end_of_text_id=None)
    for options in (Causal(), Causal(end_of_text="between"), Causal(document_attention=True)):
        with pytest.raises(RelmError, match=r"its tokenizer has no end-of-text token, but .* set it to never or"):
            CausalExamples(without, "train", 2, options)
    with pytest.raises(RelmError, match=r"has an end-of-text token, but causal\.end_of_text is never; set it to after or"):
        CausalExamples(manifest, "train", 4, Causal(end_of_text="never"))


def test_windows_drawn_with_replacement_begin_anywhere(manifest) -> None:
    """nanoGPT draws so: in 11 tokens, windows of 4 labels begin at 0 to 6, which is `randint(11 - 4)`."""
    examples = CausalExamples(manifest, "train", 4, Causal(stride=1, sampling="with_replacement"))
    assert examples.is_drawn
    indices, epochs = numbers_at(examples, 5, np.arange(300))
    assert set(indices.tolist()) == set(range(7))
    batch = examples.batch(indices, epochs)
    assert np.array_equal(batch["input_ids"], indices[:, None] + np.arange(4))
    assert np.array_equal(batch["labels"], indices[:, None] + np.arange(1, 5))
    assert not CausalExamples(manifest, "train", 4).is_drawn


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValidationError, match="found end_of_text: never; remove one"):
        Causal(end_of_text="never", document_attention=True)
    with pytest.raises(ValidationError, match=r"causal\.sampling: graphcore_gpt2 always reads each window once"):
        Objective(
            objective="causal",
            sequence_length=8,
            causal=Causal(sampling="with_replacement"),
            as_published=AsPublished(builder="graphcore_gpt2"),
        )


def test_windows_from_many_shards_are_those_of_one(tmp_path) -> None:
    tokens = np.random.default_rng(3).integers(0, 300, 1000).tolist()
    cuts = [0, 1, 2, 60, 61, 300, 307, 900, 1000]
    pieces = {f"{n:03}": tokens[first:last] for n, (first, last) in enumerate(pairwise(cuts))}
    (tmp_path / "one").mkdir()
    whole = CausalExamples(write_stream(tmp_path / "one", {"train": {"a": tokens}}), "train", 16, Causal(stride=3))
    parts = CausalExamples(write_stream(tmp_path, {"train": pieces}), "train", 16, Causal(stride=3))
    indices = np.random.default_rng(4).integers(0, len(whole), 500)
    expected = [tokens[3 * index : 3 * index + 17] for index in indices.tolist()]
    assert whole.windows(indices).tolist() == parts.windows(indices).tolist() == expected


def test_an_example_that_does_not_exist_is_refused(manifest) -> None:
    examples = CausalExamples(manifest, "train", 4)
    for index in (-1, 2):
        with pytest.raises(IndexError, match="examples are 0 to 1"):
            examples.batch(np.array([0, index]), zeros(2))


def test_a_split_shorter_than_one_example_is_refused(manifest) -> None:
    assert len(CausalExamples(manifest, "held_out", 2)) == 1
    with pytest.raises(RelmError, match="split held_out has 3 tokens, but an example of sequence_length 3 needs 4"):
        CausalExamples(manifest, "held_out", 3)
    with pytest.raises(RelmError, match="unknown split 'valid'; it has train, held_out"):
        CausalExamples(manifest, "valid", 3)


def test_a_manifest_of_tables_is_refused(manifest) -> None:
    write_json(manifest, {**read_json(manifest), "layout": "table", "objective": "masked"})
    with pytest.raises(RelmError, match=r"manifest\.json: expected a stream of tokens, found a table of masked examples"):
        CausalExamples(manifest, "train", 4)
