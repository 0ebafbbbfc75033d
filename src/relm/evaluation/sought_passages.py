"""The tests with which documents are compared, and the passages of them that are cut out of documents."""

import collections
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from relm.corpus.ngrams import WordRule, hash_words
from relm.evaluation.evaluated_items import Item
from relm.examples.cut_passages import COMMON, Cut, WordSequences, cut_passages, find_sequences, list_sequences
from relm.examples.overlap import ItemNGrams, Sought


@dataclass(frozen=True)
class TestSequences:
    """A test with the sequences of words of its items."""

    name: str
    items: Sequence[Item]
    ngrams: ItemNGrams
    """Its sequences; with cut passages those of `WordRule.PYTHON`."""
    sha256: str

    def find_item(self, number: int) -> Item:
        """Return the first item that has a sequence."""
        return self.items[int(self.ngrams.items[np.flatnonzero(self.ngrams.numbers == number)[0]])]


@dataclass(frozen=True)
class SoughtPassages:
    """Sequences of words of tests, by whose hashes most documents are passed over; each worker gets a copy."""

    hashes: Sequence[Sought]
    """The hashes of each test's sequences."""
    origins: Mapping[str, tuple[str, str]]
    """Sequence -> the name of the first test that has it, and the first of its items."""

    @classmethod
    def of(cls, tests: Sequence[TestSequences]) -> Self:
        """Return the passages of all items of some tests, whose n-grams follow `WordRule.PYTHON`."""
        origins: dict[str, tuple[str, str]] = {}
        for test in tests:
            for item in test.items:
                for text in item.texts:
                    for sequence in list_sequences(text):
                        origins.setdefault(sequence, (test.name, item.where))
        return cls([test.ngrams.sought for test in tests], origins)

    @functools.cached_property
    def _sequences(self) -> WordSequences:
        return WordSequences.of(self.origins)

    def find(self, texts: Sequence[str]) -> dict[int, list[str]]:
        """Return the index of each text that has a sequence, and the sequences that `find_sequences` finds in it, if any."""
        words = hash_words(texts, WordRule.PYTHON)
        likely = np.unique(np.concatenate([sought.find(words)[1] for sought in self.hashes])).tolist()
        return {number: find_sequences(texts[number], self._sequences) for number in likely}

    def without_common(self, found: Iterable[Sequence[str]]) -> Self:
        """Return the passages without the sequences that `COMMON` documents or more have.

        Args:
            found: the sequences of each document that has any.
        """
        counts = collections.Counter(sequence for sequences in found for sequence in sequences)
        rare = {sequence: origin for sequence, origin in self.origins.items() if counts[sequence] < COMMON}
        return replace(self, origins=rare)

    def cut(self, text: str) -> Cut | None:
        """Return what stays of a document; None: it has no passage."""
        return cut_passages(text, self._sequences)
