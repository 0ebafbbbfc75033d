"""Published loss curves, `recipes/curves/NAME.tsv`, and the section `expect_curve` of a recipe that is watched against one."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from relm.errors import RelmError
from relm.recipes.files.yaml_file import read_text
from relm.recipes.section import Section, Slug, suggest_file

# Keys of the comments at the head of a curve, a line each: `# KEY: TEXT`.
FACTS = ("source", "commit", "path", "licence", "smoothing")
STEP, LOSS, RATE, NORM, VALIDATION = "step", "loss", "learning_rate", "gradient_norm", "validation_loss"
COLUMNS = (STEP, LOSS, RATE, NORM, VALIDATION)
# A column of one repetition of the run, counted from 1; `loss` and `gradient_norm` are then the means of all.
REPETITION = re.compile(rf"({LOSS}|{NORM}|{VALIDATION})_([1-9]\d*)")
# Python's own `float` would take 4_2 for 42, and digits of other scripts.
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class BandPart(Section):
    """The spread of runs from one step on."""

    from_step: int = Field(gt=0)
    """First step of the part, which ends where the next begins."""
    standard_deviation: float = Field(gt=0, le=10)
    """Standard deviation of the loss from run to run in nats, without the noise of single batches, which is measured on the
    curve itself."""


class CurveBand(Section):
    """The band around a published curve, within which another run of the same recipe stays."""

    basis: str
    """Reason for this width: published repetitions, or the project's own runs."""
    runs: int = Field(gt=0)
    """Number of runs it was computed from."""
    parts: list[BandPart] = Field(default_factory=list)
    """Spread of the loss from run to run, by step; empty: computed from the repetitions in the curve's file."""
    gradient_norm_ratio: float | None = Field(default=None, gt=1)
    """Largest ratio of the gradient's norm to the published one, or the reverse, over a window; null: computed from the
    repetitions in the curve's file, and not compared where there are none."""

    @model_validator(mode="after")
    def parts_follow_one_another(self) -> Self:
        steps = [part.from_step for part in self.parts]
        if steps and (steps[0] != 1 or any(after <= before for before, after in pairwise(steps))):
            raise ValueError(f"parts: expected from_step: 1 in the first, and a larger one in each that follows; found {steps}")
        return self


class ExpectedCurve(Section):
    """A published loss curve against which training is watched. These keys are not part of the fingerprint."""

    curve: Slug
    """Published curve: the name of a file in `recipes/curves/`, without `.tsv`."""
    phase: Slug | None = None
    """Phase of the curve; null: the first."""
    band: CurveBand
    """Band around the curve."""
    window: int = Field(default=20, gt=0)
    """Steps over which loss and gradient norm are averaged before they are compared; averages over four times as many steps are
    compared as well."""
    false_alarm_rate: float = Field(default=0.01, ge=1e-9, lt=0.5)
    """Probability that a run without a fault leaves the band at some step, for which the band's width is computed."""


@dataclass(frozen=True)
class Curve:
    """A published loss curve."""

    name: str
    facts: Mapping[str, str]
    """The statements in the file's comments: source, commit, path, licence, smoothing, and others."""
    steps: Sequence[int]
    """Optimizer steps, counted from 1."""
    columns: Mapping[str, Sequence[float]]
    """Maps each column but `step` to its values, NaN where there is none."""
    rate_rounding: float = 0.0
    """Half a unit of the last decimal of the learning rates, which are as long as the longest of them."""
    loss_key: str = LOSS
    """Key in the lines of `train.jsonl` to compare `loss` and its repetitions with; `validation_loss` in a curve
    without a loss of training."""

    def repetitions(self, column: str) -> list[Sequence[float]]:
        """Return the columns of single runs of `loss` or `gradient_norm`, in order."""
        found = [name for name in self.columns if (match := REPETITION.fullmatch(name)) and match[1] == column]
        return [self.columns[name] for name in sorted(found, key=lambda name: int(name.rpartition("_")[2]))]


def load_curve(path: Path) -> Curve:
    """Return the curve in a file of tab-separated values."""
    try:
        lines = read_text(path).splitlines()
    except FileNotFoundError:
        raise RelmError(f"{path}: no such file{suggest_file(path)}") from None
    begin = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    facts = dict(_read_facts(lines[:begin]))
    if missing := [fact for fact in FACTS if fact not in facts]:
        raise RelmError(f"{path}: a comment `# {missing[0]}: TEXT` is missing; expected {', '.join(FACTS)}")
    names = lines[begin].split("\t") if begin < len(lines) else []
    _require_columns(names, f"{path}, line {begin + 1}")
    rows = list(_read_rows(path, lines, begin + 1, names))
    if not rows:
        raise RelmError(f"{path}: has no rows; expected a step and its loss in each")
    columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    steps = [int(step) for step in columns.pop(STEP)]
    loss_key = LOSS if LOSS in columns else VALIDATION
    if loss_key == VALIDATION:
        columns = {name.replace(VALIDATION, LOSS): values for name, values in columns.items()}
    at = names.index(RATE) if RATE in names else None
    texts = [line.split("\t")[at] if at is not None else "" for line in lines[begin + 1 :]]
    return Curve(path.stem, facts, steps, columns, min(map(half_a_unit, texts)), loss_key)


def _read_facts(comments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield key and text of each comment `# KEY: TEXT`; the first, without a key, is the title."""
    for number, comment in enumerate(comments):
        key, colon, text = comment.removeprefix("#").strip().partition(": ")
        if colon and key.replace("_", "").isalpha():
            yield key, text.strip()
        elif not number:
            yield "title", comment.removeprefix("#").strip()


def _require_columns(names: Sequence[str], where: str) -> None:
    """Raise if a column is unknown or repeated, `step` or a loss is missing, or repetitions are not numbered 1, 2, 3."""
    if unknown := [name for name in names if name not in COLUMNS and not REPETITION.fullmatch(name)]:
        raise RelmError(
            f"{where}: unknown column {unknown[0]!r:.60}; expected {', '.join(COLUMNS)}, loss_1, gradient_norm_1, ..."
        )
    if len(set(names)) < len(names) or STEP not in names or not {LOSS, VALIDATION} & set(names):
        raise RelmError(
            f"{where}: expected columns step and loss or validation_loss, each column once; found {', '.join(names)}"
        )
    for kind in (LOSS, NORM, VALIDATION):
        numbers = sorted(int(match[2]) for name in names if (match := REPETITION.fullmatch(name)) and match[1] == kind)
        if numbers != list(range(1, len(numbers) + 1)):
            raise RelmError(f"{where}: repetitions of {kind} are numbered {numbers}; expected 1, 2, 3 and so on")


def _read_rows(path: Path, lines: Sequence[str], begin: int, names: Sequence[str]) -> Iterator[list[float]]:
    """Yield the values of each row."""
    before = 0.0
    for number, line in enumerate(lines[begin:], begin + 1):
        cells, where = line.split("\t"), f"{path}, line {number}"
        if len(cells) != len(names):
            raise RelmError(f"{where}: has {len(cells)} cells; expected {len(names)}, separated by tabs")
        row = [
            _read_number(cell, name, where, name == VALIDATION and LOSS in names)
            for cell, name in zip(cells, names, strict=True)
        ]
        step = row[names.index(STEP)]
        if step != int(step) or step <= before:
            raise RelmError(f"{where}: step {step:g} follows step {before:g}; steps are whole numbers that increase from 1")
        before = step
        yield row


def _read_number(cell: str, name: str, where: str, may_be_empty: bool) -> float:
    """Return the number in a cell; NaN for a step without validation."""
    if may_be_empty and not cell:
        return math.nan
    value = float(cell) if NUMBER.fullmatch(cell) else math.nan
    if not math.isfinite(value) or (name.startswith(NORM) and value <= 0):
        expected = "a number above 0" if name.startswith(NORM) else "a finite number"
        raise RelmError(f"{where}: {name}: expected {expected}; found {cell!r:.60}")
    return value


def half_a_unit(text: str) -> float:
    """Return half a unit in the last written digit of a number; 0 if it cannot be read.

    >>> half_a_unit("0.0012"), half_a_unit("1.5e-5")
    (5e-05, 5e-07)
    """
    try:
        exponent = Decimal(text).as_tuple().exponent
    except InvalidOperation:
        return 0.0
    return 0.5 * 10.0 ** int(exponent)


def require_band(expected: ExpectedCurve, curve: Curve, phases: Sequence[str], where: str) -> None:
    """Raise if a recipe's band or phase does not fit its curve; `where` names the recipe's file."""
    if expected.phase is not None and expected.phase not in phases:
        raise RelmError(f"{where}: expect_curve.phase: there is no phase {expected.phase}; it has {', '.join(phases)}")
    count = len(curve.repetitions(LOSS))
    if not expected.band.parts and count < 2:
        raise RelmError(
            f"{where}: expect_curve.band.parts: missing, and {curve.name} has no repetitions; give the spread of runs from a "
            "step on, as - {from_step: 1, standard_deviation: NATS}"
        )
    if not expected.band.parts and count != expected.band.runs:
        raise RelmError(f"{where}: expect_curve.band.runs: found {expected.band.runs}; {curve.name} has {count} repetitions")
