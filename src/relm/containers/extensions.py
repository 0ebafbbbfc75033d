"""Find the modules in `RELM_EXTENSIONS`, to mount them for a step in an image.

Only the file of a module or the folder of a package is mounted, read-only. An extension of several modules must therefore be a
package, or be listed completely.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from relm.errors import RelmError
from relm.recipes.declaration import EXTENSIONS, list_extensions


@dataclass(frozen=True)
class Extensions:
    """The files of the modules, and the folders in which Python finds them."""

    files: tuple[Path, ...] = ()
    """Files of modules and folders of packages to mount at the same path."""
    search_path: tuple[Path, ...] = ()
    """The folders for PYTHONPATH."""


def find_extensions(environment: Mapping[str, str], mounted: Sequence[Path]) -> Extensions:
    """Return the extensions in the caller's environment; files inside `mounted` folders need no mount."""
    files: dict[Path, None] = {}
    for name in dict.fromkeys(name.partition(".")[0] for name in list_extensions(environment)):
        if name != "relm":
            files |= dict.fromkeys(_locate(name))
    outside = tuple(file for file in files if not any(file.is_relative_to(folder.resolve()) for folder in mounted))
    return Extensions(outside, tuple(dict.fromkeys(file.parent for file in files)))


def _locate(name: str) -> list[Path]:
    """Return the file of a module, or the folders of a package."""
    spec = importlib.util.find_spec(name)
    places = [] if spec is None else [*(spec.submodule_search_locations or [spec.origin or ""])]
    found = [Path(place).resolve() for place in places if place and Path(place).exists()]
    if not found:
        raise RelmError(f"{EXTENSIONS}: {name} has no file to mount into the container; put its folder on PYTHONPATH")
    return found
