"""Copies of finished files that share no byte with them: damage to a published file leaves the run's own unharmed."""

import errno
import fcntl
import os
import shutil
from pathlib import Path

from relm.artifact import sync_path
from relm.limits import free_disk

SHARED, COPIED, LINKED = "sharing blocks with the run's own until one is changed", "copied", "linked"
# Linux's request to share all blocks of another file until one of the two is written: Btrfs, XFS, bcachefs, ZFS.
FICLONE = 0x40049409
# Smaller files are copied in any case; others only if this many bytes stay free on the disk.
SMALL, RESERVE = 2**26, 2**30


def copy_file(source: Path, target: Path) -> str:
    """Make ``target`` a file of the same content, modes and times, and return the manner: SHARED, COPIED or LINKED.

    Blocks are shared where the file system can. Otherwise the file is copied, since neither mode nor owner keeps root from
    writing through a hard link. Only a large file that the disk has no room for is linked, read-only.
    """
    source = source.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    manner = SHARED if clone_file(source, target) else COPIED
    size = source.stat().st_size
    if manner == COPIED and size > SMALL and free_disk(target.parent) < size + RESERVE:
        os.link(source, target)
        target.chmod(0o444)
        return LINKED
    if manner == COPIED:
        shutil.copyfile(source, target)
    shutil.copystat(source, target)
    sync_path(target)
    return manner


def clone_file(source: Path, target: Path) -> bool:
    """Share the blocks of a file with a new one; return False, and leave nothing, where the file system cannot."""
    with open(source, "rb") as read, open(target, "wb") as written:
        try:
            fcntl.ioctl(written.fileno(), FICLONE, read.fileno())
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
        else:
            return True
    target.unlink()
    return False
