"""Read one file from a downloaded archive or compressed file.

A member is opened by its exact name and read as a stream: an archive never chooses a path, links are errors, and the reader
decides how many bytes it takes. Memory stays small whatever an archive states. Every fault of the content is a `SourceFault`.
"""

import contextlib
import io
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from relm.corpus.decompression import open_content, open_decompressed
from relm.corpus.download.source_faults import SourceFault, clip
from relm.corpus.tar_members import NAMES_KEPT, absent_member, open_tar_member
from relm.errors import RelmError

BLOCK = 1 << 20
LARGEST_ZIP_DIRECTORY = 4 << 20  # bytes, all held in memory; a wheel with 10,000 files has about 1 MB
ZIP_COMPRESSIONS = (
    zipfile.ZIP_STORED,
    zipfile.ZIP_DEFLATED,
)  # zipfile unpacks a block of any other kind at once, whatever its size
# ArithmeticError: offsets that fit no file; LookupError, struct.error: lists and records that end early; RuntimeError:
# encrypted, a compression that is not supported, or recursion.
FAULTS = (
    EOFError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    struct.error,
    OSError,
    ValueError,
    ArithmeticError,
    LookupError,
    RuntimeError,
    MemoryError,
)


def read_content(path: Path, member: str | None, compression: str | None, largest: int) -> Iterator[bytes]:
    """Yield the bytes of a file, or of one member of a zip or tar archive, decompressed, in blocks of up to a MiB.

    The compression is that of the member, or of the file. `largest`, the largest size of the wanted content in bytes, limits
    how much of an archive is unpacked to find it.
    """
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(_open_regular(path))
        try:
            content = raw if member is None else _open_member(raw, member, largest, stack)
            plain = open_decompressed(content, compression, stack)
            while block := plain.read(BLOCK):
                yield block
        except FAULTS as error:
            subject = f"{member} in the archive is" if member else "is"
            raise SourceFault(f"{subject} damaged or truncated ({clip(str(error)) or type(error).__name__})") from None


def _open_regular(path: Path) -> IO[bytes]:
    """Open a regular file for reading; opening a named pipe would wait for ever."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SourceFault("cannot be read: it is not a regular file")
        return open(path, "rb")
    except OSError as error:
        raise SourceFault(f"cannot be read: {error.strerror}") from None


def _open_member(raw: IO[bytes], member: str, largest: int, stack: contextlib.ExitStack) -> IO[bytes]:
    head = raw.read(4)
    size = raw.seek(0, io.SEEK_END)
    raw.seek(0)
    if head == b"PK\x03\x04":
        return _open_zip_member(raw, member, stack)
    return open_tar_member(open_content(raw, stack), member, largest, archive_size=size)


class _ZipReader(io.BufferedReader):
    """A file for zipfile, which would read a directory of any length that the archive states."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > LARGEST_ZIP_DIRECTORY:
            raise SourceFault(f"the zip archive has a directory of {size:,} bytes, expected at most {LARGEST_ZIP_DIRECTORY:,}")
        return super().read(size)


def _open_zip_member(raw: IO[bytes], member: str, stack: contextlib.ExitStack) -> IO[bytes]:
    reader = _ZipReader(io.FileIO(raw.fileno(), closefd=False))
    archive = stack.enter_context(zipfile.ZipFile(reader))
    names = archive.namelist()
    if member not in names:
        raise absent_member(member, names[:NAMES_KEPT], len(names))
    entry = archive.getinfo(member)
    if entry.compress_type not in ZIP_COMPRESSIONS:
        raise SourceFault(f"{member} in the archive is compressed by zip's method {entry.compress_type}, expected 0 or 8")
    return stack.enter_context(archive.open(entry))


@contextlib.contextmanager
def explain_faults(raw: IO[bytes], size: int, location: str, remedy: str) -> Iterator[None]:
    """Turn a fault of a file's content into a RelmError with its name and the place in its `size` bytes."""
    try:
        yield
    except SourceFault as fault:
        raise RelmError(f"{location}: {fault}; {remedy}") from None
    except FAULTS as error:
        found = clip(str(error)) or type(error).__name__
        raise RelmError(f"{location}: damaged or truncated near byte {raw.tell():,} of {size:,} ({found}); {remedy}") from None
