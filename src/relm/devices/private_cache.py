"""Folders of compiled programs, which belong to one user alone: whoever can write into one has their code run.

torch.compile would keep its programs in `/tmp/torchinductor_USER`, a name that any user of the machine can take first.
"""

import os
import stat
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from relm.errors import RelmError

INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
"""Variable with the folder of torch.compile's programs, in which Triton's lie as well."""


def make_private_folder(folder: Path) -> Path:
    """Make a folder that its user alone can read and write, or check that it is one, and return it."""
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
        found = "it is another user's, a link or a file"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):  # what is in it may be theirs, so a change of the mode is not enough
        found = f"others can write into it (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        return
    raise RelmError(f"{folder}: holds compiled programs and must be your own alone, but {found}; delete it and run again")


def keep_compiler_cache(environment: MutableMapping[str, str]) -> None:
    """Set the folder of torch.compile's programs, unless the user or the image has set one.

    It is `~/.cache/relm/inductor`, or where the home cannot be written a new folder under a random name.
    """
    if environment.get(INDUCTOR):
        return
    caches = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        folder = make_private_folder(caches / "relm" / "inductor")
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="relm-inductor-"))
    environment[INDUCTOR] = str(folder)
