"""Read one file from a downloaded archive or compressed file.

Members are opened by their exact name and read as a stream; nothing is unpacked to a path that an archive chooses, links are
refused, and the reader decides how many bytes it takes. Every fault of the content is a `SourceFault`.
"""

import bz2
import contextlib
import difflib
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from relm.corpus.source_faults import SourceFault

BLOCK = 1 << 20
Readable = IO[bytes] | gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile
FAULTS = (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, OSError, ValueError, RuntimeError)


def read_content(path: Path, member: str | None, compression: str | None) -> Iterator[bytes]:
    """Yield the bytes of a file, or of one member of a zip or tar archive, decompressed, in blocks of up to a MiB.

    Args:
        member: exact name in the archive; None: `path` is no archive.
        compression: gzip, bzip2 or xz, of the file or of the member; None: not compressed.

    Raises:
        SourceFault: no such member, or the content is unreadable, damaged, truncated or of another kind.
    """
    with contextlib.ExitStack() as stack:
        try:
            raw: IO[bytes] = stack.enter_context(open(path, "rb"))
        except OSError as error:
            raise SourceFault(f"cannot be read: {error.strerror}") from None
        try:
            if member is not None:
                raw = _open_member(raw, member, stack)
            plain = _decompress(raw, compression, stack)
            while block := plain.read(BLOCK):
                yield block
        except FAULTS as error:
            subject = f"{member} in the archive is" if member else "is"
            raise SourceFault(f"{subject} damaged or truncated ({str(error) or type(error).__name__})") from None


def _decompress(raw: IO[bytes], compression: str | None, stack: contextlib.ExitStack) -> Readable:
    if compression == "gzip":
        return stack.enter_context(gzip.open(raw, "rb"))
    if compression == "bzip2":
        return stack.enter_context(bz2.open(raw, "rb"))
    if compression == "xz":
        return stack.enter_context(lzma.open(raw, "rb"))
    return raw


def _open_member(raw: IO[bytes], member: str, stack: contextlib.ExitStack) -> IO[bytes]:
    is_zip = raw.read(4) == b"PK\x03\x04"
    raw.seek(0)
    return _open_zip_member(raw, member, stack) if is_zip else _open_tar_member(raw, member, stack)


def _open_zip_member(raw: IO[bytes], member: str, stack: contextlib.ExitStack) -> IO[bytes]:
    archive = stack.enter_context(zipfile.ZipFile(raw))
    if member not in archive.namelist():
        raise _absent_member(member, archive.namelist())
    return stack.enter_context(archive.open(member))


def _open_tar_member(raw: IO[bytes], member: str, stack: contextlib.ExitStack) -> IO[bytes]:
    # Read once from front to back ("|"): looking a member up first would decompress everything before it twice.
    archive = stack.enter_context(tarfile.open(fileobj=raw, mode="r|*"))  # noqa: SIM115 - the stack closes it
    names = []
    for entry in archive:
        if entry.name == member:
            if not entry.isreg():
                raise SourceFault(f"{member} in the archive is a link or a device, expected a regular file")
            content = archive.extractfile(entry)
            assert content is not None
            return stack.enter_context(content)
        names.append(entry.name)
    raise _absent_member(member, names)


def _absent_member(member: str, names: list[str]) -> SourceFault:
    near = difflib.get_close_matches(member, names, n=3) or names[:3]
    return SourceFault(f"the archive has no {member} among its {len(names)} members, such as {', '.join(near) or 'none'}")
