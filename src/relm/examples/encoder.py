"""Text to token ids, exactly as the `tokenizers` library does it and many times faster where a tokenizer's rules allow.

Byte-level BPE goes to gigatoken (`relm.examples.byte_level`), the words of WordPiece and of T5's Unigram are encoded once and
remembered (`relm.examples.spaced_words`), characters are looked up in a table. Each way is tried against the library again and
again, on samples of the very text that it encodes.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from relm.errors import RelmError
from relm.examples.byte_level import ByteLevel
from relm.examples.spaced_words import Characters, SpacedWords
from relm.examples.tokenizer_models import kind_of

Tokens = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

# Of so many texts as are encoded at once, a sample of so many characters is compared with the library.
SAMPLE = 1000
# Longer texts are encoded in parts, so that memory stays small; parted where a word ends, no token is another one for it.
LONGEST_PART = 2**20
_BEFORE_SPACE = re.compile(r"\w(?= )")
# "library" in this variable: nothing but the tokenizers library encodes.
CHOICE = "RELM_ENCODER"


class EncodedTexts(NamedTuple):
    """Sequences of different lengths, one after the other."""

    tokens: Tokens
    """(n,), of all sequences."""
    sizes: npt.NDArray[np.int32]
    """(sequences,), tokens of each."""


class Disagreement(RelmError):
    """A fast way gave other ids than the library for a piece of the text: all of it has to be encoded by the library."""


class FastWay(Protocol):
    """Encodes texts as the library does, by other means."""

    def encoded(self, texts: Sequence[str]) -> list[Tokens]:
        """The ids of each text."""

    def word_starts(self, texts: Sequence[str], rows: Sequence[Tokens]) -> Flags:
        """Which ids begin a word: bool, of all rows one after the other."""


# Kind of tokenizer -> what makes its fast way from it, its `tokenizer.json` and that in parts; None where the way does not fit.
WAYS: dict[str, Callable[[Tokenizer, str, Mapping[str, Any]], FastWay | None]] = {
    "byte_level_bpe": ByteLevel.fitting,
    "wordpiece": SpacedWords.fitting,
    "sentencepiece": SpacedWords.fitting,
    "characters": Characters.fitting,
}


class TextEncoder:
    """Encodes texts with one tokenizer; not for several threads at once."""

    def __init__(self, tokenizer: Tokenizer, fast: bool = True) -> None:
        """Choose the fastest way that there is for the tokenizer.

        Args:
            tokenizer: takes text as it stands, special tokens' names included, as one of a `LoadedTokenizer` does.
            fast: whether other ways than the library are allowed.
        """
        self.tokenizer = tokenizer
        content = tokenizer.to_str()
        parts = json.loads(content)
        self.kind = kind_of(parts)
        allowed = fast and tokenizer.encode_special_tokens
        self.fast_way = WAYS[self.kind](tokenizer, content, parts) if allowed and self.kind in WAYS else None

    @property
    def way(self) -> FastWay | None:
        """What encodes; None: the library."""
        return None if os.environ.get(CHOICE) == "library" else self.fast_way

    def encoded(self, texts: Sequence[str]) -> EncodedTexts:
        """The ids of each text, without any special tokens.

        Raises:
            Disagreement: a sample shows that the fast way is not the library's.
        """
        return _joined(self._rows(texts))

    def with_word_starts(self, texts: Sequence[str]) -> tuple[EncodedTexts, Flags]:
        """The ids of each text, and which of them begin a word: bool (n,).

        A word of WordPiece is a token with the `##` tokens after it; of byte-level BPE a piece of GPT-2's pattern, with the
        space before it; of sentencepiece what begins with U+2581. The first token of a text begins one in any case.

        Raises:
            Disagreement: as for `encoded`.
        """
        rows = self._rows(texts)
        starts = _starts_by_library(self.tokenizer, texts) if self.way is None else self.way.word_starts(texts, rows)
        ragged = _joined(rows)
        first = np.cumsum(ragged.sizes, dtype=np.int64) - ragged.sizes
        starts[first[ragged.sizes > 0]] = True
        return ragged, starts

    def _rows(self, texts: Sequence[str]) -> list[Tokens]:
        if self.way is not None:
            self._check(self.way, texts)
        if self.kind == "other" or max(map(len, texts), default=0) <= LONGEST_PART:
            return self._encoded(texts)
        return [np.concatenate(self._encoded(_parts(text))) for text in texts]

    def _encoded(self, texts: Sequence[str]) -> list[Tokens]:
        if self.way is None:
            return [ids_by_library(self.tokenizer, text) for text in texts]
        return self.way.encoded(texts)

    def _check(self, way: FastWay, texts: Sequence[str]) -> None:
        """Compare a sample of the texts, which depends on them alone: whichever process has them, it is the same."""
        if not texts:
            return
        text = texts[len(texts) // 2]
        start = sum(map(len, texts)) * 7919 % max(len(text) - SAMPLE, 1)
        sample = text[start : start + SAMPLE]
        if way.encoded([sample])[0].tolist() != ids_by_library(self.tokenizer, sample).tolist():
            raise Disagreement(f"the tokenizers library and {type(way).__name__} give other ids for {sample!r}")


@contextlib.contextmanager
def library_only() -> Iterator[None]:
    """Let encoders that are made in here, in this process and its workers, use the library and no other way."""
    before = os.environ.get(CHOICE)
    os.environ[CHOICE] = "library"
    try:
        yield
    finally:
        os.environ.pop(CHOICE)
        if before is not None:
            os.environ[CHOICE] = before


def ids_by_library(tokenizer: Tokenizer, text: str) -> Tokens:
    """The ids of a text as the library gives them, in this thread's time."""
    return np.array(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids, dtype=np.int32)


def _starts_by_library(tokenizer: Tokenizer, texts: Sequence[str]) -> Flags:
    starts = [np.zeros(0, dtype=np.bool_)]
    for text in texts:
        words = np.array(tokenizer.encode(text, add_special_tokens=False).word_ids, dtype=np.int64)
        starts.append(np.diff(words, prepend=-1) != 0)
    return np.concatenate(starts)


def _joined(rows: Sequence[Tokens]) -> EncodedTexts:
    sizes = np.fromiter(map(len, rows), dtype=np.int32, count=len(rows))
    return EncodedTexts(np.concatenate([np.empty(0, np.int32), *rows], dtype=np.int32, casting="unsafe"), sizes)


def _parts(text: str) -> list[str]:
    """The text in pieces of some `LONGEST_PART` characters, parted where words end."""
    parts = []
    start = 0
    while len(text) - start > LONGEST_PART and (found := _BEFORE_SPACE.search(text, start + LONGEST_PART)):
        parts.append(text[start : found.end()])
        start = found.end()
    return [*parts, text[start:]]
