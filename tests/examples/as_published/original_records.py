"""Masked examples as the originals' data scripts write them, to compare with their files.

Records are those of Graphcore's create_pretraining_data.py for TensorFlow 1, plain, as Google's are, and remasked. Lines are
those of pregenerate_training_data.py of allenai/tpu_pretrain. Names, order of values, padding and spaces are the originals'.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
LABEL = "next_sentence_labels"
KEYS_OF_LINES = ("tokens", "segment_ids", "is_random_next", "masked_lm_positions", "masked_lm_labels")


def make_plain_records(columns: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Yield the features of each row, a pair of segments."""
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
        LABEL: columns["next_sentence_label"][:, None],
    }
    for row in range(len(within)):
        yield {name: values[row] for name, values in features.items()}


def make_remasked_records(fields: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Yield the features of each row of `relm.examples.as_published.graphcore_bert.remask`."""
    for row, count in enumerate(fields["masked_lm_weights"].sum(axis=1).astype(np.int64).tolist()):
        features = {name: np.atleast_1d(values[row]) for name, values in fields.items()}
        yield {**features, "masked_lm_positions": features["masked_lm_positions"][:count]}


def format_lines(columns: Mapping[str, Array], tokens: Sequence[str]) -> Iterator[str]:
    """Yield the line of each row, its newline included; `tokens` are by id."""
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
        yield json.dumps(dict(zip(KEYS_OF_LINES, values, strict=True))) + "\n"
