"""Encode a text or a pair of texts for a classifier, as one sequence with the special tokens of BERT or RoBERTa."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.contract import Batch, Integers
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer

# Tokens that BERT and RoBERTa add to two texts: [CLS] a [SEP] b [SEP], or <s> a </s></s> b </s>.
BERT_TEMPLATE, ROBERTA_TEMPLATE = 3, 4
# Tokens that both add to one text.
ONE_TEXT = 2


class PairTemplate(NamedTuple):
    """The special tokens of a pair."""

    cls: int
    sep: int
    pad: int
    separators: int
    """Number of separators between the two texts."""


def read_pair_template(tokenizer: LoadedTokenizer) -> PairTemplate:
    """Return the special tokens that a tokenizer puts around two texts."""
    added = tokenizer.tokenizer.num_special_tokens_to_add(is_pair=True)
    cls, sep = tokenizer.required("cls"), tokenizer.required("sep")
    if added not in (BERT_TEMPLATE, ROBERTA_TEMPLATE):
        raise RelmError(
            f"{tokenizer.path}: adds {added} tokens to two texts, expected {BERT_TEMPLATE} as BERT or {ROBERTA_TEMPLATE} as "
            "RoBERTa; use another tokenizer"
        )
    return PairTemplate(cls, sep, tokenizer.special.pad or 0, added - 2)


def model_inputs(input_ids: npt.NDArray[np.integer], lengths: Integers, second_starts: Integers) -> Batch:
    """Return a model's inputs; the first text and its separators are segment 0, the second and its separator segment 1.

    `input_ids` are padded, (sequences, length), `lengths` without padding, (sequences,); `second_starts` are the positions of
    the second text's first token, or of the padding.
    """
    positions = np.arange(input_ids.shape[1])
    mask = positions < lengths[:, None]
    second = mask & (positions >= second_starts[:, None])
    return {"input_ids": input_ids.astype(np.int64), "attention_mask": mask, "token_type_ids": second.astype(np.int64)}


class PairSequences(NamedTuple):
    """Texts or pairs as sequences."""

    input_ids: Integers
    """(sequences, length), padded."""
    lengths: Integers
    """(sequences,), tokens without padding."""
    second_starts: Integers
    """(sequences,), position of the second text's first token; that of the padding if there is none."""

    def inputs(self) -> Batch:
        """Return `input_ids`, `attention_mask` and `token_type_ids`, all (sequences, length), as a model takes them."""
        return model_inputs(self.input_ids, self.lengths, self.second_starts)


def encode_pairs(tokenizer: LoadedTokenizer, first: Sequence[str], second: Sequence[str] | None, length: int) -> PairSequences:
    """Return texts, or pairs of texts, as sequences of `length` tokens; the longer text loses tokens at its end.

    The sequences are those of transformers with `truncation="longest_first"`. They differ by a token from `_truncate_seq_pair`
    of the original's `run_classifier.py` if both texts are cut, the number of tokens is odd, and the second is not shorter:
    then the second has one token more, not the first.
    """
    special = read_pair_template(tokenizer)
    rows = np.full((len(first), length), special.pad, dtype=np.int64)
    lengths, starts = (np.empty(len(first), dtype=np.int64) for _ in range(2))
    ids = _token_ids(tokenizer, first)
    others = [None] * len(first) if second is None else _token_ids(tokenizer, second)
    for number, (a, b) in enumerate(zip(ids, others, strict=True)):
        if b is None:
            sequence = [special.cls, *a[: length - ONE_TEXT], special.sep]
            starts[number] = len(sequence)
        else:
            kept = share_room(len(a), len(b), length - 2 - special.separators)
            head = [special.cls, *a[: kept[0]], *[special.sep] * special.separators]
            starts[number] = len(head)
            sequence = [*head, *b[: kept[1]], special.sep]
        rows[number, : len(sequence)], lengths[number] = sequence, len(sequence)
    return PairSequences(rows, lengths, starts)


def _token_ids(tokenizer: LoadedTokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.tokenizer.encode_batch(list(texts), add_special_tokens=False)]


def share_room(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens two texts keep: all if they fit, else the longer one is cut until both have half of the room.

    With an odd room the longer text has one token more, and of equally long ones the second.

    >>> share_room(3, 9, room=10), share_room(9, 9, room=9), share_room(9, 8, room=9)
    ((3, 7), (4, 5), (5, 4))
    """
    half = (room + (first > second)) // 2
    kept = min(first, max(room - second, half))
    return kept, min(second, room - kept)
