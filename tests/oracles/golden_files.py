"""Goldens: numbers and hashes of 100 steps that an original's own code took at twin size.

`goldens/NAME.json` has the loss, the norm of the gradient and the learning rate of every step, the sha256 of every batch and of
the initial weights, and the commit, the command and the versions that made it. `goldens/NAME.safetensors` has the weights after
the last step, under the original's names. The initial weights are drawn from `SEED` by `draw_weights`, on both sides.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import platform
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file, save_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

GOLDENS = Path(__file__).resolve().parent / "goldens"
STEPS = 100
SEED = 2026
# Standard deviation of the initial weights: large enough that attention differs clearly from a mean.
DEVIATION = 0.05
# Endings of the names of vectors that scale, whose initial weights lie around 1.
SCALES = ("weight", "scale", "gamma", "w", "gains")
# Digits of a batch's sha256 that a golden keeps.
DIGITS = 16

# A string, because originals of these years run on Python 3.8, and this module with them.
Weights = "Mapping[str, npt.NDArray[np.float32]]"


@dataclasses.dataclass(frozen=True)
class Golden:
    """The first steps of an original's own code."""

    original: str
    """OWNER/NAME on GitHub, and the program."""
    commit: str
    command: str
    """The command that made this golden, with FOLDER for the local copy of the original."""
    patched: Sequence[str]
    """A sentence on each thing that was replaced from outside."""
    versions: Mapping[str, str]
    initial_sha256: str
    batches_sha256: Sequence[str]
    """The first digits of the sha256 of each step's global batch, see `hash_batch`."""
    losses: Sequence[float]
    """The mean loss of each step's global batch, before its update."""
    gradient_norms: Sequence[float]
    """The norm of each step's gradient, before clipping."""
    learning_rates: Sequence[float]
    final: Weights = dataclasses.field(repr=False)
    """The weights after the last step, under the original's names."""

    @property
    def initial(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the weights before the first step, under the original's names."""
        drawn = draw_weights({name: weight.shape for name, weight in self.final.items()})
        assert hash_weights(drawn) == self.initial_sha256, "the initial weights are drawn otherwise than for the golden"
        return drawn


def read_golden(name: str) -> Golden:
    """Return the golden of an original."""
    facts = json.loads((GOLDENS / f"{name}.json").read_text(encoding="utf-8"))
    return Golden(**facts, final=load_file(GOLDENS / f"{name}.safetensors"))


def write_golden(name: str, golden: Golden) -> None:
    """Write the two files of a golden, of `STEPS` steps."""
    figures = [golden.losses, golden.gradient_norms, golden.learning_rates, golden.batches_sha256]
    assert [len(of_steps) for of_steps in figures] == [STEPS] * 4, [len(of_steps) for of_steps in figures]
    facts = {field.name: getattr(golden, field.name) for field in dataclasses.fields(golden) if field.name != "final"}
    GOLDENS.mkdir(exist_ok=True)
    (GOLDENS / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    final = {key: np.ascontiguousarray(weight, dtype=np.float32) for key, weight in golden.final.items()}
    save_file(final, GOLDENS / f"{name}.safetensors")


def draw_weights(shapes: Mapping[str, Sequence[int]]) -> dict[str, npt.NDArray[np.float32]]:
    """Return initial weights, each drawn from its own generator, which depends on `SEED` and its name.

    Biases are not zero and scales are not one, so that a decay which only one side applies to them shows.
    """
    return {name: _draw(name, tuple(shape)) for name, shape in shapes.items()}


def _draw(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    # RandomState: numpy promises that its draws never change.
    drawn = np.random.RandomState([SEED, zlib.crc32(name.encode())]).standard_normal(shape) * DEVIATION
    # llm.c has the vectors of all layers in one array, ln1w.
    around = 1.0 if name.endswith(SCALES) and (len(shape) == 1 or name.startswith("ln")) else 0.0
    return (around + drawn).astype(np.float32)


def draw_tokens(count: int, vocabulary_size: int) -> npt.NDArray[np.int64]:
    """Return a random walk over the vocabulary, so that there is something to learn."""
    return np.random.RandomState(SEED).randint(-2, 3, count).cumsum() % vocabulary_size


def hash_weights(weights: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return the sha256 of weights in float32, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + np.ascontiguousarray(weights[name], dtype="<f4").tobytes())
    return digest.hexdigest()


def hash_batch(arrays: Iterable[npt.NDArray[Any]]) -> str:
    """Return the first digits of the sha256 of a global batch: its arrays as int64, each (batch, ...), one after the other."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
    return digest.hexdigest()[:DIGITS]


def read_commit_of(folder: Path) -> str:
    """Return the commit of a local copy of an original.

    Raises:
        SystemExit: it is not a checkout, or a tracked file differs from its commit.
    """
    git = ["git", "-C", str(folder)]
    if subprocess.run([*git, "diff", "--quiet", "HEAD"], check=False).returncode:
        sys.exit(f"{folder}: no checkout, or one with changes; clone the original and check out its commit")
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def read_versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python and of packages."""
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages}}
