"""Words and shared n-grams of texts in plain Python, with sets of tuples, which the comparison must agree with."""

import re


def split_words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return re.findall(r"\w+", text.lower())


def list_ngrams(text: str, n: int) -> set[tuple[str, ...]]:
    """All sequences of n consecutive words."""
    words = split_words(text)
    return {tuple(words[first : first + n]) for first in range(len(words) - n + 1)}


def list_sought(text: str) -> set[tuple[str, ...]]:
    """The sequences that are sought of a text of a test: its 13-grams, or the whole text if it has 8 to 12 words."""
    size = len(split_words(text))
    return list_ngrams(text, min(13, size)) if size >= 8 else set()
