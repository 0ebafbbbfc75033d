"""Write and read files beneath a folder through no link: each folder on the way is opened on its own, never by a whole path.

A link that appears between a check and a write is refused by the system, since each part is opened relative to the one before.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from relm.errors import RelmError

PIECE = 1 << 20  # bytes
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_WHAT_TO_DO = "replace it by its target and run the same command again (the work folder as a whole may be a link)"


class ConfinedPath(NamedTuple):
    """A file beneath a root, by the folders on the way to it."""

    root: Path
    """The folder at the top, which may be a link: the user has chosen it."""
    inside: tuple[str, ...]
    """Folders beneath the root, and the file's name."""

    @property
    def path(self) -> Path:
        """The whole path, for messages and for reading."""
        return self.root.joinpath(*self.inside)


class HashedFile(NamedTuple):
    """The size and sha256 of a file."""

    size: int
    sha256: str


@contextlib.contextmanager
def _open_folder(place: ConfinedPath, makes: bool) -> Iterator[int]:
    """Open the folder that a file belongs in."""
    if makes:
        place.root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(place.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for number, part in enumerate(place.inside[:-1], start=1):
            inner = _open_inner(descriptor, part, place.root.joinpath(*place.inside[:number]), makes)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _open_inner(descriptor: int, name: str, path: Path, makes: bool) -> int:
    if makes:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=descriptor)
    try:
        return os.open(name, _FOLDER, dir_fd=descriptor)
    except FileNotFoundError:
        raise
    except OSError:
        found = "a link" if path.is_symlink() else "no folder"
        raise RelmError(f"{path}: is {found}, and nothing is pulled through it; {_WHAT_TO_DO}") from None


def hash_file(place: ConfinedPath) -> HashedFile | None:
    """Return size and sha256 of a file; None where there is none."""
    try:
        with _open_folder(place, makes=False) as folder:
            _require_file_or_nothing(folder, place)
            with _open(folder, place) as file:
                return HashedFile(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())
    except FileNotFoundError:
        return None


def _require_file_or_nothing(folder: int, place: ConfinedPath) -> None:
    try:
        kind = stat.S_IFMT(os.stat(place.inside[-1], dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return
    if kind != stat.S_IFREG:
        found = "a link" if kind == stat.S_IFLNK else "no file"
        raise RelmError(f"{place.path}: is {found}, and a file is to be pulled there; {_WHAT_TO_DO}")


def read_pieces(place: ConfinedPath) -> Iterator[bytes]:
    """Yield the bytes of a file that is there."""
    with _open_folder(place, makes=False) as folder, _open(folder, place) as file:
        while piece := file.read(PIECE):
            yield piece


def _open(folder: int, place: ConfinedPath) -> BufferedReader:
    return open(os.open(place.inside[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), "rb")


def set_time(place: ConfinedPath, seconds: int) -> None:
    """Set a file's time of change."""
    with _open_folder(place, makes=False) as folder:
        os.utime(place.inside[-1], (seconds, seconds), dir_fd=folder, follow_symlinks=False)


def write(place: ConfinedPath, pieces: Iterable[bytes], seconds: int) -> None:
    """Write a file whole or not at all, with its time.

    Raises:
        RelmError: a link stands there or on the way, or it cannot be written. What `pieces` raises is passed on.
    """
    name, partial = place.inside[-1], f".{place.inside[-1]}.partial"
    try:
        with _open_folder(place, makes=True) as folder:
            _require_file_or_nothing(folder, place)
            with contextlib.suppress(FileNotFoundError):  # of a pull that was killed; or a link, which goes and is not followed
                os.unlink(partial, dir_fd=folder)
            try:
                _write_new(folder, partial, pieces, seconds)
                os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(partial, dir_fd=folder)
                raise
    except OSError as error:
        raise RelmError(f"{place.path}: cannot be written: {error.strerror}; nothing was changed") from error


def _write_new(folder: int, name: str, pieces: Iterable[bytes], seconds: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(name, flags, mode=0o666, dir_fd=folder), "wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        os.utime(file.fileno(), (seconds, seconds))


def require_no_link(place: ConfinedPath) -> None:
    """Raise RelmError if any part of a path, the last one included, is a link."""
    for number in range(1, len(place.inside) + 1):
        path = place.root.joinpath(*place.inside[:number])
        if path.is_symlink():
            raise RelmError(f"{path}: is a link, and nothing is pulled through it; {_WHAT_TO_DO}")
