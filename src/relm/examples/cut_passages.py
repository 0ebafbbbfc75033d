r"""Cut passages of tests out of documents by the rules of Megatron-LM's ``tools/openwebtext/filter_ngrams.py``.

Words are what Python's ``\w+`` finds in the text in lower case. A test's sequences are all 13 words in a row of each of its
texts, and the whole text where it has 8 to 12. If a document has one of them, 200 characters on both sides are cut out with
it, up to the next full stop, question or exclamation mark. Remaining pieces of more than 200 characters stay, and the last one
is searched again. A document of more than 10 pieces is removed. A sequence that is in 10 documents or more is a
common phrase and no passage.

The original's surprises are kept, so that the pieces are the same:

- The length of a passage is that of its words with one space between them.
- A text of fewer than 13 words has no passage. In one of exactly 13 words shorter sequences are sought only at its beginning.
- A piece of 200 characters or fewer is dropped only where something was cut.
- The search for common phrases goes on behind each sequence that it finds, so only the first 13 words of a longer phrase count.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# GPT-3's paper (https://arxiv.org/abs/2005.14165, appendix C) compares 13 words too, and 8 at least where texts are short.
LONGEST, SHORTEST = 13, 8
# Characters that are cut on each side of a passage; a piece of at most as many characters is dropped.
EACH_SIDE = SHORT = 200
MOST_PIECES = 10
# A sequence in this many documents is a common phrase.
COMMON = 10
_WORD = re.compile(r"\w+")
_ENDS = ".!?"

# First and last character of a piece, the latter not included.
Piece = tuple[int, int]


class WordSequences(NamedTuple):
    """The sequences of words to find, with a space between two words."""

    known: frozenset[str]
    lengths: list[int]
    """Their counts of words, each once, ascending."""
    beginnings: frozenset[str]
    """The first 8 words of each; only where these match are longer ones compared."""

    def may_be_in(self, words: Sequence[str]) -> bool:
        """Return False if the words have none of the sequences; most documents end here, so this is fast."""
        shifted = (itertools.islice(words, first, None) for first in range(SHORTEST))
        return not self.beginnings.isdisjoint(map(" ".join, zip(*shifted, strict=False)))

    @classmethod
    def of(cls, sequences: Iterable[str]) -> "WordSequences":
        """Make the collection of some sequences of 8 words or more."""
        known = frozenset(sequences)
        lengths = sorted({sequence.count(" ") + 1 for sequence in known})
        return cls(known, lengths, frozenset(_begin(sequence.split(" ")) for sequence in known))


def _begin(words: Sequence[str], first: int = 0) -> str:
    return " ".join(words[first : first + SHORTEST])


class Words(NamedTuple):
    """The words of a text in lower case, and the position of each."""

    words: list[str]
    positions: list[int]


class _Match(NamedTuple):
    """A sequence that was found in a text."""

    start: int
    sequence: str


def find_words(text: str) -> Words:
    """Return the words of a text."""
    found = [(match[0], match.start()) for match in _WORD.finditer(text.lower())]
    return Words([word for word, _ in found], [position for _, position in found])


def list_sequences(text: str) -> list[str]:
    """Return the sequences of words of a test's text, with a space between two words.

    >>> list_sequences("One, two: three four five six seven EIGHT!")
    ['one two three four five six seven eight']
    """
    words = find_words(text).words
    if len(words) < LONGEST:
        return [" ".join(words)] if len(words) >= SHORTEST else []
    return [" ".join(words[first : first + LONGEST]) for first in range(len(words) - LONGEST + 1)]


def _find_first(text: str, sought: WordSequences) -> _Match | None:
    """Return the sequence that the original finds first."""
    words, positions = find_words(text)
    last = len(words) - LONGEST
    for first in range(last + 1):
        if _begin(words, first) in sought.beginnings:
            for length in (LONGEST, *sought.lengths):
                if (sequence := " ".join(words[first : first + length])) in sought.known:
                    return _Match(positions[first], sequence)
    if last > 0:  # the shorter ones in the last 13 words
        for length in (length for length in sought.lengths if length != LONGEST):
            for first in range(last, len(words) - length + 1):
                if (sequence := " ".join(words[first : first + length])) in sought.known:
                    return _Match(positions[first], sequence)
    return None


def find_sequences(text: str, sought: WordSequences) -> list[str]:
    """Return the sequences in a document, each once, in the order found; of two that overlap, only the first."""
    found: dict[str, None] = {}
    while match := _find_first(text, sought):
        found[match.sequence] = None
        text = text[match.start + len(match.sequence) + 1 :]
    return list(found)


class Cut(NamedTuple):
    """The rest of a document whose passages are cut out."""

    pieces: list[Piece]
    """The pieces that stay, in order; empty if the whole document goes."""
    first: str
    """The sequence that was found first."""


def cut_passages(text: str, sought: WordSequences) -> Cut | None:
    """Return the pieces of a document that stay; None: it has none of the sequences.

    >>> passage = "seven eight nine ten eleven twelve thirteen fourteen"
    >>> text = "a " * 150 + f". It is {passage}" + " b" * 150 + ". Then" + " c" * 150
    >>> cut_passages(text, WordSequences.of([passage])).pieces
    [(661, 966)]
    """
    pieces: list[Piece] = []
    start, first = 0, None
    while match := _find_first(text[start:], sought):
        first = first or match.sequence
        before, after = _split(text[start:], match)
        if before > SHORT:
            pieces.append((start, start + before))
        if len(text) - start - after <= SHORT:
            break
        start += after
    else:
        pieces.append((start, len(text)))
    return None if first is None else Cut(pieces if len(pieces) <= MOST_PIECES else [], first)


def _split(text: str, match: _Match) -> tuple[int, int]:
    """Return where the piece before a passage ends, and where the one after it begins."""
    before = min(match.start - EACH_SIDE, len(text) - 1)
    while before > 0 and text[before] not in _ENDS:
        before -= 1
    after = match.start + len(match.sequence) + EACH_SIDE
    while after < len(text) and text[after] not in _ENDS:
        after += 1
    return max(before + 1, 0) if before > 0 else 0, min(after + 1, len(text))
