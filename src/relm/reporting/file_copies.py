"""Copy finished files so that damage to a published copy leaves the run's file unharmed."""

import errno
import fcntl
import shutil
from pathlib import Path

from relm.artifact import sync_path

# Linux's request to share the blocks of another file until one of the two is written: Btrfs, XFS, bcachefs, ZFS.
FICLONE = 0x40049409


def copy_file(source: Path, target: Path) -> None:
    """Copy a file with its mode and times, sharing blocks where the file system can."""
    source = source.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    if not clone_file(source, target):
        shutil.copyfile(source, target)
    shutil.copystat(source, target)
    sync_path(target)


def clone_file(source: Path, target: Path) -> bool:
    """Make a file that shares the blocks of another; return False, and leave nothing, if the file system cannot."""
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
