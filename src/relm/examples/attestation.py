"""Attest a run's examples and their order before training, to compare them elsewhere.

Two runs with equal attestations read the same tokens in the same order. Every batch follows from the seed, the number of
examples and the batch size (`relm.examples.order`); the first and last batches show that the arithmetic and the stored examples
are the same too.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relm.artifact import read_json, write_json
from relm.errors import RelmError
from relm.examples.contract import Batch, Examples, numbers_at
from relm.examples.order import rank_positions


def order_facts(examples: Examples, order_seed: int, phase: str, global_batch_size: int, steps: int) -> dict[str, Any]:
    """Return the numbers that decide the order of a phase's examples, and hashes of its first and last global batch."""
    size = len(examples)
    return {
        "phase": phase,
        "order_seed": order_seed,
        "examples": size,
        "global_batch_size": global_batch_size,
        "steps": steps,
        "epochs": steps * global_batch_size / size,
        "first_batch": _batch_facts(examples, order_seed, global_batch_size, 1),
        "last_batch": _batch_facts(examples, order_seed, global_batch_size, steps),
    }


def attest(examples: Examples, order_seed: int, phase: str, global_batch_size: int, steps: int, output: Path) -> dict[str, Any]:
    """Write `order_facts` to `order.json`, and return them."""
    facts = order_facts(examples, order_seed, phase, global_batch_size, steps)
    write_json(output, facts)
    return facts


def check_attestation(
    path: Path, examples: Examples, order_seed: int, phase: str, global_batch_size: int, steps: int
) -> dict[str, Any]:
    """Compare an `order.json` with a run that is about to start or resume, and raise RelmError with every difference."""
    attested, found = read_json(path), order_facts(examples, order_seed, phase, global_batch_size, steps)
    before, now = dict(_leaves(attested)), dict(_leaves(found))
    different = [
        f"  {key}: attested {before.get(key, 'nothing')}, here {now.get(key, 'nothing')}"
        for key in {**before, **now}
        if before.get(key) != now.get(key)
    ]
    if different:
        raise RelmError(
            f"{path}: this run would not read the attested examples:\n" + "\n".join(different) + "\n"
            "Use the attested recipe and examples, or delete the file to start another run"
        )
    return found


def indices_sha256(indices: npt.NDArray[np.integer]) -> str:
    """Return the sha256 of example numbers as little-endian int64."""
    return hashlib.sha256(np.ascontiguousarray(indices, dtype="<i8").tobytes()).hexdigest()


def content_sha256(batch: Batch) -> str:
    """Return the sha256 of a batch: each array's name, type, shape and little-endian values, in the order of names."""
    digest = hashlib.sha256()
    for name, array in sorted(batch.items()):
        values = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()


def _batch_facts(examples: Examples, order_seed: int, global_batch_size: int, step: int) -> dict[str, Any]:
    positions = rank_positions(step, global_batch_size)
    indices, epochs = numbers_at(examples, order_seed, positions)
    batch = examples.batch(indices, epochs)
    return {"step": step, "indices_sha256": indices_sha256(indices), "content_sha256": content_sha256(batch)}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested objects, such as ('first_batch.step', 1)."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value
