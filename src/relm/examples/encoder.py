"""Text to token ids, exactly as the `tokenizers` library does it and several times faster where GPT-2's rules allow.

A byte-level BPE encodes each piece that GPT-2's pattern cuts from the text on its own, so a piece is encoded once and looked up
from then on. The pattern is matched by Python's `re`, whose classes of characters differ from the library's in places; each
character is therefore tried with both the first time it is seen, and a document with one they disagree on goes to the library.
"""

import json
import re

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

Tokens = npt.NDArray[np.int32]

# GPT-2's pattern (openai/gpt-2, encoder.py). \p{N} is \d and those other numbers that are not rare, \p{L} what remains of \w.
_NUMBERS = r"\d²³¹¼½¾⁰⁴-⁹₀-₉⅐-ↂↅ-ↈ"
PIECES = re.compile(rf"'(?:[stmd]|re|ve|ll)| ?[^\W_{_NUMBERS}]+| ?[{_NUMBERS}]+| ?(?:[^\s\w]+|_+)+|\s+(?!\S)|\s+")
# Pieces remembered, some 200 bytes each; text has ever new ones, but the frequent ones come early.
REMEMBERED_PIECES = 2**18


class Encoder:
    """Encodes documents with one tokenizer; not for several threads at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.pieces = _Pieces(tokenizer) if cuts_like_gpt2(tokenizer) else None

    def encoded(self, text: str) -> Tokens:
        """The ids of a text, without any special tokens."""
        if self.pieces is not None and self.pieces.can_cut(text):
            return self.pieces.encoded(text)
        return np.array(self.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids, dtype=np.int32)


def cuts_like_gpt2(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer is a deterministic BPE whose pieces are those of `PIECES`, in text as it stands."""
    parts = json.loads(tokenizer.to_str())
    cutter = parts["pre_tokenizer"] or {}
    return (
        parts["normalizer"] is None
        and (cutter.get("type"), cutter.get("add_prefix_space"), cutter.get("use_regex")) == ("ByteLevel", False, True)
        and (parts["model"].get("type"), parts["model"].get("dropout")) == ("BPE", None)
        and all(token["special"] for token in parts["added_tokens"])
        and tokenizer.encode_special_tokens
    )


class _Pieces(dict[str, bytes]):
    """Piece of text -> its ids as little-endian int32, filled as pieces are asked for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.agreed: set[str] = set()
        self.disputed: set[str] = set()

    def can_cut(self, text: str) -> bool:
        """Whether `PIECES` and the library agree on the class of every character."""
        found = set(text)
        for character in found - self.agreed - self.disputed:
            (self.agreed if self._agree_on(character) else self.disputed).add(character)
        return found.isdisjoint(self.disputed)

    def encoded(self, text: str) -> Tokens:
        return np.frombuffer(b"".join(map(self.__getitem__, PIECES.findall(text))), dtype="<i4")

    def _agree_on(self, character: str) -> bool:
        # A letter joins a letter, a digit a digit, a mark a mark; a space joins none of them.
        cut = self.tokenizer.pre_tokenizer.pre_tokenize_str
        return all(len(cut(before + character)) == len(PIECES.findall(before + character)) for before in "a1!")

    def __missing__(self, piece: str) -> bytes:
        ids = np.array(self.tokenizer.encode(piece, add_special_tokens=False).ids, dtype="<i4").tobytes()
        if len(self) < REMEMBERED_PIECES:
            self[piece] = ids
        return ids
