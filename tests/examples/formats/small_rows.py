"""Two masked examples with static masks, by column, and the facts of a shard."""

from dataclasses import asdict
from typing import Any

import numpy as np

from relm.examples.manifest import length_histogram
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer

# [CLS] the cat [MASK] [SEP] a dog ran [SEP], with `on` for `mat`; and [CLS] cat [SEP], all in one segment.
PAIR: dict[str, Any] = {
    "input_ids": [2, 6, 7, 4, 3, 10, 13, 9, 3, 0],
    "length": 9,
    "second_start": 5,
    "next_sentence_label": 1,
    "masked_positions": [3, 7, 0],
    "masked_labels": [8, 11, 0],
    "masked_count": 2,
}
SINGLE: dict[str, Any] = {
    "input_ids": [2, 4, 3, 0, 0, 0, 0, 0, 0, 0],
    "length": 3,
    "second_start": 3,
    "next_sentence_label": 0,
    "masked_positions": [1, 0, 0],
    "masked_labels": [7, 0, 0],
    "masked_count": 1,
}


def facts_of(loaded: LoadedTokenizer, lengths: list[int], **more: Any) -> dict[str, Any]:
    """Return a shard's facts but for those of its layout."""
    return {
        "dtype": "uint16",
        "tokens": sum(lengths),
        "documents": len(lengths),
        "words": sum(lengths),
        "bytes": sum(lengths),
        "tokenizer_sha256": loaded.sha256,
        "vocabulary_size": loaded.vocabulary_size,
        "special": asdict(loaded.special),
        "source": "00" * 32,
        "length_histogram": length_histogram(np.array(lengths)),
        **more,
    }
