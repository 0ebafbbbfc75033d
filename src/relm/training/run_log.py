"""Logs of one JSON object a line, each of a later step than the last, however often a run was resumed.

`train.jsonl` records the course of training, `checkpoints.jsonl` the checkpoints.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relm.errors import RelmError
from relm.recipes.run_folder import acceptance_of
from relm.training.attested_hashes import find_log_fault, lines_backwards, read_start

logger = logging.getLogger(__name__)


class RunLog:
    """A log open for appending; every line is passed to the system at once."""

    def __init__(self, path: Path, step: int, attested: Mapping[str, Any] | None = None) -> None:
        """Open the log of a run that resumes after `step`, and remove later lines of an interrupted attempt.

        It must begin with the `bytes` and `sha256` that the checkpoint attests, if any.
        """
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if attested is not None and _is_attested(path, step, attested):
                _shorten(path, attested["bytes"])
            else:
                _truncate(path, step)
            kept = read_start(path, path.stat().st_size if path.exists() else 0)
            self._bytes, self._sha256 = len(kept), hashlib.sha256(kept)
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise self._cannot_be_written(error) from error

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line, with a `step`."""
        text = _text_of(line)
        self._bytes += len(text)
        self._sha256.update(text)
        try:
            while text:  # the system may write only a part, and raise the error at the next call
                text = text[self._file.write(text) :]
        except OSError as error:
            raise self._cannot_be_written(error) from error

    def facts(self, line: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the `bytes` and `sha256` of all lines as they were written, and of `line` as the next one."""
        text, sha256 = b"" if line is None else _text_of(line), self._sha256.copy()
        sha256.update(text)
        return {"bytes": self._bytes + len(text), "sha256": sha256.hexdigest()}

    def sync(self) -> None:
        """Sync every line to the disk; called before a checkpoint, on which a resumed run relies."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._cannot_be_written(error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _cannot_be_written(self, error: OSError) -> RelmError:
        return RelmError(
            f"{self._path}: cannot be written: {error.strerror}. Checkpoints are intact. Fix the cause (is the disk full?) "
            "and run the same command again"
        )


def _text_of(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False).encode() + b"\n"


def _is_attested(path: Path, step: int, attested: Mapping[str, Any]) -> bool:
    """Return True if a log begins as a checkpoint attests, and False if it does not but was accepted."""
    fault, accepted = find_log_fault(path, attested), acceptance_of(path)
    if fault is None:
        return True
    attests = f"state.json of step {step:,} attests {attested['bytes']:,} bytes with sha256 {attested['sha256']}"
    if not accepted.exists():
        raise RelmError(
            f"{path}: {fault}, but {attests}: the file was changed since. Restore it, or create the empty file {accepted} to "
            "resume with the lines that it has"
        )
    logger.warning("%s: %s, but %s; resuming with the lines that it has, because %s exists", path, fault, attests, accepted)
    return False


def _shorten(path: Path, size: int) -> None:
    """Shorten a log to its first bytes."""
    if path.exists() and path.stat().st_size > size:
        with open(path, "rb+") as file:
            file.truncate(size)
            os.fsync(file.fileno())


def _truncate(path: Path, step: int) -> None:
    """Remove broken lines and lines of later steps from the end of a log; the lines before them are not parsed."""
    if not path.exists():
        return
    end = path.stat().st_size
    for start, line in lines_backwards(path):
        if _is_of(line, step):
            break
        end = start
    _shorten(path, end)


def _is_of(line: bytes, step: int) -> bool:
    """Return True if a line is complete and of a step up to `step`; a kill may have left half a line at the end."""
    try:
        return line.endswith(b"\n") and int(json.loads(line)["step"]) <= step
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
