"""A job of a recipe: the command of its step, and the files that it opens.

Rules run these commands with Snakemake's own paths, people run them as `relm STEP NAME`. Imports no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relm.artifact import canonical_json
from relm.recipes.run import Run

Files = Mapping[str, Sequence[Path]]
Words = Sequence[Any]
"""Words of a command: a text, a mapping for JSON, or the Path of a file or its folder, which Snakemake may have elsewhere."""


@dataclass(frozen=True)
class RecipeJob:
    """One job: the words of its command from the step's name on, and its files by name."""

    words: Words
    outputs: Mapping[str, Path]
    hashed: Files = field(default_factory=dict)
    """Inputs whose content counts, by the hash in their sidecars, and not their time."""
    dated: Files = field(default_factory=dict)
    """Small inputs whose time counts."""
    recorded: Files = field(default_factory=dict)
    """The same, with the record of their step, which checks them."""
    listed: Files = field(default_factory=dict)
    """Inputs whose hashes are in another input, or whose key is in their path."""
    takes_workers: bool = False
    """True if the command has `--workers`."""
    run: Run | None = None
    """The section that says how to start the processes of a training job."""
    hosts: int = 1
    """Number of hosts they run on."""

    @property
    def step(self) -> str:
        """The step's name."""
        return str(self.words[0])

    @property
    def makes(self) -> Path:
        """The first output."""
        return next(iter(self.outputs.values()))

    @property
    def inputs(self) -> dict[str, Sequence[Path]]:
        """All inputs by name."""
        return {**self.hashed, **self.dated, **self.recorded, **self.listed}

    def command(self, places: Mapping[Path, str] = {}, workers: int | None = None) -> list[str]:
        """Return the command's words; `places` has path of the plan -> path for this execution, where they differ."""
        known = {path.parent: str(Path(place).parent) for path, place in places.items()} | dict(places)
        found = [
            word if isinstance(word, str) else known.get(word, str(word)) if isinstance(word, Path) else canonical_json(word)
            for word in self.words
        ]
        return [*found, *(["--workers", str(workers)] if self.takes_workers and workers else [])]


def flags(files: Mapping[str, Any]) -> list[Any]:
    """Return `--NAME FILE ...` for each name that has files."""
    words: list[Any] = []
    for name, paths in files.items():
        each = [paths] if isinstance(paths, Path) else paths
        words += [f"--{name.replace('_', '-')}", *each] if each else []
    return words


def sha256_flag(expected: Mapping[str, str]) -> list[str]:
    """Return `--sha256 NAME=HASH ...`; nothing if no hash is given."""
    return ["--sha256", *(f"{name}={sha256}" for name, sha256 in expected.items())] if expected else []
