"""A range of a source file, which a job of its own extracts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FileRange:
    """One of several ranges of a file that are about equally long."""

    index: int
    """The position of the range, from 0."""
    count: int
    """The number of ranges."""

    def __str__(self) -> str:
        return f"range {self.index + 1} of {self.count}"

    @property
    def is_last(self) -> bool:
        """True for the range at the end of the file."""
        return self.index == self.count - 1

    def bounds(self, size: int) -> tuple[int, int]:
        """Return where the range begins and ends in something of a size.

        >>> [FileRange(index, 3).bounds(10) for index in range(3)]
        [(0, 3), (3, 6), (6, 10)]
        """
        return size * self.index // self.count, size * (self.index + 1) // self.count


def parse_range(text: str) -> FileRange:
    """Return a range from a text such as 3-of-16.

    >>> parse_range("3-of-16")
    FileRange(index=2, count=16)

    Raises:
        ValueError: the text is something else.
    """
    number, of, count = text.partition("-of-")
    if not (of and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(text)
    return FileRange(int(number) - 1, int(count))
