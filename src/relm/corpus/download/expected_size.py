"""The count of bytes that a source may send, so that no server fills the disk."""

from typing import NamedTuple

from relm.corpus.download.source_faults import SourceFault
from relm.recipes.files.remote_files import RemoteFile, Source

# An archive may hold much beside the wanted file, a compressed file nothing: the worst compression adds a hundredth.
ARCHIVE_FACTOR, ARCHIVE_ALLOWANCE = 8, 2 << 30
COMPRESSED_FACTOR, COMPRESSED_ALLOWANCE = 2, 1 << 20


class ExpectedSize(NamedTuple):
    """The size of what a source sends, in bytes."""

    exact: int | None
    """None: only a limit is known."""
    most: int
    description: str
    """The size as a message says it."""
    advice: str = ""
    """The remedy where the source is right and the size is not."""

    def require(self, size: int) -> None:
        """Raise SourceFault unless a source may send so many bytes."""
        if size > self.most or (self.exact is not None and size != self.exact):
            raise SourceFault(f"has {size:,} bytes, expected {self.description}{self.advice}")

    def require_no_more(self, received: int) -> None:
        """Raise SourceFault if more bytes came than the source may send."""
        if received > self.most:
            raise SourceFault(f"has more than the expected {self.most:,} bytes{self.advice}")


def expect_size(source: Source, wanted: RemoteFile) -> ExpectedSize:
    """Return the size that the recipe states of what a source sends, else a generous limit."""
    if source.size is not None:
        advice = "; correct the source's `size` if the publisher states another"
        return ExpectedSize(source.size, source.size, f"{source.size:,} bytes", advice)
    if source.member is None and source.decompress is None:
        return ExpectedSize(wanted.size, wanted.largest_size, wanted.format_size())
    is_archive = source.member is not None
    factor, allowance = (ARCHIVE_FACTOR, ARCHIVE_ALLOWANCE) if is_archive else (COMPRESSED_FACTOR, COMPRESSED_ALLOWANCE)
    most = factor * wanted.largest_size + allowance
    kind = "archive" if is_archive else "compressed file"
    advice = f"; if the {kind} is larger, state its size in bytes as the source's `size`"
    return ExpectedSize(None, most, f"at most {most:,} bytes", advice)
