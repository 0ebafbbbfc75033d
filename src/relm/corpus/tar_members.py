"""Find a member of a tar archive, or read all that are wanted, in one pass and bounded memory.

`tarfile` reads a header into memory whatever length it states (a pax header, a long name, the map of a sparse file) and keeps
each of them. Here a header may take LARGEST_TAR_HEADER bytes, and none is kept.
"""

import contextlib
import difflib
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Self, cast

from relm.corpus.decompression import Readable
from relm.corpus.download.source_faults import SourceFault, clip, clip_list

LARGEST_TAR_HEADER = 1 << 20  # bytes, with the extensions that precede it
HEADER = LARGEST_TAR_HEADER + tarfile.RECORDSIZE  # tarfile reads ahead by a record
MOST_MEMBERS = 100_000  # that are read before the wanted one
# An archive may unpack to so many times its size: text to 5 times, zeros in gzip to 1,000 times.
LARGEST_RATIO, RATIO_ALLOWANCE = 250, 64 << 20
READS_AT_END = 10  # tarfile reads on without an end to skip what a header says to be there
NAMES_KEPT = 1000  # for the message about a member that is absent


class _LimitedStream:
    """A stream for tarfile; reading past `limit`, which the caller moves on, is a fault of the source."""

    def __init__(self, content: Readable, limit: int) -> None:
        self._content, self._position, self._reads_at_end = content, 0, 0
        self.limit = limit

    def read(self, size: int, /) -> bytes:
        """Return up to so many bytes."""
        block = self._content.read(size)
        self._position += len(block)
        self._reads_at_end += not block
        if self._reads_at_end > READS_AT_END:
            raise EOFError("a member is longer than the archive")
        if self._position > self.limit:
            raise SourceFault(f"the archive has a header of more than {LARGEST_TAR_HEADER:,} bytes")
        return block


class _StrictHeader(tarfile.TarInfo):
    """A header that must be whole; tarfile takes one that is damaged or cut for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Return the header in a block of an archive."""
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            if len(buf) < tarfile.BLOCKSIZE:
                raise SourceFault("the archive is truncated: it ends without an end marker") from None
            raise SourceFault(f"the archive is damaged: a member's header cannot be read ({error})") from None


def open_tar_member(
    unpacked: Readable, member: str, largest: int, *, archive_size: int, stack: contextlib.ExitStack
) -> IO[bytes]:
    """Return a member of a tar archive, which is read from front to back: looking it up first would read everything twice.

    Args:
        unpacked: the archive, decompressed.
        largest: largest size of the wanted content in bytes.
        archive_size: size of the archive in bytes, compressed.
    """
    most = largest + _most_unpacked(archive_size)
    stream, archive = _open_limited(unpacked, stack)
    names: list[str] = []
    for count in range(MOST_MEMBERS):
        entry = archive.next()
        if entry is None:
            raise absent_member(member, names, count)
        if entry.name == member:
            stream.limit = sys.maxsize  # the caller takes no more than it wants
            return stack.enter_context(_open_entry(archive, entry))
        names += [clip(entry.name)] if count < NAMES_KEPT else []
        if archive.offset > most:
            raise SourceFault(f"the archive unpacks to more than {most:,} bytes before {member}, out of proportion to its size")
        _forget_headers(archive)
        stream.limit = archive.offset + HEADER
    raise SourceFault(f"the archive has more than {MOST_MEMBERS:,} members before {member}")


def read_tar_members(
    unpacked: Readable, is_wanted: Callable[[tarfile.TarInfo], bool], *, archive_size: int, stack: contextlib.ExitStack
) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """Yield the wanted members of a tar archive, each open for reading until the next one is asked for.

    Args:
        unpacked: the archive, decompressed.
        archive_size: size of the archive in bytes, compressed.
    """
    most = _most_unpacked(archive_size)
    stream, archive = _open_limited(unpacked, stack, _StrictHeader)
    while (entry := archive.next()) is not None:
        if max(archive.offset, entry.size) > most:  # a file with holes is larger than its place in the archive
            raise SourceFault(f"the archive unpacks to more than {most:,} bytes, out of proportion to its size")
        if is_wanted(entry):
            stream.limit = archive.offset + HEADER
            yield entry, _open_entry(archive, entry)
        _forget_headers(archive)
        stream.limit = archive.offset + HEADER


def is_tar(head: bytes) -> bool:
    """Return whether a file is a tar archive, not compressed, from its first 512 bytes."""
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
        return True  # an empty one
    except tarfile.HeaderError:
        return False
    return True


def _most_unpacked(archive_size: int) -> int:
    return max(LARGEST_RATIO * archive_size, RATIO_ALLOWANCE)


def _open_limited(
    unpacked: Readable, stack: contextlib.ExitStack, header: type[tarfile.TarInfo] = tarfile.TarInfo
) -> tuple[_LimitedStream, tarfile.TarFile]:
    stream = _LimitedStream(unpacked, HEADER)
    return stream, stack.enter_context(tarfile.open(fileobj=cast(Any, stream), mode="r|", tarinfo=header))


def _forget_headers(archive: tarfile.TarFile) -> None:
    """Empty the list of members that tarfile keeps, and limit the headers that it keeps for all members."""
    archive.members = []  # type: ignore[attr-defined]
    if sum(len(key) + len(value) for key, value in archive.pax_headers.items()) > LARGEST_TAR_HEADER:
        raise SourceFault(f"the archive has global headers of more than {LARGEST_TAR_HEADER:,} bytes")


def _open_entry(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    content = archive.extractfile(entry) if entry.isreg() else None
    if content is None:
        raise SourceFault(f"{entry.name} in the archive is a link or a device, expected a regular file")
    return content


def absent_member(member: str, names: Sequence[str], count: int) -> SourceFault:
    """Return the fault that an archive lacks a member.

    Args:
        names: the names of its members, or the first of them.
        count: the count of its members.
    """
    compared = names[:NAMES_KEPT]
    near = difflib.get_close_matches(member, compared, n=3) or compared[:3]
    return SourceFault(f"the archive has no {member} among its {count:,} members, such as {clip_list(near, none='none')}")
