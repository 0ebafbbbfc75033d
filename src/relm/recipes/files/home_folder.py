"""The folder that `~` names in a dataset or a model: the caller's home, in a container too.

An image has a HOME of its own for caches. RELM_HOME tells a step in it where the caller's home folder is.
"""

import os
from pathlib import Path

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
