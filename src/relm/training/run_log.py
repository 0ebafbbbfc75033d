"""Files of one JSON object a line, each of a later step than the one before, however often a run was resumed.

`train.jsonl` says what training looked like; `checkpoints.jsonl` which checkpoints there were.
"""

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relm.errors import RelmError


class RunLog:
    """Appends to such a file; every line reaches the system at once."""

    def __init__(self, path: Path, step: int) -> None:
        """Open the log of a run that goes on after `step`: what an interrupted attempt wrote beyond it is taken away.

        Raises:
            RelmError: it cannot be written.
        """
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _truncate(path, step)
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise self._cannot_be_written(error) from error

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line, with a `step`.

        Raises:
            RelmError: it cannot be written.
        """
        text = json.dumps(line, allow_nan=False).encode() + b"\n"
        try:
            while text:  # the system may take a part alone, and say what is wrong with the rest when it is asked again
                text = text[self._file.write(text) :]
        except OSError as error:
            raise self._cannot_be_written(error) from error

    def sync(self) -> None:
        """Have the disk hold every line: before a checkpoint, which a resumed run believes.

        Raises:
            RelmError: it does not.
        """
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._cannot_be_written(error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _cannot_be_written(self, error: OSError) -> RelmError:
        return RelmError(
            f"{self._path}: cannot be written: {error.strerror}; checkpoints are intact: see to it (a full disk?) "
            "and give the same command again"
        )


def _truncate(path: Path, step: int) -> None:
    """Take lines away at the end, as far as they are broken or of a later step; what stays is not read."""
    if not path.exists() or not path.stat().st_size:
        return
    with open(path, "rb+") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        end = len(text)
        while end:
            start = text.rfind(b"\n", 0, end - 1) + 1
            if _is_of(text[start:end], step):
                break
            end = start
        if end < len(text):
            file.truncate(end)
            os.fsync(file.fileno())


def _is_of(line: bytes, step: int) -> bool:
    """Whether a line is whole and of a step up to `step`; a kill may have left half a line at the end."""
    try:
        return line.endswith(b"\n") and int(json.loads(line)["step"]) <= step
    except (ValueError, KeyError, TypeError):
        return False
