"""The hashes by which checkpoints and their logs attest each other. Imports no torch.

`checkpoints.jsonl` lists those of tensors, of `state.json` and of the lines of `train.jsonl`, without times and other values
that depend on the machine, so that an interrupted run attests the same as an uninterrupted one. `state.json` has those of both
logs, byte for byte, as they were when it was written.
"""

import hashlib
import json
import mmap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from relm.artifact import require_regular_file
from relm.errors import RelmError
from relm.json_shapes import find_misfit
from relm.recipes.run_folder import CURVE, LINE_SHAPE, LOGS, MACHINES, RESUMED_AFTER

# Columns of train.jsonl and keys of state.json that depend on the machine, on interruptions or on what the run is compared
# with, not on the model; the logs have times.
MACHINE_COLUMNS = frozenset(
    {"tokens_per_second", "samples_per_second", "mfu", "memory_bytes", "seconds", RESUMED_AFTER, MACHINES, CURVE, LOGS}
)


def state_sha256(state: Mapping[str, Any]) -> str:
    """Return the sha256 of a checkpoint's `state.json` as canonical JSON without the keys in `MACHINE_COLUMNS`."""
    return _sha256(_canonical(state))


def line_facts(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the count of lines of `train.jsonl` and their common sha256, without the columns in `MACHINE_COLUMNS`.

    >>> line_facts([{"step": 1, "loss": 2.0, "seconds": 7}]) == line_facts([{"loss": 2.0, "step": 1}])
    True
    """
    texts = [_canonical(line) for line in lines]
    return {"lines": len(texts), "sha256": _sha256("".join(f"{text}\n" for text in texts))}


def lines_backwards(log: Path, size: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the text of each line of a log, or of its first `size` bytes, the last one first."""
    if not log.stat().st_size:
        return
    with open(log, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        end = len(text) if size is None else min(size, len(text))
        while end:
            start = text.rfind(b"\n", 0, end - 1) + 1
            yield start, text[start:end]
            end = start


def lines_after(log: Path, step: int, size: int | None = None) -> list[dict[str, Any]]:
    """Return the lines of `train.jsonl` after `step`, of its first `size` bytes; read backwards, only as far as needed."""
    lines: list[dict[str, Any]] = []
    for _, text in lines_backwards(log, size):
        try:
            line = json.loads(text)
            is_later = line["step"] > step
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RelmError(f"{log}: expected a line of JSON with a step, found {text[:80]!r}") from None
        if not is_later:
            break
        lines.append(line)
    return lines[::-1]


def find_log_fault(log: Path, attested: Mapping[str, Any]) -> str | None:
    """Describe how a log's first bytes differ from the `bytes` and `sha256` that a checkpoint attests; None: they are equal."""
    size = log.stat().st_size if log.exists() else 0
    if size < attested["bytes"]:
        return f"has {size:,} bytes" if log.exists() else "no such file"
    content = read_start(log, attested["bytes"])
    found = hashlib.sha256(content).hexdigest()
    return None if found == attested["sha256"] else f"its first {len(content):,} bytes have sha256 {found}"


def read_start(log: Path, size: int) -> bytes:
    """Return the first bytes of a log, which may be absent if `size` is 0."""
    if not size:
        return b""
    with open(log, "rb") as file:
        return file.read(size)


def _sha256(text: str) -> str:
    """Return the sha256 of a text; JSON may have given it half of a surrogate pair."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _canonical(value: Mapping[str, Any]) -> str:
    kept = {key: inner for key, inner in value.items() if key not in MACHINE_COLUMNS}
    return json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def read_lines(path: Path, until: int | None = None) -> list[dict[str, Any]]:
    """Return the lines of `train.jsonl` or `checkpoints.jsonl`, each with a `step`, in ascending order.

    With `until`, leave out lines of later steps, and half a line at the end, which a kill may have left.
    """
    require_regular_file(path)
    if not path.exists():
        raise RelmError(f"{path}: no such file: without it the training is not attested; train again with this version")
    lines: list[dict[str, Any]] = []
    content = path.read_text(encoding="utf-8", errors="replace")  # a line with invalid UTF-8 fails below
    for number, text in enumerate(content[: None if until is None else content.rfind("\n") + 1].splitlines(), start=1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = text
        fault = find_misfit(line, LINE_SHAPE)
        if not fault and line["step"] <= (lines[-1]["step"] if lines else 0):
            fault = f"expected an object of a later step than the one before, found {text[:80]}"
        if fault:
            raise RelmError(f"{path}, line {number}: {fault}; bring the file back, or train again")
        lines.append(line)
    return [line for line in lines if until is None or line["step"] <= until]
