"""Masked examples as the records of Graphcore's BERT for TensorFlow 1: plain, as Google's are, and remasked.

Feature names, order of values and padding are those of its create_pretraining_data.py. In the remasked layout the masked tokens
come first, and each token comes with its position.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.formats.tfrecord import Features

Array = npt.NDArray[Any]
Columns = dict[str, Array]
"""Columns of a table of masked examples with static masks, by name."""

PLAIN = (
    "input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights",
)  # fmt: skip
REMASKED = (
    "input_ids", "input_position", "segment_ids", "mask_padding_index", "seq_padding_index", "masked_lm_positions",
    "masked_labels", "masked_lm_ids", "masked_lm_weights",
)  # fmt: skip
LABEL = "next_sentence_labels"


def make_plain_records(columns: Columns) -> Iterator[dict[str, Array]]:
    """Yield the features of each row; a row that is not a pair has no next-sentence label, and its record no such feature."""
    positions = np.arange(columns["input_ids"].shape[1])
    within = positions < columns["length"][:, None]
    used = np.arange(columns["masked_positions"].shape[1]) < columns["masked_count"][:, None]
    features = {
        "input_ids": columns["input_ids"],
        "input_mask": within,
        "segment_ids": within & (positions >= columns["second_start"][:, None]),
        "masked_lm_positions": np.where(used, columns["masked_positions"], 0),
        "masked_lm_ids": np.where(used, columns["masked_labels"], 0),
        "masked_lm_weights": used.astype(np.float32),
    }
    for row, label in enumerate(columns["next_sentence_label"].tolist()):
        yield {**{name: values[row] for name, values in features.items()}, **_make_label(label)}


def make_remasked_records(fields: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Yield the features of each row of `relm.examples.as_published.graphcore_bert.remask`."""
    counts = fields["masked_lm_weights"].sum(axis=1).astype(np.int64)
    for row, count in enumerate(counts.tolist()):
        features = {name: np.atleast_1d(fields[name][row]) for name in REMASKED}
        features["masked_lm_positions"] = features["masked_lm_positions"][:count]
        yield {**features, **_make_label(int(fields[LABEL][row]))}


def parse_plain_records(records: Sequence[Features], locations: Sequence[str]) -> Columns:
    """Return the columns of a table from plain records; `locations` are the file and record of each, for messages."""
    values = _stack(records, PLAIN, locations)
    width = values["input_ids"].shape[1]
    lengths = _count_leading_ones(values["input_mask"], locations, "input_mask")
    second = np.where(values["segment_ids"] > 0, np.arange(width), width).min(axis=1)
    second = np.minimum(second, lengths)
    columns = np.arange(width)
    expected = (columns >= second[:, None]) & (columns < lengths[:, None])
    _require(values["segment_ids"] == expected, locations, "segment_ids are not zeros, then ones up to the end")
    return {
        "input_ids": values["input_ids"],
        "length": lengths,
        "second_start": second,
        "next_sentence_label": _read_labels(records),
        "masked_positions": values["masked_lm_positions"],
        "masked_labels": values["masked_lm_ids"],
        "masked_count": _count_leading_ones(values["masked_lm_weights"], locations, "masked_lm_weights"),
    }


def parse_remasked_records(records: Sequence[Features], locations: Sequence[str]) -> Columns:
    """Return the columns of a table, with each token at its own position, from remasked records.

    A token with id 0 was dropped when the record was written; its position gets id 0 again.
    """
    filled = [
        {**record, "masked_lm_positions": _pad_positions(record, location)}
        for record, location in zip(records, locations, strict=True)
    ]
    values = _stack(filled, REMASKED, locations)
    width, hidden = values["input_ids"].shape[1], values["masked_labels"].shape[1]
    slots = np.arange(width)
    present = (slots < values["mask_padding_index"]) | ((slots >= hidden) & (slots < values["seq_padding_index"]))
    _require(~present | (values["input_position"] < width), locations, f"input_position is beyond {width}")
    rows, at = np.nonzero(present)
    positions = values["input_position"][rows, at]
    ids, segments = np.zeros((len(records), width), dtype=np.int64), np.full((len(records), width), -1, dtype=np.int64)
    ids[rows, positions] = values["input_ids"][rows, at]
    segments[rows, positions] = values["segment_ids"][rows, at]
    lengths = np.where(segments >= 0, slots + 1, 0).max(axis=1)
    first_end = np.where(segments == 0, slots + 1, 0).max(axis=1)  # a separator, which is never masked, so never dropped
    return {
        "input_ids": ids,
        "length": lengths,
        "second_start": first_end,
        "next_sentence_label": _read_labels(records),
        "masked_positions": values["masked_lm_positions"],
        "masked_labels": values["masked_lm_ids"],
        "masked_count": _count_leading_ones(values["masked_lm_weights"], locations, "masked_lm_weights"),
    }


def _make_label(label: int) -> dict[str, Array]:
    return {LABEL: np.array([label])} if label >= 0 else {}


def _read_labels(records: Sequence[Features]) -> Array:
    return np.array([int(record[LABEL][0]) if len(record.get(LABEL, ())) else -1 for record in records])


def _pad_positions(record: Features, location: str) -> Array:
    """Return the positions of masked tokens, padded to as many as there are weights."""
    for name in ("masked_lm_positions", "masked_lm_weights"):
        _require_feature(record, name, location)
    positions, wanted = record["masked_lm_positions"], len(record["masked_lm_weights"])
    if len(positions) > wanted:
        raise RelmError(
            f"{location}: {len(positions)} masked_lm_positions, but {wanted} masked_lm_weights: damaged, or another format"
        )
    return np.pad(positions, (0, wanted - len(positions)))


def _stack(records: Sequence[Features], names: Sequence[str], locations: Sequence[str]) -> Columns:
    """Return the features of records as arrays, (records, values); each record must have as many values as the first."""
    for name in names:
        expected = len(_require_feature(records[0], name, locations[0]))
        for record, location in zip(records, locations, strict=True):
            if (found := len(_require_feature(record, name, location))) != expected:
                raise RelmError(f"{location}: {name} has {found} values, {locations[0]} has {expected}; import them apart")
    return {name: np.stack([record[name] for record in records]) for name in names}


def _require_feature(record: Features, name: str, location: str) -> Array:
    if name not in record or isinstance(record[name], list):
        raise RelmError(f"{location}: lacks the feature {name} as numbers; it has {', '.join(sorted(record)) or 'none'}")
    values: Array = record[name]
    return values


def _count_leading_ones(flags: Array, locations: Sequence[str], name: str) -> Array:
    """Return the count of ones that each row begins with; the rest must be zeros."""
    counts: Array = (flags > 0).sum(axis=1)
    _require(flags == (np.arange(flags.shape[1]) < counts[:, None]), locations, f"{name} are not ones, then zeros")
    return counts


def _require(right: npt.NDArray[np.bool_], locations: Sequence[str], what: str) -> None:
    wrong = np.flatnonzero(~right.all(axis=1))
    if len(wrong):
        raise RelmError(f"{locations[wrong[0]]}: {what}, so it is not an example that relm can store")
