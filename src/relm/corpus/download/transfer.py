"""Download over HTTP into a part file that survives lost connections, crashes and kills, and resume it (RFC 9110, ranges).

The part records its source and the server's validator (ETag or date), so that a changed file is fetched from its beginning.
Neither is trusted: the caller checks the hash of the received bytes.
"""

import fcntl
import os
import re
import time
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import requests

from relm.artifact import read_json, require_usable_partial, write_json
from relm.corpus.download.http_requests import open_location, read_body
from relm.corpus.download.locations import Location
from relm.corpus.download.source_faults import SourceFault, Stalled, TemporaryFault, Throttled, Unreachable
from relm.corpus.download.sources import locate_source
from relm.errors import RelmError
from relm.limits import require_disk
from relm.progress import ProgressBar
from relm.recipes.files.remote_files import RemoteFile, Source

ATTEMPTS = 5  # without progress in a row; MEANINGFUL_PROGRESS restarts the count
ATTEMPTS_TO_REACH = 2  # for a host that has sent nothing yet: the next source is more promising
MEANINGFUL_PROGRESS = 1 << 20  # bytes
# The same for a source that stalled; one that sends a little and stalls each time is given up.
MEANINGFUL_AFTER_STALLS = 64 << 20
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0  # seconds before another attempt, doubled each time
# An archive may have much more than the wanted file; a compressed file is at most a hundredth larger than its content.
ARCHIVE_FACTOR, ARCHIVE_ALLOWANCE = 8, 2 << 30
COMPRESSED_FACTOR, COMPRESSED_ALLOWANCE = 2, 1 << 20
COUNT = "[0-9]{1,20}"  # of bytes, in a header: int() fails at 5,000 digits, and str.isdigit accepts a superscript two


class ExpectedSize(NamedTuple):
    """The number of bytes that a source sends."""

    exact: int | None
    """None: only a limit is known."""
    most: int
    description: str
    """The size in words, for messages."""
    advice: str = ""
    """The remedy if the source is right and the size is wrong."""

    def require(self, size: int) -> None:
        """Raise SourceFault unless a source may send this many bytes."""
        if size > self.most or (self.exact is not None and size != self.exact):
            raise SourceFault(f"has {size:,} bytes, expected {self.description}{self.advice}")

    def require_no_more(self, received: int) -> None:
        """Raise SourceFault if more bytes came than the source may send."""
        if received > self.most:
            raise SourceFault(f"has more than the expected {self.most:,} bytes{self.advice}")


def expect_size(source: Source, wanted: RemoteFile) -> ExpectedSize:
    """Return the size of what a source sends as the recipe states it, otherwise a generous limit."""
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


class PartialFile:
    """`.FILE.part` next to FILE, and `.FILE.part.json` with its source; one process at a time holds it.

    An empty part is removed at the end; any other stays for the next attempt.
    """

    def __init__(self, destination: Path) -> None:
        self.destination = destination
        self.path = destination.with_name(f".{destination.name}.part")
        self.note = destination.with_name(f".{destination.name}.part.json")
        self.is_resumed = False
        """True if the content came in several transfers; then a wrong hash may mean that the file changed meanwhile."""

    def __enter__(self) -> Self:
        while True:
            require_usable_partial(self.path)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._file)
                raise RelmError(
                    f"{self.destination}: another process is downloading it; wait for it, or stop it and run again"
                ) from None
            except OSError:  # some network file systems have no locks
                return self
            if self._still_there():  # otherwise the last holder has renamed or removed it
                return self
            os.close(self._file)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._still_there() and self.size == 0:
            self.path.unlink()
            self.note.unlink(missing_ok=True)
        os.close(self._file)

    def _still_there(self) -> bool:
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self._file))
        except FileNotFoundError:
            return False

    @property
    def size(self) -> int:
        """Return the number of bytes received so far."""
        return os.fstat(self._file).st_size

    def read_progress(self, source: Source) -> tuple[int, str]:
        """Return (number of bytes from this source, its server's validator or an empty string)."""
        try:
            note = read_json(self.note)
            if note["source"] == source.model_dump(mode="json", exclude_defaults=True):
                return self.size, str(note["validator"])
        except (RelmError, KeyError, TypeError):
            pass
        return 0, ""

    def begin(self, source: Source, validator: str) -> None:
        """Empty the part and record its source."""
        self.clear()
        write_json(self.note, {"source": source.model_dump(mode="json", exclude_defaults=True), "validator": validator})

    def clear(self) -> None:
        """Empty the part, unless it has become the destination."""
        if self._still_there():
            os.ftruncate(self._file, 0)
        self.note.unlink(missing_ok=True)
        self.is_resumed = False

    def append(self, block: bytes) -> None:
        """Write bytes at the end, unbuffered, so that a kill loses none."""
        os.lseek(self._file, 0, os.SEEK_END)
        while block:
            block = block[os.write(self._file, block) :]

    def open(self) -> BufferedReader:
        """Open the part for reading, whatever its path leads to by now."""
        os.lseek(self._file, 0, os.SEEK_SET)
        return os.fdopen(os.dup(self._file), "rb")

    def become_destination(self) -> None:
        """Flush the part to disk, and rename it to the destination."""
        os.fsync(self._file)
        if not self._still_there():
            raise RelmError(f"{self.path}: was removed or replaced during the download; run the command again")
        os.replace(self.path, self.destination)
        self.note.unlink(missing_ok=True)


def transfer(source: Source, part: PartialFile, session: requests.Session, wanted: RemoteFile) -> None:
    """Fetch all bytes of a source into the part, in as many attempts as allowed.

    The recipe's file, `wanted`, has the size of the fetched bytes, unless these are an archive or compressed.
    """
    location: Location | None = None
    failures, most = 0, part.read_progress(source)[0]
    while True:
        try:
            location = location or locate_source(source, session)
            _fetch_rest(source, location, part, session, wanted)
            return
        except Throttled:
            raise  # the caller knows whether another source is more promising
        except TemporaryFault as fault:
            come = part.read_progress(source)[0]
            needed = MEANINGFUL_AFTER_STALLS if isinstance(fault, Stalled) else MEANINGFUL_PROGRESS
            if come >= most + needed:
                failures, most = 0, come
            failures += 1
            allowed = ATTEMPTS_TO_REACH if isinstance(fault, Unreachable) and come == 0 else ATTEMPTS
            if failures >= allowed:
                raise SourceFault(f"{fault} ({failures} attempts)") from None
            time.sleep(min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE))


def _fetch_rest(source: Source, location: Location, part: PartialFile, session: requests.Session, wanted: RemoteFile) -> None:
    have, validator = part.read_progress(source)
    headers = {"Range": f"bytes={have}-"} if have else {}
    if have and validator:
        headers["If-Range"] = validator
    with open_location(session, location, headers) as response:
        start, total = _parse_extent(response)
        if response.status_code == 416 and have and total == have:
            part.is_resumed = True
            return
        if response.status_code == 416 or start not in (0, have):
            part.clear()
            raise TemporaryFault("the server does not resume the download")
        expected = expect_size(source, wanted)
        if total is not None:
            _require_size(part, expected, total)
            expected = expected._replace(most=total)
        _require_room(source, part, wanted, (total or expected.exact or wanted.largest_size) - start)
        if start == 0:
            part.begin(source, _choose_validator(response))
        else:
            part.is_resumed = True
        _append_all(response, part, expected, total or expected.exact)


def _require_size(part: PartialFile, expected: ExpectedSize, total: int) -> None:
    """Raise SourceFault and keep nothing if the server reports a wrong size."""
    try:
        expected.require(total)
    except SourceFault:
        part.clear()
        raise


def _require_room(source: Source, part: PartialFile, wanted: RemoteFile, rest: int) -> None:
    """Raise RelmError unless the disk has room for the rest of the source's bytes, and the file unpacked from them."""
    is_plain = source.member is None and source.decompress is None
    unpacked = 0 if is_plain else wanted.largest_size
    require_disk(part.destination.parent, rest + unpacked, part.destination.name)


def _append_all(response: requests.Response, part: PartialFile, expected: ExpectedSize, total: int | None) -> None:
    """Write the body to the part: `total` bytes, if known."""
    bar = ProgressBar(
        total=total, initial=part.size, unit="B", unit_scale=True, desc=part.destination.name, disable=None, leave=False
    )
    with bar:
        try:
            for block in read_body(response):
                part.append(block)
                bar.update(len(block))
                expected.require_no_more(part.size)
        except TemporaryFault as fault:
            raise type(fault)(f"{fault} after {part.size:,} bytes; the same command resumes there") from None
        except SourceFault:
            part.clear()
            raise
    if part.size < (total or 0):
        raise TemporaryFault(f"the connection was cut after {part.size:,} of {total:,} bytes")


def _parse_extent(response: requests.Response) -> tuple[int, int | None]:
    """Return (position of the response's first byte, size of the whole file if the server reports it)."""
    if response.status_code == 200:
        length = re.fullmatch(COUNT, response.headers.get("Content-Length", "").strip())
        return 0, int(length[0]) if length else None
    extent = rf"bytes (?:({COUNT})-{COUNT}|\*)/(?:({COUNT})|\*)"
    match = re.fullmatch(extent, response.headers.get("Content-Range", "").strip())
    if match is None:
        return -1, None
    return int(match[1] or -1), int(match[2]) if match[2] else None


def _choose_validator(response: requests.Response) -> str:
    """Return the value for `If-Range`: a strong ETag, else the date of the last change."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified", "")
