"""Words of texts without case and punctuation, and hashes of consecutive words, as arrays.

Texts are compared as in GPT-2's paper (https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf,
section 4), as "lower-cased alphanumeric words with a single space as a delimiter". So a text has the same words with WikiText's
spaces around punctuation and without, as in `well @-@ known` and `well-known`. GPT-3's paper and lm_eval's decontamination
delete punctuation instead, which makes one word of the latter and two of the former.
"""

import enum
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

# Characters that are hashed at once: a dozen arrays of eight bytes each are in memory for each of them.
AT_ONCE = 1 << 20
# Odd numbers without a pattern, so that sums of powers differ for different sequences.
_OF_CHARACTER, _OF_WORD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
# Categories of Unicode whose characters form words: letters, marks and numbers.
_IN_WORDS = ("L", "M", "N")
_WHITE_SPACE = re.compile(r"\s")


class Words(NamedTuple):
    """The words of several texts, one text after the other."""

    hashes: Hashes
    """(words,)"""
    texts: Integers
    """(words,) index of each word's text, ascending."""


class NGrams(NamedTuple):
    """All sequences of n consecutive words that lie within one text."""

    hashes: Hashes
    """(n-grams,)"""
    texts: Integers
    """(n-grams,) index of each one's text, ascending."""


class WordRule(enum.Enum):
    """A rule that divides a text into words."""

    UNICODE = "unicode"
    """Maximal runs of letters, marks and numbers, in lower case and NFC."""
    PYTHON = "python"
    r"""Matches of Python's regular expression ``\w+`` in ``text.lower()``: no marks, but the underscore."""

    def normalise(self, text: str) -> str:
        """Return the text in which words are sought."""
        return text.lower() if self is WordRule.PYTHON else normalise(text)

    def is_in_word(self, character: str) -> bool:
        """Return whether a character is part of a word."""
        if self is WordRule.PYTHON:
            return character.isalnum() or character == "_"
        return unicodedata.category(character)[0] in _IN_WORDS


def normalise(text: str) -> str:
    """Return a text in lower case and in Unicode's form NFC, in which words are compared."""
    return unicodedata.normalize("NFC", text.lower())


def split_words(text: str) -> list[str]:
    """Return the words that `hash_words` hashes, one by one: for short texts.

    >>> split_words("Well-known: 1,000 of Ion's.")
    ['well', 'known', '1', '000', 'of', 'ion', 's']
    """
    runs = itertools.groupby(normalise(text), key=lambda character: unicodedata.category(character)[0] in _IN_WORDS)
    return ["".join(run) for in_word, run in runs if in_word]


def hash_words(texts: Sequence[str], rule: WordRule = WordRule.UNICODE) -> Words:
    """Return the hash of each word of some texts.

    Memory grows with the words, and not with the characters, of a long text.

    >>> words = hash_words(["Don't stop", "", "DON T"])
    >>> words.texts.tolist(), len(set(words.hashes.tolist()))
    ([0, 0, 0, 2, 2], 3)
    """
    parts = [_hash_pieces(owners, pieces, rule) for owners, pieces in _group(texts)]
    if not parts:
        return Words(np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64))
    return Words(np.concatenate([part.hashes for part in parts]), np.concatenate([part.texts for part in parts]))


def hash_ngrams(words: Words, n: int) -> NGrams:
    """Return the hash of each sequence of n words of one text, in order.

    Two different sequences have the same hash with a probability of 2^-64: of 10^10 words of training text and 10^5 words of
    a test, 5 in 100,000 such comparisons as a whole find a sequence that is not there.
    """
    count = max(len(words.hashes) - n + 1, 0)
    sums = np.zeros(count, dtype=np.uint64)
    for offset in range(n):
        sums *= _OF_WORD
        sums += words.hashes[offset : offset + count]
    within = words.texts[:count] == words.texts[n - 1 :][:count]
    return NGrams(_mix(sums[within]), words.texts[:count][within])


def _group(texts: Sequence[str]) -> Iterator[tuple[list[int], list[str]]]:
    """Yield texts, long ones in pieces, with their indices, in groups of about `AT_ONCE` characters."""
    owners: list[int] = []
    pieces: list[str] = []
    size = 0
    for owner, text in enumerate(texts):
        for piece in _cut(text):
            owners.append(owner)
            pieces.append(piece)
            size += len(piece)
            if size >= AT_ONCE:
                yield owners, pieces
                owners, pieces, size = [], [], 0
    if pieces:
        yield owners, pieces


def _cut(text: str) -> Iterator[str]:
    """Yield a text in pieces of `AT_ONCE` characters or more, cut before white space, which is in no word."""
    start = 0
    while len(text) - start > AT_ONCE and (space := _WHITE_SPACE.search(text, start + AT_ONCE)):
        yield text[start : space.start()]
        start = space.start()
    yield text[start:]


def _hash_pieces(owners: Sequence[int], pieces: Sequence[str], rule: WordRule) -> Words:
    normalised = [rule.normalise(piece) for piece in pieces]
    codes = _code_points("\n".join(normalised))
    inside = _word_characters(rule, int(codes.max(initial=0)))[codes]
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
    starts, sizes = edges[::2], edges[1::2] - edges[::2]
    if not len(starts):
        return Words(np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64))
    firsts = np.cumsum(sizes) - sizes
    within = np.arange(firsts[-1] + sizes[-1]) - np.repeat(firsts, sizes)
    powers = np.cumprod(np.full(int(sizes.max()), _OF_CHARACTER))
    hashes = _mix(np.add.reduceat(codes[inside].astype(np.uint64) * powers[within], firsts))
    piece_ends = np.cumsum([len(piece) + 1 for piece in normalised])
    return Words(hashes, np.asarray(owners, dtype=np.int64)[np.searchsorted(piece_ends, starts, side="right")])


def _code_points(text: str) -> npt.NDArray[np.uint8] | npt.NDArray[np.uint32]:
    if text.isascii():
        return np.frombuffer(text.encode(), dtype=np.uint8)
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _word_characters(rule: WordRule, largest: int) -> npt.NDArray[np.bool_]:
    """Return a table that is True for code points in words, up to some code point at least."""
    return _table(rule, next(size for size in (0x80, 0x20000, 0x110000) if largest < size))


@functools.cache
def _table(rule: WordRule, size: int) -> npt.NDArray[np.bool_]:
    return np.fromiter((rule.is_in_word(chr(code)) for code in range(size)), np.bool_, count=size)


def _mix(values: Hashes) -> Hashes:
    """Return values whose bits all depend on all bits of the given ones, one to one: the end of splitmix64.

    Steele, Lea and Flood 2014, https://doi.org/10.1145/2660193.2660195.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed
