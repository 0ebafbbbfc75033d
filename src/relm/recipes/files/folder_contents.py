"""The files of a user's folder: those that a dataset reads, and those that it leaves out."""

import os
import re
from collections.abc import Collection
from pathlib import Path

from relm.errors import RelmError
from relm.formatting import escape_controls

NAMED = 6
"""Names that are shown of files that are left out."""


def match_files(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a folder that match a pattern, sorted by their path inside it.

    Only a pattern with a leading dot finds hidden files.
    """
    reads_hidden = any(part.startswith(".") for part in Path(pattern).parts)
    inside = {path: path.relative_to(folder).as_posix() for path in _glob(folder, pattern) if path.is_file()}
    found = sorted(
        (path for path, name in inside.items() if reads_hidden or not _is_hidden(name)), key=lambda path: inside[path]
    )
    for path in found:
        try:
            inside[path].encode()
        except UnicodeEncodeError:
            raise RelmError(f"{os.fsencode(path)!r}: the file's name is not valid UTF-8; rename it") from None
    return found


def ignore_case(pattern: str) -> str:
    """Return a pattern that matches the same names in upper and lower case.

    >>> ignore_case("**/[ab]*.txt")
    '**/[ab]*.[tT][xX][tT]'
    """
    return re.sub(r"(\[[^]]*\])|([a-zA-Z])", lambda found: found[1] or f"[{found[2].lower()}{found[2].upper()}]", pattern)


def describe_left_out(folder: Path, pattern: str, files: Collection[Path]) -> str:
    """Return the count and some names of what one might expect a dataset to read; '' if it leaves nothing out.

    These are hidden files, names in another case, broken links, pipes, and folders that are links or cannot be opened.
    """
    closed = (path for path in folder.rglob("*") if path.is_dir() and not os.access(path, os.R_OK | os.X_OK))
    near = (path for path in _glob(folder, ignore_case(pattern)) if not path.is_dir())
    left_out = sorted({*near, *closed, *list_linked_folders(folder, files)} - set(files))
    names = [escape_controls(path.relative_to(folder).as_posix()) for path in left_out]
    shown = f"{len(names):,} ({', '.join(names[:NAMED])}{', ...' if len(names) > NAMED else ''})" if names else ""
    return shown.encode("utf-8", "backslashreplace").decode()


def list_linked_folders(folder: Path, files: Collection[Path]) -> list[Path]:
    """Return the links to folders in which no file is read, sorted; hidden ones do not count."""
    entered = {parent for file in files for parent in file.parents}
    links = (path for path in sorted(folder.rglob("*")) if path.is_symlink() and path.is_dir())
    return [path for path in links if path not in entered and not _is_hidden(path.relative_to(folder).as_posix())]


def _glob(folder: Path, pattern: str) -> list[Path]:
    try:
        return list(folder.glob(pattern))
    except (ValueError, IndexError, OSError):
        raise RelmError(f"pattern {pattern!r:.99}: no glob of files; correct it, such as **/*.txt") from None


def _is_hidden(inside: str) -> bool:
    """Return whether a file, or a folder above it, is hidden; `inside` is its path in the dataset's folder."""
    return "/." in f"/{inside}"
