"""Encode text to the token ids of the `tokenizers` library, many times faster where a tokenizer's rules allow it.

gigatoken encodes byte-level BPE (`byte_level`), the words of WordPiece and of T5's Unigram are encoded once and cached
(`spaced_words`), and characters are looked up in a table. Each fast encoder is compared with the library on samples of the very
text that it encodes.
"""

import contextlib
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from relm.corpus.utf8_texts import Utf8Texts
from relm.errors import RelmError
from relm.examples.tokenization.byte_level import ByteLevel
from relm.examples.tokenization.spaced_words import Characters, SpacedWords
from relm.examples.tokenization.tokenizer_files import loaded_as
from relm.examples.tokenization.tokenizer_models import kind_of

Tokens = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

# Characters of the sample, out of all texts that are encoded at once, that is compared with the library.
SAMPLE = 250
# Longer texts are encoded in parts to keep memory small; a split at the end of a word changes no token.
LONGEST_PART = 2**20
_BEFORE_SPACE = re.compile(r"\w(?= )")
# Environment variable; with the value "library" only the tokenizers library encodes.
CHOICE = "RELM_ENCODER"


class EncodedTexts(NamedTuple):
    """Concatenated sequences of different lengths."""

    tokens: Tokens
    """(n,), tokens of all sequences."""
    sizes: npt.NDArray[np.int32]
    """(sequences,), tokens of each."""


class Disagreement(RelmError):
    """A fast encoder gave other ids than the library for a sample; the library must encode the whole text."""


class FastEncoder(Protocol):
    """An encoder with the same ids as the library."""

    def encoded(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the ids of each text."""

    def word_starts(self, texts: Sequence[str], rows: Sequence[Tokens]) -> Flags:
        """Return True for each id that begins a word, for all rows concatenated."""


# Kind of tokenizer -> function of it, its `tokenizer.json` and the parsed JSON that returns a fast encoder, or None.
FAST_ENCODERS: dict[str, Callable[[Tokenizer, str, Mapping[str, Any]], FastEncoder | None]] = {
    "byte_level_bpe": ByteLevel.fitting,
    "wordpiece": SpacedWords.fitting,
    "sentencepiece": SpacedWords.fitting,
    "characters": Characters.fitting,
}


class TextEncoder:
    """Encodes texts with one tokenizer, in one thread at a time."""

    def __init__(self, tokenizer: Tokenizer, fast: bool = True) -> None:
        """Choose the fastest encoder for the tokenizer; unless `fast`, the library.

        Fast encoders need a tokenizer that encodes names of special tokens in a text as text, such as a `LoadedTokenizer` has.
        """
        self.tokenizer = tokenizer
        content = tokenizer.to_str()
        parts = json.loads(content)
        self.kind = kind_of(parts)
        allowed = fast and tokenizer.encode_special_tokens
        build = FAST_ENCODERS.get(self.kind) if allowed else None
        self.fast_encoder = build(tokenizer, content, parts) if build else None

    @property
    def fast(self) -> FastEncoder | None:
        """Return the fast encoder in use; None for the library."""
        return None if os.environ.get(CHOICE) == "library" else self.fast_encoder

    def encoded(self, texts: Sequence[str]) -> EncodedTexts:
        """Return the ids of each text, without special tokens; raise Disagreement where a sample shows others."""
        return _concatenated(self._rows(texts))

    def utf8_encoded(self, texts: Utf8Texts, end: Sequence[int] = (), compared: bool = True) -> EncodedTexts:
        """Return the ids of each text in UTF-8, as `encoded` does, followed by the ids `end`; byte-level BPE decodes nothing.

        With `compared=False` byte-level BPE compares no sample, which would take as long as encoding some 50 kB.
        """
        fast = self.fast
        if isinstance(fast, ByteLevel) and max(map(len, texts.texts), default=0) <= LONGEST_PART:
            if compared:
                self._check(fast, texts.texts)
            rows = fast.utf8_encoded(texts)
        else:
            rows = self._rows([text.decode() for text in texts.texts])
        tokens, sizes = _concatenated(rows if not end else list(_followed_by(rows, np.array(end, dtype=np.int32))))
        return EncodedTexts(tokens, sizes if not end else sizes[::2] + sizes[1::2])

    def with_word_starts(self, texts: Sequence[str]) -> tuple[EncodedTexts, Flags]:
        """Return the ids of each text, and True for those that begin a word, bool (n,).

        In WordPiece a word is a token with the `##` tokens after it, in byte-level BPE a piece of GPT-2's pattern with the
        space before it, in sentencepiece the tokens from one with U+2581 on. A text's first token always begins a word.
        """
        rows = self._rows(texts)
        starts = _starts_by_library(self.tokenizer, texts) if self.fast is None else self.fast.word_starts(texts, rows)
        ragged = _concatenated(rows)
        first = np.cumsum(ragged.sizes, dtype=np.int64) - ragged.sizes
        starts[first[ragged.sizes > 0]] = True
        return ragged, starts

    def _rows(self, texts: Sequence[str]) -> list[Tokens]:
        if self.fast is not None:
            self._check(self.fast, texts)
        if self.kind == "other" or max(map(len, texts), default=0) <= LONGEST_PART:
            return self._encoded(texts)
        return [np.concatenate(self._encoded(_parts(text))) for text in texts]

    def _encoded(self, texts: Sequence[str]) -> list[Tokens]:
        if self.fast is None:
            return [ids_by_library(self.tokenizer, text) for text in texts]
        return self.fast.encoded(texts)

    def _check(self, fast: FastEncoder, texts: Sequence[str] | Sequence[bytes]) -> None:
        """Compare a sample of the texts; it follows from the texts, so it is the same in every process."""
        if not texts:
            return
        text = texts[len(texts) // 2]
        start = sum(map(len, texts)) * 7919 % max(len(text) - SAMPLE, 1)
        part = text[start : start + SAMPLE]
        sample = part if isinstance(part, str) else part.decode("utf-8", "ignore")  # whole characters
        if fast.encoded([sample])[0].tolist() != ids_by_library(self.tokenizer, sample).tolist():
            raise Disagreement(f"{type(fast).__name__} and the tokenizers library give different ids for {sample!r}")


@functools.lru_cache(maxsize=1)
def load_encoder(tokenizer: Path, sha256: str) -> TextEncoder:
    """Return the encoder of a `tokenizer.json` in a worker, whose parent has loaded it with this sha256."""
    return TextEncoder(loaded_as(tokenizer, sha256).tokenizer)


@contextlib.contextmanager
def library_only() -> Iterator[None]:
    """Make encoders in this process and its workers use only the library while the block runs."""
    before = os.environ.get(CHOICE)
    os.environ[CHOICE] = "library"
    try:
        yield
    finally:
        os.environ.pop(CHOICE)
        if before is not None:
            os.environ[CHOICE] = before


def ids_by_library(tokenizer: Tokenizer, text: str) -> Tokens:
    """Return the library's ids of a text, encoded in this thread."""
    return np.array(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids, dtype=np.int32)


def _starts_by_library(tokenizer: Tokenizer, texts: Sequence[str]) -> Flags:
    starts = [np.zeros(0, dtype=np.bool_)]
    for text in texts:
        words = np.array(tokenizer.encode(text, add_special_tokens=False).word_ids, dtype=np.int64)
        starts.append(np.diff(words, prepend=-1) != 0)
    return np.concatenate(starts)


def _concatenated(rows: Sequence[Tokens]) -> EncodedTexts:
    sizes = np.fromiter(map(len, rows), dtype=np.int32, count=len(rows))
    return EncodedTexts(np.concatenate([np.empty(0, np.int32), *rows], dtype=np.int32, casting="unsafe"), sizes)


def _followed_by(rows: Iterable[Tokens], end: Tokens) -> Iterator[Tokens]:
    for row in rows:
        yield row
        yield end


def _parts(text: str) -> list[str]:
    """Return the text in parts of some `LONGEST_PART` characters, split at the ends of words."""
    parts = []
    start = 0
    while len(text) - start > LONGEST_PART and (found := _BEFORE_SPACE.search(text, start + LONGEST_PART)):
        parts.append(text[start : found.end()])
        start = found.end()
    return [*parts, text[start:]]
