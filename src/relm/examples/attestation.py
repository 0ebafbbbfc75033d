"""Which examples a run reads, in which order: a record that can be made again elsewhere and compared, before a step is trained.

Two runs whose records agree read the same tokens in the same order: every batch follows from the seed, the number of examples
and the batch size (`relm.examples.order`), and the first and the last batch show that the arithmetic and the stored examples
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
    """What decides the order of a phase's examples, and hashes of its first and last global batch.

    Args:
        order_seed: of the permutation, as given to `numbers_at`.
        steps: of the whole phase, 1 or more.
    """
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
    """Write `order.json`: the facts of `order_facts`, which it also returns."""
    facts = order_facts(examples, order_seed, phase, global_batch_size, steps)
    write_json(output, facts)
    return facts


def check_attestation(
    path: Path, examples: Examples, order_seed: int, phase: str, global_batch_size: int, steps: int
) -> dict[str, Any]:
    """Compare an `order.json` with a run that is about to begin or to go on; the run's facts.

    Raises:
        RelmError: the file is absent, or the run would read other examples or another order; names everything that differs.
    """
    attested, found = read_json(path), order_facts(examples, order_seed, phase, global_batch_size, steps)
    before, now = dict(_leaves(attested)), dict(_leaves(found))
    different = [
        f"  {key}: attested {before.get(key, 'nothing')}, here {now.get(key, 'nothing')}"
        for key in {**before, **now}
        if before.get(key) != now.get(key)
    ]
    if different:
        raise RelmError(
            f"{path}: this run would not read the examples that were attested:\n" + "\n".join(different) + "\n"
            "take the recipe and the examples that belong to it, or remove it to begin another run"
        )
    return found


def indices_sha256(indices: npt.NDArray[np.integer]) -> str:
    """Of example numbers as little-endian int64."""
    return hashlib.sha256(np.ascontiguousarray(indices, dtype="<i8").tobytes()).hexdigest()


def content_sha256(batch: Batch) -> str:
    """Of all arrays of a batch in the order of their names: name, type, shape and little-endian values."""
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


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """('first_batch.step', 1), ... of nested objects."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{place}.{key}" if place else str(key))
    else:
        yield place, value
