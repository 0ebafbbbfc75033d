"""Read text files in a tar archive as documents; the archive may hold further tar archives, one level deep.

OpenWebText is published like this: an archive of 20,000 compressed archives of about 400 pages each. Nothing is unpacked to the
disk: this process reads the outer archive once, from front to end, and workers unpack the inner ones in memory.
"""

import contextlib
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from relm.corpus.archive import explain_faults
from relm.corpus.decompression import open_content
from relm.corpus.documents import LONGEST, Document, Encoded, Skipped, encode_document
from relm.corpus.download.source_faults import SourceFault, clip
from relm.corpus.tar_members import is_tar, read_tar_members
from relm.corpus.text_files import decode_text
from relm.formatting import format_bytes
from relm.recipes.datasets import Dataset

# Bytes of texts in one batch for a worker; an inner archive is a separate batch.
BATCH = 1 << 20
# The largest inner archive, in bytes: a worker has all of it in memory.
LARGEST_INNER = 256 << 20
TEXT = ".txt"
INNER = (".tar", ".tgz", ".gz", ".bz2", ".xz")


class Member(NamedTuple):
    """A member of the outer archive."""

    name: str
    """Its path, without a `./` at the front."""
    content: bytes | None
    """A text or an archive; None: another file, or the same name as an earlier member."""
    reason: str = ""
    """Why a member without content is skipped."""


class Members(NamedTuple):
    """Consecutive members of the outer archive."""

    path: Path
    """The outer archive, for messages."""
    members: list[Member]


def batch_text_archives(dataset: Dataset, path: Path) -> Iterator[Members]:
    """Yield the members of an archive that are texts or archives, in batches."""
    batch: list[Member] = []
    size = 0
    with open(path, "rb") as raw:
        for member in _read_members(dataset, path, raw):
            batch.append(member)
            size += len(member.content or b"")
            if size >= BATCH or member.name.endswith(INNER):
                yield Members(path, batch)
                batch, size = [], 0
    if batch:
        yield Members(path, batch)


def extract_text_archives(dataset: Dataset, file: str, batch: Members) -> Iterator[Encoded | Skipped]:
    """Yield the document of each text, named FILE/PATH, or FILE/ARCHIVE/PATH in an inner archive.

    The title is the file's name up to its first dot; the text decides the split.
    """
    for member in batch.members:
        if member.content is None:
            yield Skipped(member.reason)
        elif member.name.endswith(TEXT):
            yield _make_document(f"{file}/{member.name}", member.content, f"{batch.path}: {member.name}")
        else:
            raw = io.BytesIO(member.content)
            for inner in _read_inner(dataset, member.name, raw, f"{batch.path}: {member.name}"):
                if inner.content is None:
                    yield Skipped(inner.reason)
                else:
                    location = f"{batch.path}: {member.name}: {inner.name}"
                    yield _make_document(f"{file}/{member.name}/{inner.name}", inner.content, location)


# --- archives --------------------------------------------------------------------------------------------------------------


def _read_members(dataset: Dataset, path: Path, raw: IO[bytes]) -> Iterator[Member]:
    return _read_archive(raw, str(path), path.stat().st_size, frozenset(dataset.text_archives.left_out), (TEXT, *INNER))


def _read_inner(dataset: Dataset, name: str, raw: IO[bytes], location: str) -> Iterator[Member]:
    size = raw.seek(0, io.SEEK_END)
    raw.seek(0)
    paths = (path.removeprefix(f"{name}/") for path in dataset.text_archives.left_out if path.startswith(f"{name}/"))
    return _read_archive(raw, location, size, frozenset(paths), (TEXT,))


def _read_archive(
    raw: IO[bytes], location: str, size: int, left_out: frozenset[str], suffixes: tuple[str, ...]
) -> Iterator[Member]:
    """Yield the members of a tar archive of `size` bytes, plain or compressed, except the paths that are left out.

    Members with other suffixes come without their content.
    """
    seen: set[str] = set()
    with contextlib.ExitStack() as stack:
        stack.enter_context(explain_faults(raw, size, location, _REMEDY))
        if not is_tar(raw):
            raise SourceFault("not a tar archive")
        unpacked = open_content(raw, stack)
        for entry, content in read_tar_members(unpacked, _is_wanted(left_out, suffixes), archive_size=size):
            name = _plain_name(entry)
            reason = "doubled" if name in seen else "other_files" if not name.endswith(suffixes) else ""
            seen.add(name)
            yield Member(name, None if reason else _read_whole(entry, content), reason)


_REMEDY = "download the archive again, or list the member in `text_archives.left_out` of the dataset's file"


def _is_wanted(left_out: frozenset[str], suffixes: tuple[str, ...]) -> Callable[[tarfile.TarInfo], bool]:
    """Return a function that is True for files, and links in their places, except macOS's files and those left out."""

    def is_wanted(entry: tarfile.TarInfo) -> bool:
        name = _plain_name(entry)
        if entry.isdir() or name in left_out or PurePosixPath(name).name.startswith("._"):
            return False
        return entry.isreg() or name.endswith(suffixes)

    return is_wanted


def _plain_name(entry: tarfile.TarInfo) -> str:
    """Return the path of a member, without a `./` at the front."""
    path = PurePosixPath(entry.name)
    if path.is_absolute() or ".." in path.parts:
        raise SourceFault(f"member {clip(entry.name)!r} has a path that leads out of the archive")
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        raise SourceFault(f"the name of member {clip(entry.name)!r} is not valid UTF-8") from None
    return str(path)


def _read_whole(entry: tarfile.TarInfo, content: IO[bytes]) -> bytes:
    largest = LONGEST if entry.name.endswith(TEXT) else LARGEST_INNER
    if entry.size > largest:
        kind = "one document" if entry.name.endswith(TEXT) else "an archive in an archive"
        raise SourceFault(
            f"{clip(entry.name)} has {format_bytes(entry.size)}, expected at most {format_bytes(largest)} for {kind}"
        )
    return content.read()


# --- texts -----------------------------------------------------------------------------------------------------------------


def _make_document(name: str, content: bytes, location: str) -> Encoded | Skipped:
    """Return the document of a text; CRLF and CR become LF."""
    text = decode_text(content, location, _LEAVE_OUT).replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        return Skipped("empty")
    title = PurePosixPath(name).name.split(".")[0]
    return encode_document(Document(id=name, title=title, text=text), decided_by=text)


_LEAVE_OUT = "list the file in `text_archives.left_out` of the dataset's file, or correct the archive"
