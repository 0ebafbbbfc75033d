import json

import numpy as np
import pytest

from relm.errors import RelmError
from relm.examples.formats.json_lines import (
    ExampleShape,
    build_columns,
    format_lines,
    format_metrics,
    list_tokens,
    map_tokens,
    read_lines,
    read_shape,
)

LINE = (
    '{"tokens": ["[CLS]", "caf\\u00e9", "[MASK]", "[SEP]", "ran", "[SEP]"], "segment_ids": [0, 0, 0, 0, 1, 1], '
    '"is_random_next": true, "masked_lm_positions": [2], "masked_lm_labels": ["sat"]}\n'
)
ROW = {
    "input_ids": [0, 1, 2, 3, 4, 3, 9, 9],
    "length": 6,
    "second_start": 4,
    "next_sentence_label": 1,
    "masked_positions": [2, 0],
    "masked_labels": [5, 0],
    "masked_count": 1,
}
TOKENS = ["[CLS]", "café", "[MASK]", "[SEP]", "ran", "sat"]
SHAPE = ExampleShape(examples=1, longest=8, predictions=2, pairs=True)


def test_a_line_is_the_originals_to_the_space() -> None:
    assert list(format_lines({name: np.array([value]) for name, value in ROW.items()}, TOKENS)) == [LINE]
    assert format_metrics(3, 128) == '{"num_training_examples": 3, "max_seq_len": 128}'


def test_a_row_without_a_pair_is_all_of_the_first_segment() -> None:
    row = {**ROW, "second_start": 6, "next_sentence_label": -1}
    example = json.loads(next(format_lines({name: np.array([value]) for name, value in row.items()}, TOKENS)))
    assert example["segment_ids"] == [0] * 6
    assert example["is_random_next"] is False


def test_a_line_is_read_back_as_the_row(tmp_path) -> None:
    (tmp_path / "epoch_0.json").write_text(LINE)
    examples = list(read_lines(tmp_path / "epoch_0.json"))
    ids = {token: number for number, token in enumerate(TOKENS)}
    columns = build_columns(examples, SHAPE, ids, padding=9)
    assert {name: values.tolist() for name, values in columns.items()} == {name: [value] for name, value in ROW.items()}
    alone = build_columns(examples, SHAPE._replace(pairs=False), ids, padding=9)
    assert alone["next_sentence_label"].tolist() == [-1]


def test_the_widths_of_a_table_are_found_in_all_files(tmp_path) -> None:
    single = {"tokens": ["a"] * 9, "segment_ids": [0] * 9, "is_random_next": True, "masked_lm_positions": [0, 4]}
    (tmp_path / "epoch_0.json").write_text(LINE * 2)
    (tmp_path / "epoch_1.json").write_text(json.dumps({**single, "masked_lm_labels": ["x", "y"]}) + "\n")
    files = [tmp_path / "epoch_0.json", tmp_path / "epoch_1.json"]
    assert read_shape(files) == ExampleShape(examples=3, longest=9, predictions=2, pairs=True)
    assert read_shape(files[1:]) == ExampleShape(examples=1, longest=9, predictions=2, pairs=False)
    (tmp_path / "epoch_0_metrics.json").write_text(format_metrics(2, 128))
    assert read_shape(files).longest == 128
    (tmp_path / "epoch_0_metrics.json").write_text("{}")
    with pytest.raises(RelmError, match=r"epoch_0_metrics\.json: no max_seq_len"):
        read_shape(files)


def test_the_mask_is_the_tokenizers_own(loaded) -> None:
    assert map_tokens(loaded)["[MASK]"] == 4
    assert map_tokens(loaded)["cat"] == 7
    assert list_tokens(loaded)[:8] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "</s>", "the", "cat"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"is_random_next": true, ', "", "expected the keys tokens, .*; found tokens, segment_ids, masked"),
        ("true", "1", "is_random_next: expected true or false, found 1"),
        ('"ran"', "7", "tokens: expected a list of str"),
        ("[0, 0, 0, 0, 1, 1]", "[0, 0, 1, 0, 1, 1]", r"segment_ids: expected zeros, then ones, as many as tokens \(6\)"),
        ("[0, 0, 0, 0, 1, 1]", "[0, 0, 0, 0, 1]", "segment_ids: expected zeros"),
        ("[2]", "[6]", "masked_lm_positions: expected 0 to 5, found 6 to 6"),
        ("[2]", "[1, 2]", "masked_lm_positions: expected ascending ones, as many as masked_lm_labels"),
        ("[2]", "[true]", "masked_lm_positions: expected a list of int"),
        ('"sat"]}', "", r"not valid JSON .*truncated"),
    ],
)
def test_a_faulty_line_is_named(tmp_path, old, new, message) -> None:
    path = tmp_path / "epoch_0.json"
    path.write_text(LINE + LINE.replace(old, new))
    with pytest.raises(RelmError, match=rf"epoch_0\.json, line 2: {message}"):
        list(read_lines(path))


def test_a_token_that_the_tokenizer_lacks_is_named(tmp_path) -> None:
    path = tmp_path / "epoch_0.json"
    path.write_text(LINE)
    ids = {token: number for number, token in enumerate(TOKENS) if token != "ran"}
    with pytest.raises(RelmError, match=r"epoch_0\.json, line 1: token 'ran' is not in the vocabulary"):
        build_columns(list(read_lines(path)), SHAPE, ids, padding=0)
    with pytest.raises(RelmError, match=r"b\.json: no such file"):
        list(read_lines(tmp_path / "b.json"))
