"""Fast encoders for tokenizers that encode each word, or each character, independently.

BERT's WordPiece splits text at white space and punctuation, and T5's Unigram at white space, so the text between two spaces has
the same ids everywhere: the library encodes it once, then a lookup is enough. Unigram's table of characters works on Unicode's
grapheme clusters, and a space may be part of one: the library encodes texts with such a space.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from relm.errors import RelmError
from relm.examples.tokenization.tokenizer_models import CONTINUING, SPACE, UNKNOWN

Tokens = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

# Limits of the cache, about 200 bytes a word. Text always has new words, but the frequent ones come early.
REMEMBERED_WORDS, LONGEST_WORD = 2**18, 100
# Model -> the normalizers and pre-tokenizers that treat each word between spaces independently of the others.
_FITTING: dict[str, tuple[set[tuple[str, ...]], set[tuple[str, ...]]]] = {
    "WordPiece": ({("BertNormalizer",), ()}, {("BertPreTokenizer",)}),
    "Unigram": ({("Precompiled", "Strip", "Replace")}, {("Metaspace", "Split")}),
}


# Letters in one grapheme cluster with the character before or after them (Unicode Standard Annex 29).
_JOINING_LETTERS = {*"\u0d4e\u0e33\u0eb3\uff9e\uff9f"}


class _JoinedToSpace(Exception):
    """A word may share a grapheme cluster with a neighbouring space."""


class SpacedWords(dict[str, bytes]):
    """A cache of word -> its ids as little-endian int32, filled as words occur."""

    def __init__(self, tokenizer: Tokenizer, begins_word: Flags, by_clusters: bool) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.begins_word = begins_word
        self.by_clusters = by_clusters

    @classmethod
    def fitting(cls, tokenizer: Tokenizer, content: str, parts: Mapping[str, Any]) -> Self | None:
        """Return the encoder for this tokenizer; None if ids may depend on text across a space."""
        model = parts["model"]["type"]
        normalizers, cutters = _FITTING.get(model, (set(), set()))
        fits = _types(parts["normalizer"]) in normalizers and _types(parts["pre_tokenizer"]) in cutters
        if not fits or not all(token["special"] for token in parts["added_tokens"]):
            return None
        begins_word = np.zeros(max(tokenizer.get_vocab().values()) + 1, dtype=np.bool_)
        for token, number in tokenizer.get_vocab().items():
            begins_word[number] = token.startswith(SPACE) if model == "Unigram" else not token.startswith(CONTINUING)
        return cls(tokenizer, begins_word, by_clusters=model == "Unigram")

    def encoded(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the ids of each text."""
        return [np.frombuffer(self._encoded(text), dtype="<i4") for text in texts]

    def word_starts(self, texts: Sequence[str], rows: Sequence[Tokens]) -> Flags:
        """Return True for each id that begins a word: one without `##`, or with U+2581."""
        return np.concatenate([np.zeros(0, dtype=np.bool_), *(self.begins_word[row] for row in rows)])

    def _encoded(self, text: str) -> bytes:
        try:
            return b"".join(map(self.__getitem__, text.split(" ")))
        except _JoinedToSpace:
            return self._by_library(text)

    def _by_library(self, text: str) -> bytes:
        return np.array(self.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids, dtype="<i4").tobytes()

    def __missing__(self, word: str) -> bytes:
        if self.by_clusters and word and (_may_join(word[0]) or _may_join(word[-1])):
            raise _JoinedToSpace
        ids = self._by_library(word)
        if len(self) < REMEMBERED_WORDS and len(word) <= LONGEST_WORD:
            self[word] = ids
        return ids


# Marks characters without an id.
_NONE = -1


class Characters:
    """Looks up ids by code point."""

    def __init__(self, ids: Tokens) -> None:
        self.ids = ids

    @classmethod
    def fitting(cls, tokenizer: Tokenizer, content: str, parts: Mapping[str, Any]) -> Self | None:
        """Return the encoder for this tokenizer; None if its tokens are not single characters."""
        special = {token["content"] for token in parts["added_tokens"]}
        vocabulary = {token: number for token, number in tokenizer.get_vocab().items() if token not in special}
        unknown = tokenizer.token_to_id(UNKNOWN)
        if parts["normalizer"] or any(len(token) != 1 for token in vocabulary):
            return None
        ids = np.full(0x110000, _NONE if unknown is None else unknown, dtype=np.int32)
        for character, number in vocabulary.items():
            ids[ord(character)] = number
        return cls(ids)

    def encoded(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the ids of each text; raise RelmError for a character without one."""
        rows = [self.ids[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")] for text in texts]
        for text, row in zip(texts, rows, strict=True):
            if len(row) and int(row.min()) == _NONE:
                raise RelmError(
                    f"the tokenizer has no token for the character {text[int(row.argmin())]!r}; train it on text that has all "
                    "characters, or with special tokens"
                )
        return rows

    def word_starts(self, texts: Sequence[str], rows: Sequence[Tokens]) -> Flags:
        """Return True for each character: each is a word."""
        return np.ones(sum(map(len, rows)), dtype=np.bool_)


def _may_join(character: str) -> bool:
    """Return True if a character may share a grapheme cluster with a neighbouring space; where uncertain, too."""
    if character.isascii():
        return False
    category = unicodedata.category(character)
    return category[0] in "MCZ" or category == "Sk" or character in _JOINING_LETTERS or 0x11000 <= ord(character) < 0x12000


def _types(part: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the type of a component, or those of a sequence of components."""
    if part is None:
        return ()
    inner = part.get("normalizers", part.get("pretokenizers"))
    return tuple(piece["type"] for piece in inner) if isinstance(inner, list) else (part["type"],)
