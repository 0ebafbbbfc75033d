"""A preloaded library by which system calls of other processes fail and their clock jumps; see disturbed_calls.c."""

import errno
import mmap
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("disturbed_calls.c")
LAYOUT = struct.Struct("<iiiiq")


class DisturbedCalls:
    """The library, built in a folder, and the settings that it reads at every call."""

    def __init__(self, folder: Path, disturbed: Path) -> None:
        """Build the library.

        Args:
            folder: where the library and its settings lie.
            disturbed: the folder whose files' reads, writes and flushes may fail.
        """
        self.folder = folder
        self._library, settings = folder / "disturbed_calls.so", folder / "settings"
        compiler = shutil.which("cc") or "gcc"
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", self._library, SOURCE, "-ldl"], check=True)
        settings.write_bytes(bytes(LAYOUT.size))
        with open(settings, "r+b") as file:
            self._settings = mmap.mmap(file.fileno(), LAYOUT.size)
        self.environment = {
            "LD_PRELOAD": str(self._library),
            "DISTURBED_SETTINGS": str(settings),
            "DISTURBED_FOLDER": str(disturbed),
        }

    def set(self, reads_one_in: int = 0, writes_one_in: int = 0, error: int = errno.EIO, clock_seconds: int = 0) -> None:
        """Set which calls fail from now on; without arguments, none does and the clock is right."""
        self._settings[:] = LAYOUT.pack(error, reads_one_in, writes_one_in, self.failures, clock_seconds)

    @property
    def failures(self) -> int:
        """The count of calls that failed."""
        return int(LAYOUT.unpack(self._settings[:])[3])


def find_lacking() -> str | None:
    """Return why the library cannot be built here; None if it can."""
    return None if shutil.which("cc") or shutil.which("gcc") else "no C compiler is installed"
