"""Copy a file from the user's model folder once, so that later steps do not depend on the folder."""

import hashlib
from pathlib import Path

from relm.artifact import atomic_file, write_sidecar
from relm.errors import RelmError
from relm.limits import require_disk

BLOCK = 1 << 20


def copy_own_file(source: Path, expected_sha256: str | None, destination: Path) -> str:
    """Copy a file to `destination`, write its sidecar, and return a sentence about it.

    Raises RelmError and changes nothing if the file is absent, its sha256 is not the expected one (None: any), or the disk is
    full.
    """
    if not source.is_file():
        raise RelmError(f"{source}: no such file; correct `folder` in the model's file, or add the file")
    size, digest = source.stat().st_size, hashlib.sha256()
    require_disk(destination.parent, size, destination.name)
    with open(source, "rb") as original, atomic_file(destination) as copy:
        while block := original.read(BLOCK):
            digest.update(block)
            copy.write(block)
        if expected_sha256 not in (None, digest.hexdigest()):
            raise RelmError(
                f"{source}: changed: sha256 is {digest.hexdigest()}, but the run was planned with {expected_sha256}; "
                "run the snakemake command again"
            )
    write_sidecar(destination)
    return f"{destination.name}: {size:,} bytes from {source}"
