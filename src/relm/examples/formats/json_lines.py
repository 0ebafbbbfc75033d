"""The JSON lines of allenai/tpu_pretrain: a masked example a line, with tokens as text, and a file of counts.

The keys, their order and the spaces are those that its pregenerate_training_data.py writes into ``epoch_N.json`` and
``epoch_N_metrics.json``.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer

Array = npt.NDArray[Any]

KEYS = ("tokens", "segment_ids", "is_random_next", "masked_lm_positions", "masked_lm_labels")
# The original's text for a masked token, for every tokenizer.
MASK = "[MASK]"


class ExampleShape(NamedTuple):
    """The facts about a file that a table needs before its first row."""

    examples: int
    longest: int
    """Tokens of the longest example."""
    predictions: int
    """The most masked tokens of an example."""
    pairs: bool
    """True if any example has a second segment."""


def metrics_path(path: Path) -> Path:
    """Return ``epoch_0_metrics.json`` for ``epoch_0.json``."""
    return path.with_name(f"{path.stem}_metrics.json")


def format_metrics(examples: int, sequence_length: int) -> str:
    """Return the content of the file of counts."""
    return json.dumps({"num_training_examples": examples, "max_seq_len": sequence_length})


def format_lines(columns: Mapping[str, Array], tokens: Sequence[str]) -> Iterator[str]:
    """Yield the line of each row of a table with static masks, its newline included; `tokens` are by id."""
    lists = {name: columns[name].tolist() for name in columns}
    for row, length in enumerate(lists["length"]):
        second, count = lists["second_start"][row], lists["masked_count"][row]
        values = (
            [tokens[token] for token in lists["input_ids"][row][:length]],
            [0] * second + [1] * (length - second),
            lists["next_sentence_label"][row] == 1,
            lists["masked_positions"][row][:count],
            [tokens[token] for token in lists["masked_labels"][row][:count]],
        )
        yield json.dumps(dict(zip(KEYS, values, strict=True))) + "\n"


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield location (file and line) and content of each example."""
    if not path.exists():
        raise RelmError(f"{path}: no such file")
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            location = f"{path}, line {number}"
            yield location, _parse_example(line, location)


def read_shape(paths: Sequence[Path]) -> ExampleShape:
    """Read all files once for the widths of their table; `longest` is at least the length in their files of counts."""
    examples = longest = predictions = 0
    pairs = False
    for path in paths:
        for _, example in read_lines(path):
            examples += 1
            longest = max(longest, len(example["tokens"]))
            predictions = max(predictions, len(example["masked_lm_positions"]))
            pairs = pairs or any(example["segment_ids"])
        longest = max(longest, _read_stated_length(path))
    return ExampleShape(examples, longest, predictions, pairs)


def build_columns(
    examples: Sequence[tuple[str, dict[str, Any]]], shape: ExampleShape, ids: Mapping[str, int], padding: int
) -> dict[str, Array]:
    """Return examples as columns of a table; without pairs the next-sentence label is -1 and `is_random_next` is dropped.

    `ids` maps tokens to ids, `MASK` included; the id `padding` fills short examples.
    """
    rows = len(examples)
    columns: dict[str, Array] = {
        "input_ids": np.full((rows, shape.longest), padding, dtype=np.int64),
        "masked_positions": np.zeros((rows, shape.predictions), dtype=np.int64),
        "masked_labels": np.zeros((rows, shape.predictions), dtype=np.int64),
        **{name: np.zeros(rows, dtype=np.int64) for name in ("length", "second_start", "next_sentence_label", "masked_count")},
    }
    for row, (location, example) in enumerate(examples):
        length, count = len(example["tokens"]), len(example["masked_lm_positions"])
        columns["input_ids"][row, :length] = _look_up_ids(example["tokens"], ids, location)
        columns["masked_positions"][row, :count] = example["masked_lm_positions"]
        columns["masked_labels"][row, :count] = _look_up_ids(example["masked_lm_labels"], ids, location)
        columns["length"][row] = length
        columns["second_start"][row] = length - sum(example["segment_ids"])
        columns["next_sentence_label"][row] = int(example["is_random_next"]) if shape.pairs else -1
        columns["masked_count"][row] = count
    return columns


def list_tokens(loaded: LoadedTokenizer) -> list[str]:
    """Return the tokens by id; ids without a token get an empty one."""
    tokens = [""] * loaded.vocabulary_size
    for token, number in loaded.tokenizer.get_vocab(with_added_tokens=True).items():
        tokens[number] = token
    return tokens


def map_tokens(loaded: LoadedTokenizer) -> dict[str, int]:
    """Return token -> id. `MASK` is the tokenizer's own mask token, also where that has another text.

    The original's training reads `[MASK]` as the unknown token there; `as_published` builds examples as it does.
    """
    return {MASK: loaded.required("mask"), **loaded.tokenizer.get_vocab(with_added_tokens=True)}


def _parse_example(line: bytes, location: str) -> dict[str, Any]:
    """Return the content of a line, its keys and types checked."""
    try:
        example = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RelmError(f"{location}: not valid JSON ({error}): truncated, or not a file of tpu_pretrain") from None
    if not isinstance(example, dict) or set(example) != set(KEYS):
        found = ", ".join(example) if isinstance(example, dict) else type(example).__name__
        raise RelmError(f"{location}: expected the keys {', '.join(KEYS)}; found {found or 'none'}")
    tokens, segments, positions = example["tokens"], example["segment_ids"], example["masked_lm_positions"]
    for name, kind in (("tokens", str), ("segment_ids", int), ("masked_lm_positions", int), ("masked_lm_labels", str)):
        if not isinstance(example[name], list) or not all(type(value) is kind for value in example[name]):
            raise RelmError(f"{location}: {name}: expected a list of {kind.__name__}, found {str(example[name])[:80]}")
    if not isinstance(example["is_random_next"], bool):
        raise RelmError(f"{location}: is_random_next: expected true or false, found {example['is_random_next']!r}")
    if segments != [0] * (len(tokens) - sum(segments)) + [1] * sum(segments):
        raise RelmError(f"{location}: segment_ids: expected zeros, then ones, as many as tokens ({len(tokens)})")
    if positions != sorted(set(positions)) or len(positions) != len(example["masked_lm_labels"]):
        raise RelmError(f"{location}: masked_lm_positions: expected ascending ones, as many as masked_lm_labels")
    if positions and not 0 <= positions[0] <= positions[-1] < len(tokens):
        raise RelmError(
            f"{location}: masked_lm_positions: expected 0 to {len(tokens) - 1}, found {positions[0]} to {positions[-1]}"
        )
    return example


def _read_stated_length(path: Path) -> int:
    """Return `max_seq_len` in a file's counts; 0 without them."""
    beside = metrics_path(path)
    if not beside.exists():
        return 0
    try:
        return int(json.loads(beside.read_text(encoding="utf-8"))["max_seq_len"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RelmError(f"{beside}: no max_seq_len in it ({error}); delete it or copy it again") from None


def _look_up_ids(tokens: Sequence[str], ids: Mapping[str, int], location: str) -> list[int]:
    try:
        return [ids[token] for token in tokens]
    except KeyError as error:
        raise RelmError(
            f"{location}: token {error.args[0]!r} is not in the vocabulary; give the tokenizer it was made with"
        ) from None
