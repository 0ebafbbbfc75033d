"""Words and shared n-grams of texts in plain Python, with sets of tuples, which the arrays must agree with."""

import itertools
import unicodedata
from collections.abc import Iterable, Sequence


def split_words(text: str) -> list[str]:
    """The runs of letters, marks and numbers of a text in lower case and NFC."""
    normalised = unicodedata.normalize("NFC", text.lower())
    runs = itertools.groupby(normalised, key=lambda character: unicodedata.category(character)[0] in "LMN")
    return ["".join(run) for is_word, run in runs if is_word]


def list_ngrams(text: str, n: int) -> set[tuple[str, ...]]:
    """All sequences of n consecutive words."""
    words = split_words(text)
    return {tuple(words[first : first + n]) for first in range(len(words) - n + 1)}


def list_sought(text: str) -> set[tuple[str, ...]]:
    """The sequences that are sought of a text of a test: its 13-grams, or the whole text if it has 8 to 12 words."""
    size = len(split_words(text))
    return list_ngrams(text, min(13, size)) if size >= 8 else set()


def find_overlap_plainly(items: Sequence[Sequence[str]], documents: Iterable[str]) -> tuple[list[bool], list[bool], list[int]]:
    """For each item: True if it is found in a document, True if anything is sought of it, and how many documents have it."""
    held = [{n: list_ngrams(text, n) for n in range(8, 14)} for text in documents]
    sought = [set().union(*map(list_sought, texts)) for texts in items]
    counts = [sum(any(ngram in grams[len(ngram)] for ngram in each) for grams in held) for each in sought]
    return [count > 0 for count in counts], [bool(each) for each in sought], counts
