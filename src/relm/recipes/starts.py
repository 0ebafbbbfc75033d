"""Oracles of a run's start: `recipes/starts/NAME.yaml`, figures that the original's own code gave for its first steps.

`relm verify-start NAME` compares them with the recipe before anything is paid for. They are not part of the run's identity.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from relm.recipes.files.remote_files import Sha256
from relm.recipes.section import Section, read_yaml, validate


class OriginalFigures(Section):
    """Figures of an original, with their source."""

    source: str
    """Program that gave the figures, or the publication: repository, commit and file."""
    command: str | None = None
    """Command of this repository that makes the figures again; null: they are published."""


class WeightsOracle(OriginalFigures):
    """The initial weights of the original."""

    sha256: dict[Literal["avx2", "default"], dict[str, Sha256]] = Field(min_length=1)
    """Code with which torch draws normal numbers -> name of a matrix -> hash of its float32 values, little-endian, under the
    names and in the layout of transformers. avx2: x86 CPUs with AVX2; default: others."""


class OrderOracle(OriginalFigures):
    """The order of the original's sequences."""

    shards: list[tuple[Annotated[int, Field(gt=0, le=100_000)], Annotated[int, Field(gt=1)]]] = Field(min_length=1)
    """Pairs of a count of training shards and the tokens in each, in order."""
    sha256: Sha256
    """Hash of int64 pairs, little-endian, for each update and each of the original's processes in turn: the shard, counted from
    0, and the token of it with which the process's batch begins."""


class RatesOracle(OriginalFigures):
    """The learning rates of the original."""

    decimals: int = Field(gt=0, le=20)
    """Decimals with which the original's log prints them."""
    sha256: Sha256
    """Hash of the printed rates of all updates, a line each."""
    borders: dict[int, float] = Field(default_factory=dict)
    """Step -> printed rate, where the rate is between two printed ones, so that the original's float32 decides."""
    milestones: dict[int, float] = Field(default_factory=dict)
    """Step, counted from 1 -> printed rate, for the message about other rates."""


class LossOracle(OriginalFigures):
    """The loss of the first batch before the first update."""

    nats_per_token: float = Field(gt=0)
    """Published value."""
    tolerance: float = Field(gt=0)
    """Largest difference that counts as equal."""


class OptionsOracle(OriginalFigures):
    """Options of the original that no other oracle depends on."""

    values: dict[str, Any] = Field(min_length=1)
    """Dotted key of the recipe -> value that the original has."""


class Start(Section):
    """`recipes/starts/NAME.yaml`: the known facts of a run's start; null: unknown."""

    weights: WeightsOracle | None = None
    """Initial weights."""
    order: OrderOracle | None = None
    """Order of the sequences in all updates."""
    rates: RatesOracle | None = None
    """Learning rates of all updates."""
    options: OptionsOracle | None = None
    """Options of optimizer, loss and model."""
    first_loss: LossOracle | None = None
    """Loss of the first batch; compared if the examples are there."""


def load_start(path: Path) -> Start:
    """Return the oracles in a file of `recipes/starts/`."""
    return validate(Start, read_yaml(path), path)
