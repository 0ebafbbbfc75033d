"""Folders of the user's own that a dataset or a model names, and those that no recipe may read.

A recipe may come from somebody else. What it reads goes into training data and from there into samples and published examples,
so folders of the system and of programs' settings, in which keys and passwords lie, are refused, whoever names them.
"""

from collections.abc import Iterable
from pathlib import Path

from relm.errors import RelmError

SYSTEM = ("/boot", "/dev", "/etc", "/proc", "/run", "/sys")


def resolve_own_folder(text: str, where: str) -> Path:
    """Return the folder that a dataset's or a model's `folder` names, as it is given, with ~ expanded.

    Args:
        where: what names it, for the message.

    Raises:
        RelmError: it is one that no recipe may read, itself or behind a link.
    """
    try:
        folder = Path(text).expanduser()
    except RuntimeError:
        raise RelmError(f"{where}: there is no home folder for {text}; give the whole path") from None
    _require_allowed(folder, where)
    return folder


def require_own_files(files: Iterable[Path], where: str) -> None:
    """Raise RelmError if a file of an allowed folder is a link to one that no recipe may read, or lies behind such a link."""
    parents: set[Path] = set()
    for path in files:
        if path.is_symlink():
            _require_allowed(path, where)
        if path.parent not in parents:
            parents.add(path.parent)
            _require_allowed(path.parent, where)


def _require_allowed(path: Path, where: str) -> None:
    resolved = path.resolve()
    if (reason := _find_reason(resolved)) is not None:
        leads = "" if resolved == path.absolute() else f", which is {resolved}"
        raise RelmError(
            f"{where}: {path}{leads}: {reason}, from which no data are read; copy the data into a folder of their own"
        )


def _find_reason(resolved: Path) -> str | None:
    if resolved == Path("/"):
        return "the root of all folders"
    if system := next((name for name in SYSTEM if resolved.is_relative_to(name)), None):
        return f"in {system}, a folder of the system"
    try:
        home = Path.home().resolve()
    except RuntimeError:
        return None
    if resolved == home:
        return "the whole home folder"
    inside = resolved.relative_to(home).parts if resolved.is_relative_to(home) else ()
    if inside and inside[0].startswith("."):
        return f"in ~/{inside[0]}, which holds the settings of programs"
    return None
