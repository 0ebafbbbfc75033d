"""Texts in UTF-8, many at a time, and the counts of their words and bytes by few passes over their bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

SEPARATOR = b"\n"
_IS_SPACE = np.array([chr(code).isspace() for code in range(0x4000)])


@dataclass(frozen=True)
class Utf8Texts:
    """Some texts in valid UTF-8."""

    texts: Sequence[bytes]
    joined: bytes
    """The texts with a newline between them."""
    few_controls: bool = False
    """True: no text has a control character from U+000E to U+001B."""

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> "Utf8Texts":
        """Return the texts, not necessarily the only ones of a document."""
        return cls(texts, SEPARATOR.join(texts))

    @cached_property
    def data(self) -> npt.NDArray[np.uint8]:
        """Return the bytes of the joined texts."""
        return np.frombuffer(self.joined, dtype=np.uint8)

    @cached_property
    def leads(self) -> Offsets:
        """Return the offsets, in the joined texts, of the first bytes of characters beyond ASCII."""
        return np.flatnonzero(self.data >= 0xC2)

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
        after_backspace = self.data - np.uint8(9)
        spaces: Flags = after_backspace < (24 if self.few_controls else 5)
        if not self.few_controls:
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
