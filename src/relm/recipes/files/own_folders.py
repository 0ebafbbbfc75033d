"""The user's folders that a dataset or a model names: those that need consent, and those that no recipe may read.

A recipe may come from somebody else. What it reads goes into training data and from there into samples and published examples.
So a folder outside the project is read only if RELM_DATA_FOLDERS allows it. Folders of the system and of programs' settings,
which may hold keys and passwords, are never read. A link counts as the folder that it leads to.
"""

import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from relm.errors import RelmError

SYSTEM = ("/boot", "/dev", "/etc", "/proc", "/run", "/sys")
CONSENT = "RELM_DATA_FOLDERS"
"""Variable with the folders outside the project that recipes may read, separated as in PATH."""
AGAIN = "before the command"
HOME = "RELM_HOME"
"""Variable with the caller's home folder, set in a container in which folders of it are mounted."""


def home_folder() -> Path | None:
    """Return the caller's home folder; None if there is none."""
    if given := os.environ.get(HOME):
        return Path(given)
    try:
        return Path.home()
    except RuntimeError:
        return None


def expand_home(text: str) -> Path:
    """Return a path whose leading `~` is the caller's home folder; raise RuntimeError if there is none."""
    path, home = Path(text), home_folder()
    return home.joinpath(*path.parts[1:]) if home is not None and path.parts[:1] == ("~",) else path.expanduser()


def resolve_own_folder(text: str, where: str) -> Path:
    """Return the folder that a dataset or a model names in `folder`, with ~ expanded; raise if no recipe may read it."""
    try:
        folder = expand_home(text)
    except RuntimeError:
        raise RelmError(f"{where}: no home folder for {text}; give the whole path") from None
    _require_allowed(folder, where)
    return folder


def require_consent(text: str, where: str, command: str = AGAIN) -> None:
    """Raise for a folder outside the project that RELM_DATA_FOLDERS does not allow, and say which command needs it."""
    folder = resolve_own_folder(text, where)
    if needs_consent(folder):
        shown = text if text.startswith(("/", "~")) else str(folder.resolve())
        raise RelmError(_describe_refusal(f"{where} {text}", folder, shown, command))


def needs_consent(folder: Path) -> bool:
    """Return True for a folder outside the project that RELM_DATA_FOLDERS does not allow."""
    return not any(map(folder.resolve().is_relative_to, _list_allowed()))


def require_own_files(files: Iterable[Path], folder: Path, where: str) -> None:
    """Raise if a file of a readable folder links to, or is behind a link to, a folder that is not allowed."""
    allowed = [folder.resolve(), *_list_allowed()]
    parents: set[Path] = set()
    for path in files:
        parent = path.parent
        for named in [path] * path.is_symlink() + [parent] * (parent not in parents):
            _require_allowed(named, where)
            resolved = named.resolve()
            if not any(map(resolved.is_relative_to, allowed)):
                whole = resolved if named is parent else resolved.parent
                raise RelmError(_describe_refusal(f"{where}: {named}", named, str(whole), AGAIN))
        parents.add(parent)


def list_consented() -> list[str]:
    """Return the folders in RELM_DATA_FOLDERS, as given."""
    return [name for name in os.environ.get(CONSENT, "").split(os.pathsep) if name]


def format_consent(folder: str) -> str:
    """Return the setting of RELM_DATA_FOLDERS that allows a folder too, for a shell.

    >>> format_consent("~/texts")
    'RELM_DATA_FOLDERS=~/texts'
    """
    folders = os.pathsep.join([*list_consented(), folder])
    return f"{CONSENT}={folders if re.fullmatch(r'[a-zA-Z0-9_.~/:-]+', folders) else shlex.quote(folders)}"


def _list_allowed() -> list[Path]:
    """Return the folders that recipes may read, without links: the project, its work folder, and those with consent."""
    consented = [resolve_own_folder(name, CONSENT) for name in list_consented()]
    return [folder.resolve() for folder in (Path.cwd(), Path(os.environ.get("RELM_WORK") or "work"), *consented)]


def _describe_refusal(named: str, path: Path, shown: str, command: str) -> str:
    return (
        f"{named}{_describe_link(path)}: outside the project, where a recipe reads only with your consent. To "
        f"allow it, give {format_consent(shown)} {command}"
    )


def _require_allowed(path: Path, where: str) -> None:
    if (reason := _find_reason(path.resolve())) is not None:
        raise RelmError(
            f"{where}: {path}{_describe_link(path)}: {reason}, from which data are never read; copy the data into another "
            "folder"
        )


def _describe_link(path: Path) -> str:
    return "" if path.resolve() == path.absolute() else f", which is {path.resolve()}"


def _find_reason(resolved: Path) -> str | None:
    if resolved == Path("/"):
        return "the root of all folders"
    if system := next((name for name in SYSTEM if resolved.is_relative_to(name)), None):
        return f"in {system}, a folder of the system"
    home = home_folder()
    if home is None:
        return None
    home = home.resolve()
    if resolved == home:
        return "the whole home folder"
    inside = resolved.relative_to(home).parts if resolved.is_relative_to(home) else ()
    if inside and inside[0].startswith("."):
        return f"in ~/{inside[0]}, which holds the settings of programs"
    return None
