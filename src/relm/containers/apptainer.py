"""The mounts and variables of steps in real Apptainer, which reads them from the environment of Snakemake's process.

Snakemake's command mounts only the current folder, as home, and `--no-home` drops even that. The shim ignores these variables,
because it gives each step only what it reads.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from relm.containers.extensions import find_extensions
from relm.errors import RelmError
from relm.recipes.files.own_folders import CONSENT, HOME, home_folder, list_consented, resolve_own_folder
from relm.recipes.identity import work_folder

BIND = "APPTAINER_BIND"
"""The variable with the folders and files that Apptainer mounts, separated by commas."""
INSIDE = "APPTAINERENV_"
"""The prefix of a variable that Apptainer sets inside the container."""


def describe_surroundings(checkout: Path) -> dict[str, str]:
    """Return the variables that make Apptainer mount the folders of all steps.

    The checkout and the work folder are writable. The folders that datasets and models may name, those of `RELM_MIRROR`, and
    extensions are read-only. The caller's mounts stay. Raise RelmError if a path has a comma or a colon.
    """
    work = work_folder().resolve()  # Apptainer cannot mount an absent folder; Snakemake makes this one before a job starts
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
        f"{INSIDE}PYTHONPATH": os.pathsep.join(
            map(str, extensions.search_path)
        ),  # replaces the caller's, which is not for the image
        **({f"{INSIDE}{HOME}": str(home)} if home is not None else {}),
    }


def _require_mountable(paths: Iterable[Path]) -> None:
    """Raise RelmError for a path with separators, which Apptainer can escape only in a source."""
    for path in paths:
        if found := set(str(path)) & set(",:"):
            raise RelmError(
                f"{path}: Apptainer cannot mount a path with {' and '.join(map(repr, sorted(found)))}, which separates mounts; "
                "rename it, or use another path"
            )


def _is_inside(path: Path, *folders: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
