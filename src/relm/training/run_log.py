"""`train.jsonl`: what training looked like, one JSON object a line, each step at most once however often it was resumed."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relm.artifact import atomic_file


class RunLog:
    """Appends to `train.jsonl`; every line reaches the system at once."""

    def __init__(self, path: Path, step: int) -> None:
        """Open the log of a run that goes on after `step`: what an interrupted attempt wrote beyond it is taken away."""
        path.parent.mkdir(parents=True, exist_ok=True)
        _truncate(path, step)
        self._file = open(path, "a", encoding="utf-8", newline="\n")  # noqa: SIM115 - closed by close()

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line, with a `step`."""
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Have the disk hold every line: before a checkpoint, which a resumed run believes."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _truncate(path: Path, step: int) -> None:
    if not path.exists():
        return
    before = path.read_bytes()
    after = b"".join(line for line in before.splitlines(keepends=True) if _is_of(line, step))
    if after != before:
        with atomic_file(path) as file:
            file.write(after)


def _is_of(line: bytes, step: int) -> bool:
    """Whether a line is whole and of a step up to `step`; a kill may have left half a line at the end."""
    try:
        return line.endswith(b"\n") and int(json.loads(line)["step"]) <= step
    except (ValueError, KeyError, TypeError):
        return False
