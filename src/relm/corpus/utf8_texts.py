"""Count words and bytes of many texts in UTF-8 at once, in few passes over their bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

SEPARATOR = b"\n"
_IS_SPACE = np.array([chr(code).isspace() for code in range(0x4000)])
# First byte of a character beyond ASCII -> number of continuation bytes, least and greatest second byte (Unicode, table 3-7).
_FOLLOWING = np.zeros(256, dtype=np.int64)
_FOLLOWING[0xC2:0xE0], _FOLLOWING[0xE0:0xF0], _FOLLOWING[0xF0:0xF5] = 1, 2, 3
_LEAST, _GREATEST = np.full(256, 0x80, dtype=np.uint8), np.full(256, 0xBF, dtype=np.uint8)
_LEAST[[0xE0, 0xF0]], _GREATEST[[0xED, 0xF4]] = (0xA0, 0x90), (0x9F, 0x8F)
# The check by numpy is faster than the decoder if at most one of this many bytes is beyond ASCII.
_SPARSE = 16


@dataclass(frozen=True)
class Utf8Texts:
    """Some texts in valid UTF-8."""

    texts: Sequence[bytes]
    joined: bytes | bytearray
    """The texts with a newline between them."""
    blanks_only: bool = False
    """True if all control characters up to U+001F are white space."""
    known_leads: Offsets | None = None
    """`leads`, if known."""

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> "Utf8Texts":
        """Make the collection of some texts."""
        return cls(texts, SEPARATOR.join(texts))

    @cached_property
    def data(self) -> npt.NDArray[np.uint8]:
        """Return the bytes of the joined texts."""
        return np.frombuffer(self.joined, dtype=np.uint8)

    @cached_property
    def leads(self) -> Offsets:
        """Return the offsets, in the joined texts, of the first bytes of characters beyond ASCII."""
        return np.flatnonzero(self.data >= 0xC2) if self.known_leads is None else self.known_leads

    def indices_at(self, offsets: Sequence[int]) -> set[int]:
        """Return the indices of the texts at some offsets in the joined texts."""
        ends = np.cumsum([len(text) + len(SEPARATOR) for text in self.texts])
        return set(np.searchsorted(ends, offsets, side="right").tolist())

    def count(self) -> tuple[int, int]:
        """Return the words (runs of non-space characters, as in `str.split`) and bytes of all texts together.

        >>> Utf8Texts.of([b"two words", b"", "dé\\u00a0jà".encode()]).count()
        (4, 17)
        """
        if not len(self.data):
            return 0, 0
        white = self._ascii_spaces()
        for size, starts in self._spaces_beyond_ascii():
            for offset in range(size):
                white[starts + offset] = True
        words = int(np.count_nonzero(white[1:] > white[:-1])) + int(not white[-1])
        return words, len(self.data) - len(SEPARATOR) * (len(self.texts) - 1)

    def _ascii_spaces(self) -> Flags:
        """Return True for U+0009 to U+000D and for U+001C to U+0020."""
        if self.blanks_only:
            return self.data <= np.uint8(0x20)
        spaces: Flags = self.data - np.uint8(9) < 5
        spaces |= self.data - np.uint8(28) < 5
        return spaces

    def _spaces_beyond_ascii(self) -> Iterator[tuple[int, Offsets]]:
        """Yield the offsets of spaces of two bytes, and of three bytes, all of which are between U+1000 and U+3FFF."""
        data, first = self.data, self.data[self.leads]
        two = self.leads[first == 0xC2]
        second = data[two + 1]
        yield 2, two[(second == 0x85) | (second == 0xA0)]
        three = self.leads[first - np.uint8(0xE1) < 3]
        code_points = (
            (data[three] & 15).astype(np.int64) << 12 | (data[three + 1] & 63).astype(np.int64) << 6 | data[three + 2] & 63
        )
        yield 3, three[_IS_SPACE[code_points]]


def valid_leads(data: npt.NDArray[np.uint8]) -> Offsets | None:
    """Return the offsets of the first bytes of characters beyond ASCII, or None where the bytes are not UTF-8.

    >>> valid_leads(np.frombuffer("aé€".encode(), np.uint8)).tolist(), valid_leads(np.array([0xC3], np.uint8))
    ([1, 3], None)
    """
    beyond = data >= np.uint8(0x80)
    if _SPARSE * np.count_nonzero(beyond) > len(data):
        try:
            data.tobytes().decode()
        except UnicodeDecodeError:
            return None
        return np.flatnonzero(data >= np.uint8(0xC2))
    found = np.flatnonzero(beyond)
    leads = found[data[found] >= 0xC0]
    first = data[leads]
    following = _FOLLOWING[first]
    if not following.all() or int(following.sum()) != len(found) - len(leads):
        return None
    if not len(leads):
        return leads
    if int((leads + following).max()) >= len(data):
        return None
    second = data[leads + 1]
    if not ((_LEAST[first] <= second) & (second <= _GREATEST[first])).all():
        return None
    for place in (2, 3):  # each continuation byte follows a lead, because their numbers agree
        last = data[leads[following >= place] + place]
        if not (last & 0xC0 == 0x80).all():
            return None
    return leads
