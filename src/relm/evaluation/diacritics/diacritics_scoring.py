"""Comparison of a text's diacritics with those of a reference, by letter and by word: pure functions on strings.

Both texts have each letter in one form (`relm.examples.diacritics.with_standard_letters`), so that the composition of a
letter does not matter, and a Romanian ș may have a comma or a cedilla. Upper and lower case differ.

A word is a run of letters, as in Python's `\\w`, without digits and the underscore; a letter is a character with the marks
that could not be composed with it. Characters between words are ignored. A word of the reference is compared with a word of the
output that is the same without diacritics and case. If both texts have the same such words in the same order, as a model that
does nothing else writes them, the first is compared with the first and so on. Otherwise the alignment pairs as many words as
it can, and of such alignments it takes one with the most equal words. A word without a partner is wrong, with all its letters;
extra words of the output are counted and cost nothing.
"""

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from relm.examples.diacritics import MARKS, without_diacritics

WORD = re.compile(rf"[^\W\d_]+(?:[{MARKS}]+[^\W\d_]*)*")
LETTER = re.compile(f".[{MARKS}]*", re.DOTALL)

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RestorationCounts:
    """Counts of compared words and letters, and of right ones."""

    words: int = 0
    right_words: int = 0
    ambiguous_words: int = 0
    """Words of the reference that share their form without diacritics with other words."""
    right_ambiguous_words: int = 0
    characters: int = 0
    """Letters of the reference."""
    right_characters: int = 0
    diacritics: int = 0
    """Letters of the reference with a diacritic."""
    right_diacritics: int = 0
    extra_words: int = 0
    """Words of the output without a partner."""

    def __add__(self, other: "RestorationCounts") -> "RestorationCounts":
        return RestorationCounts(*map(sum, zip(vars(self).values(), vars(other).values(), strict=True)))

    def accuracies(self) -> dict[str, float]:
        """Return the right shares, from 0 to 1, of everything that was counted."""
        shares = {
            "character_accuracy": (self.right_characters, self.characters),
            "word_accuracy": (self.right_words, self.words),
            "ambiguous_word_accuracy": (self.right_ambiguous_words, self.ambiguous_words),
            "diacritic_accuracy": (self.right_diacritics, self.diacritics),
        }
        return {name: right / of for name, (right, of) in shares.items() if of}


def words_of(text: str) -> list[str]:
    """Return the words of a text.

    >>> words_of("Într-o zi, 2 km")
    ['Într', 'o', 'zi', 'km']
    """
    return WORD.findall(text)


def letters_of(word: str) -> list[str]:
    """Return the letters of a word, with their marks."""
    return LETTER.findall(word)


def plain(word: str) -> str:
    """Return a word without diacritics and in lower case, with the same number of letters.

    >>> plain("Țară")
    'tara'
    """
    return without_diacritics(word).lower()


def compare_texts(reference: str, output: str, ambiguous: Container[str]) -> RestorationCounts:
    """Compare an output with the reference, both in standard letters; ambiguous words are reduced by `plain`."""
    expected, found = words_of(reference), words_of(output)
    pairs = align_words(expected, found)
    partners: list[str | None] = [None] * len(expected)
    for index, other in pairs:
        partners[index] = found[other]
    counts = [_count_word(word, partner, plain(word) in ambiguous) for word, partner in zip(expected, partners, strict=True)]
    sums = [sum(column) for column in zip(*counts, strict=True)] or [0] * 8
    return RestorationCounts(*[*sums, len(found) - len(pairs)])


def _count_word(word: str, partner: str | None, is_ambiguous: bool) -> tuple[int, ...]:
    """Return all fields of `RestorationCounts` but the last for one word of the reference."""
    right = word == partner
    letters = letters_of(word)
    same = [right] * len(letters)
    if not right and partner is not None:
        same = [letter == other for letter, other in zip(letters, letters_of(partner), strict=True)]
    marked = [letter != bare for letter, bare in zip(letters, map(without_diacritics, letters), strict=True)]
    both = sum(a and b for a, b in zip(same, marked, strict=True))
    return 1, right, is_ambiguous, is_ambiguous and right, len(letters), sum(same), sum(marked), both


def align_words(expected: Sequence[str], found: Sequence[str]) -> list[tuple[int, int]]:
    """Return the aligned pairs of indices, both ascending, of words that are the same once reduced by `plain`.

    >>> align_words(["Să", "o", "fată"], ["sa", "ba", "fata"])
    [(0, 0), (2, 2)]
    """
    plain_expected, plain_found = list(map(plain, expected)), list(map(plain, found))
    if plain_expected == plain_found:
        return [(index, index) for index in range(len(expected))]
    # A word that the other text lacks has no partner, so the table omits it.
    shared = set(plain_expected) & set(plain_found)
    left = [index for index, word in enumerate(plain_expected) if word in shared]
    right = [index for index, word in enumerate(plain_found) if word in shared]
    numbers: dict[str, int] = {}
    rows = _number_words([(plain_expected[index], expected[index]) for index in left], numbers)
    columns = _number_words([(plain_found[index], found[index]) for index in right], numbers)
    pairs = _align(rows, columns, min(len(rows), len(columns)) + 1)
    return [(left[row], right[column]) for row, column in pairs]


def _number_words(words: Sequence[tuple[str, str]], numbers: dict[str, int]) -> Integers:
    """Return (words, 2) numbers: equal ones for equal plain forms, and for equal words."""
    found = [numbers.setdefault(text, len(numbers)) for word in words for text in word]
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def _align(rows: Integers, columns: Integers, weight: int) -> list[tuple[int, int]]:
    """Return the best alignment of words given as (words, 2) numbers, of the plain form and of the word itself.

    It is a longest common subsequence in which a pair counts `weight`, plus one if the words are equal. The table has a cell
    for each pair of words, since parts of texts have at most a few hundred tokens.
    """
    table = np.zeros((len(rows) + 1, len(columns) + 1), dtype=np.int64)
    for number, word in enumerate(rows):
        table[number + 1] = _next_row(table[number], word, columns, weight)
    pairs, row, column = [], len(rows), len(columns)
    while table[row, column]:
        if table[row, column] == table[row - 1, column]:
            row -= 1
        elif table[row, column] == table[row, column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            pairs.append((row, column))
    return pairs[::-1]


def _next_row(row: Integers, word: Integers, columns: Integers, weight: int) -> Integers:
    """Return the values of all prefixes of the columns, with one more word of the rows."""
    gains = (columns[:, 0] == word[0]) * weight + (columns[:, 1] == word[1])
    best = row.copy()
    np.maximum(row[1:], row[:-1] + gains, out=best[1:])
    return np.maximum.accumulate(best)
