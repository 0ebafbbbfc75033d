"""The surroundings of steps in real Apptainer, which takes them from variables of Snakemake's process.

Snakemake's command names no folder but the current one, as the home folder, and `--no-home` leaves that out. The shim, which
gives each step only what it reads, passes over these variables.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from relm.containers.extensions import find_extensions
from relm.errors import RelmError
from relm.recipes.files.own_folders import CONSENT, HOME, home_folder, list_consented, resolve_own_folder
from relm.recipes.identity import work_folder

BIND = "APPTAINER_BIND"
"""Variable with the folders and files that Apptainer mounts, separated by commas."""
INSIDE = "APPTAINERENV_"
"""Prefix of a variable that Apptainer sets inside, whatever is set outside."""


def describe_surroundings(checkout: Path) -> dict[str, str]:
    """Return the variables with which Apptainer mounts the folders of all steps, and sets what steps look for them by.

    The checkout and the work folder are mounted to be written. The folders that datasets and models may name, those of
    `RELM_MIRROR`, and extensions are only read. The caller's own mounts stay.

    Raises:
        RelmError: a path has a comma or a colon, or no recipe may read a folder.
    """
    work = work_folder().resolve()  # Apptainer refuses to mount what is absent, but Snakemake has made it before a job starts
    extensions = find_extensions(os.environ, (checkout, work))
    mirrors = [Path(name).resolve() for name in os.environ.get("RELM_MIRROR", "").split(os.pathsep) if name]
    consented = [resolve_own_folder(name, CONSENT).resolve() for name in list_consented()]
    read = [
        path for path in [*consented, *mirrors, *extensions.files] if path.exists() and not _is_inside(path, checkout, work)
    ]
    written = [folder for folder in (checkout, work) if folder == checkout or not _is_inside(folder, checkout)]
    _require_mountable([*written, *read])
    mounts = [*map(str, written), *(f"{path}:{path}:ro" for path in read)]
    given = [mount for mount in os.environ.get(BIND, "").split(",") if mount]
    home = home_folder()
    return {
        BIND: ",".join(dict.fromkeys([*given, *mounts])),
        f"{INSIDE}PYTHONPATH": os.pathsep.join(map(str, extensions.search_path)),  # not the caller's: the image has its own
        **({f"{INSIDE}{HOME}": str(home)} if home is not None else {}),
    }


def _require_mountable(paths: Iterable[Path]) -> None:
    """Raise an error for a path that the separators would cut: Apptainer can escape them in a source alone."""
    for path in paths:
        if found := set(str(path)) & set(",:"):
            raise RelmError(
                f"{path}: Apptainer cannot mount a path with {' and '.join(map(repr, sorted(found)))}, which separate mounts; "
                "rename it, or use one without these characters"
            )


def _is_inside(path: Path, *folders: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
