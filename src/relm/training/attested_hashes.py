"""Hashes that `checkpoints.jsonl` has beside those of tensors: of `state.json`, and of the lines of `train.jsonl` up to it.

Times and what else tells of the machine are left out, so that an interrupted run attests the same as one that was not.
Imports no torch.
"""

import hashlib
import json
import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from relm.errors import RelmError

# Columns of train.jsonl that tell of the machine, not of the model.
OF_THE_MACHINE = frozenset({"tokens_per_second", "samples_per_second", "mfu", "memory_bytes", "seconds"})


def state_sha256(state: Mapping[str, Any]) -> str:
    """Return the sha256 of a checkpoint's `state.json` as canonical JSON without `seconds`."""
    return _sha256(_canonical(state))


def line_facts(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the number of lines of `train.jsonl` and the sha256 of them all, without `OF_THE_MACHINE`.

    >>> line_facts([{"step": 1, "loss": 2.0, "seconds": 7}]) == line_facts([{"loss": 2.0, "step": 1}])
    True
    """
    texts = [_canonical(line) for line in lines]
    return {"lines": len(texts), "sha256": _sha256("".join(f"{text}\n" for text in texts))}


def lines_after(log: Path, step: int) -> list[dict[str, Any]]:
    """Return the lines of `train.jsonl` of later steps than `step`; the file is read from its end, and no further.

    Raises:
        RelmError: a line is broken.
    """
    lines: list[dict[str, Any]] = []
    if not log.stat().st_size:
        return lines
    with open(log, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        end = len(text)
        while end:
            start = text.rfind(b"\n", 0, end - 1) + 1
            try:
                line = json.loads(text[start:end])
                is_later = line["step"] > step
            except (ValueError, KeyError, TypeError, RecursionError):
                raise RelmError(f"{log}: expected a line of JSON with a step, found {text[start:end][:80]!r}") from None
            if not is_later:
                break
            lines.append(line)
            end = start
    return lines[::-1]


def _sha256(text: str) -> str:
    """Return the sha256 of a text, which JSON may have given half of a surrogate pair."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _canonical(value: Mapping[str, Any]) -> str:
    told = {key: inner for key, inner in value.items() if key not in OF_THE_MACHINE}
    return json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
