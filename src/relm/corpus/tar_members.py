"""Find a member of a tar archive, or read all wanted ones, in one pass and bounded memory.

`tarfile` reads a header of any stated length into memory (a pax header, a long name, the map of a sparse file) and keeps it.
Here a header may take LARGEST_TAR_HEADER bytes, and is not kept.
"""

import contextlib
import difflib
import tarfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Self, cast

from relm.corpus.decompression import Readable, open_content
from relm.corpus.download.source_faults import SourceFault, clip, clip_list

LARGEST_TAR_HEADER = 1 << 20  # bytes, extensions before it included
HEADER = LARGEST_TAR_HEADER + tarfile.RECORDSIZE  # tarfile reads ahead by a record
MOST_MEMBERS = 100_000  # to read before the wanted one
# An archive may unpack to this multiple of its size: text to 5 times, zeros in gzip to 1,000 times.
LARGEST_RATIO, RATIO_ALLOWANCE = 250, 64 << 20
READS_AT_END = 10  # tarfile would read on for ever to skip what a header announces
NAMES_KEPT = 1000  # for the message about an absent member


class _LimitedStream:
    """A stream for tarfile; reading past `limit`, which the caller advances, is a fault of the source."""

    def __init__(self, content: Readable, limit: int) -> None:
        self._content, self._position, self._reads_at_end = content, 0, 0
        self.limit = limit

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes."""
        block = self._content.read(size)
        self._position += len(block)
        self._reads_at_end += not block
        if self._reads_at_end > READS_AT_END:
            raise EOFError("a member is longer than the archive")
        if self._position > self.limit:
            raise SourceFault(f"the archive has a header of more than {LARGEST_TAR_HEADER:,} bytes")
        return block


class _StrictHeader(tarfile.TarInfo):
    """A header that must be whole; tarfile takes a damaged or cut one for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Return the header in a block of an archive."""
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            if len(buf) < tarfile.BLOCKSIZE:
                raise SourceFault("the archive is truncated: it lacks an end marker") from None
            raise SourceFault(f"the archive is damaged: a member's header cannot be read ({error})") from None


def open_tar_member(unpacked: Readable, member: str, largest: int, archive_size: int) -> IO[bytes]:
    """Return a member of a decompressed tar archive, which is read from front to back, once.

    `largest` is the largest size of the wanted content, `archive_size` the size of the compressed archive, both in bytes.
    """
    names, count = list[str](), 0

    def is_member(entry: tarfile.TarInfo) -> bool:
        nonlocal count
        if (count := count + 1) > MOST_MEMBERS:
            raise SourceFault(f"the archive has more than {MOST_MEMBERS:,} members before {member}")
        names.extend([clip(entry.name)] if count <= NAMES_KEPT else [])
        return entry.name == member

    for _, content in read_tar_members(unpacked, is_member, archive_size=archive_size, allowance=largest):
        return content
    raise absent_member(member, names, count)


def read_tar_members(
    unpacked: Readable, is_wanted: Callable[[tarfile.TarInfo], bool], *, archive_size: int, allowance: int = 0
) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """Yield the wanted members of a decompressed tar archive, each open for reading until the next one is requested.

    The compressed archive of `archive_size` bytes may unpack to a proportional size plus `allowance` bytes.
    """
    most = max(LARGEST_RATIO * archive_size, RATIO_ALLOWANCE) + allowance
    stream = _LimitedStream(unpacked, HEADER)
    archive = tarfile.open(fileobj=cast(Any, stream), mode="r|", tarinfo=_StrictHeader)  # noqa: SIM115 - has no file to close
    while (entry := archive.next()) is not None:
        if max(archive.offset, entry.size) > most:  # a file with holes is larger than its part of the archive
            raise SourceFault(f"the archive unpacks to more than {most:,} bytes, out of proportion to its size")
        stream.limit = archive.offset + HEADER
        if is_wanted(entry):
            content = archive.extractfile(entry) if entry.isreg() else None
            if content is None:
                raise SourceFault(f"{entry.name} in the archive: expected a regular file, found a link or a device")
            yield entry, content
        archive.members = []  # type: ignore[attr-defined] # tarfile keeps them all
        if sum(len(key) + len(value) for key, value in archive.pax_headers.items()) > LARGEST_TAR_HEADER:
            raise SourceFault(f"the archive has global headers of more than {LARGEST_TAR_HEADER:,} bytes")


def is_tar(raw: IO[bytes]) -> bool:
    """Return whether a file is a tar archive, plain or compressed, after unpacking one header."""
    with contextlib.ExitStack() as stack:
        head = open_content(raw, stack).read(tarfile.BLOCKSIZE)
    raw.seek(0)
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
        return True  # an empty one
    except tarfile.HeaderError:
        return False
    return True


def absent_member(member: str, names: Sequence[str], count: int) -> SourceFault:
    """Return the error for a member that is not in an archive of `count` members; `names` are the first ones."""
    near = difflib.get_close_matches(member, names, n=3) or names[:3]
    return SourceFault(f"the archive has no {member} among its {count:,} members, such as {clip_list(near, none='none')}")
