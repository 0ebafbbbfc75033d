"""Private folders for compiled programs: anyone who can write into one can run code.

torch.compile would keep its programs in `/tmp/torchinductor_USER`, a name that any user of the machine can take first.
"""

import os
import stat
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from relm.errors import RelmError

INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
"""Variable with the folder of torch.compile's programs and Triton's."""


def make_private_folder(folder: Path) -> Path:
    """Make a folder that only its user can read and write, or check an existing one, and return it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        _require_own(folder)
        folder.chmod(0o700)
    return folder


def _require_own(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        found = "it is a link, a file or another user's"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):  # its content may be theirs, so a change of the mode is not enough
        found = f"others can write into it (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        return
    raise RelmError(f"{folder}: contains compiled programs and must be private, but {found}; delete it and run again")


def keep_compiler_cache(environment: MutableMapping[str, str]) -> None:
    """Set the folder of torch.compile's programs, unless the user or the image has set one.

    It is `~/.cache/relm/inductor`, or a new folder with a random name if the home is not writable.
    """
    if environment.get(INDUCTOR):
        return
    caches = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        folder = make_private_folder(caches / "relm" / "inductor")
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="relm-inductor-"))
    environment[INDUCTOR] = str(folder)
