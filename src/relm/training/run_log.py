"""Logs of one JSON object a line, each of a later step than the one before, however often a run was resumed.

`train.jsonl` records the course of training, `checkpoints.jsonl` the checkpoints.
"""

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relm.errors import RelmError


class RunLog:
    """A log open for appending; every line is passed to the system at once."""

    def __init__(self, path: Path, step: int) -> None:
        """Open the log of a run that resumes after `step`; lines of an interrupted attempt beyond it are removed.

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
            while text:  # the system may write a part only, and raise the error at the next call
                text = text[self._file.write(text) :]
        except OSError as error:
            raise self._cannot_be_written(error) from error

    def sync(self) -> None:
        """Sync every line to the disk; called before a checkpoint, on which a resumed run relies.

        Raises:
            RelmError: the lines cannot be written.
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
            f"{self._path}: cannot be written: {error.strerror}; checkpoints are intact. Correct that (a full disk?) "
            "and give the same command again"
        )


def _truncate(path: Path, step: int) -> None:
    """Remove broken lines and lines of later steps from the end of a log; the lines before them are not read."""
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
    """Return True if a line is complete and of a step up to `step`; a kill may have left half a line at the end."""
    try:
        return line.endswith(b"\n") and int(json.loads(line)["step"]) <= step
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
