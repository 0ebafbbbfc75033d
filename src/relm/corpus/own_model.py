"""A file out of a model's folder of one's own: copied once, so that work on it goes on whatever becomes of the folder."""

import hashlib
from pathlib import Path

from relm.artifact import atomic_file, write_sidecar
from relm.errors import RelmError
from relm.limits import require_disk

BLOCK = 1 << 20


def copy_own_file(source: Path, expected_sha256: str | None, destination: Path) -> str:
    """Make `destination` and its sidecar from a file of a folder; a sentence about it.

    Args:
        expected_sha256: of the file; None: whatever it holds.

    Raises:
        RelmError: the file is absent or has other content, or the disk is full; nothing was changed then.
    """
    if not source.is_file():
        raise RelmError(f"{source}: no such file; correct `folder` in the model's file, or put it there")
    size, digest = source.stat().st_size, hashlib.sha256()
    require_disk(destination.parent, size, destination.name)
    with open(source, "rb") as original, atomic_file(destination) as copy:
        while block := original.read(BLOCK):
            digest.update(block)
            copy.write(block)
        if expected_sha256 not in (None, digest.hexdigest()):
            raise RelmError(
                f"{source}: sha256 is {digest.hexdigest()} now, this command was planned for {expected_sha256}: it was "
                "edited in between; give the snakemake command again"
            )
    write_sidecar(destination)
    return f"{destination.name}: {size:,} bytes from {source}"
