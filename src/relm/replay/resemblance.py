"""The permitted difference between two trainings of the same steps: updates, their comparison, and the bands.

If sums are rounded alike, two runs give the same bytes and need no band. Otherwise each tensor's update, its change over the
steps, is compared with the attested one. The bands are between the effect of rounding and that of the smallest faults, both
measured by `benchmarks/replay.py`; docs/trust.md has the figures.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from relm.recipes.phase import Phase
from relm.training.attested_hashes import MACHINE_COLUMNS

Lines = Mapping[int, Mapping[str, Any]]


class Band(NamedTuple):
    """The largest differences that count as rounding."""

    distance: float
    """The distance of a tensor's update from the attested one, in lengths of the attested one."""
    length: float
    """The difference in length between the whole update and the attested one, in lengths of the attested one."""
    loss: float
    """The root mean square of the relative differences of the losses in train.jsonl."""


FLOAT32 = Band(distance=1e-3, length=1e-4, loss=1e-6)
HALF = Band(distance=0.15, length=2e-3, loss=3e-4)
# With other draws of dropout updates cannot be compared, but the losses still reveal other data or another order.
LOSS_WITH_OTHER_DRAWS = 4e-3


def band_of(settings: Phase) -> Band:
    """Return the band of a phase's precision."""
    is_full = settings.precision == "float32" and settings.optimizer.state_precision == "float32"
    return FLOAT32 if is_full else HALF


class UpdateDifference(NamedTuple):
    """The difference between a replayed and an attested update."""

    distance: float
    """The largest distance of any tensor, in lengths of its attested update."""
    tensor: str
    """The name of that tensor."""
    length: float
    """The relative excess in length of the whole update over the attested one."""

    def within(self, band: Band) -> bool:
        """Return True if rounding explains the difference."""
        return self.distance <= band.distance and abs(self.length) <= band.length

    def describe(self, band: Band) -> str:
        """Return a phrase with both figures and their bands."""
        return (
            f"the update of {self.tensor} is farthest from the attested one, by {self.distance:.1e} of its length (band "
            f"{band.distance:g}), and the whole update is {self.length:+.1e} longer (band {band.length:g})"
        )


Read = Callable[[str], Tensor]


def update_difference(names: list[str], start: Read, attested: Read, replayed: Read) -> UpdateDifference:
    """Compare two updates from the same start; each function returns a tensor by its name."""
    farthest, length, attested_length = (0.0, names[0]), 0.0, 0.0
    for name in names:
        before, then, now = (dict(parts(name, read(name).double())) for read in (start, attested, replayed))
        for part, tensor in before.items():
            wanted, found = then[part] - tensor, now[part] - tensor
            apart, size = float((found - wanted).norm()), float(wanted.norm())
            farthest = max(farthest, (_quotient(apart, size), part))
            length, attested_length = length + float(found.norm()) ** 2, attested_length + size**2
    return UpdateDifference(*farthest, _quotient(math.sqrt(length), math.sqrt(attested_length)) - 1 if length else 0.0)


def _quotient(value: float, size: float) -> float:
    return value / size if size else math.inf if value else 0.0


def parts(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield a tensor without the biases of attention's keys.

    Such a bias adds the same value to all scores of a query, which softmax cancels: its gradient is only rounding, which Adam
    turns into full steps.
    """
    if name.endswith(".attn.c_attn.bias"):
        query, _, value = tensor.chunk(3)
        yield from ((f"{name} (queries)", query), (f"{name} (values)", value))
    elif not name.endswith(".key.bias"):
        yield name, tensor


def loss_difference(attested: Lines, replayed: Lines) -> float | None:
    """Return the root mean square of the relative differences of the losses; None: no line has a loss.

    >>> loss_difference({10: {"loss": 2.0}}, {10: {"loss": 2.002}, 11: {"loss": 2.0}})
    0.001
    """
    pairs = [(line["loss"], replayed[step]["loss"]) for step, line in attested.items() if line.get("loss")]
    squares = [((found - wanted) / wanted) ** 2 for wanted, found in pairs]
    return round(math.sqrt(sum(squares) / len(squares)), 12) if squares else None


def first_difference(attested: Lines, replayed: Lines) -> str | None:
    """Return the first difference of attested lines of `train.jsonl` from those of a replay; None: they are equal.

    Keys that depend on the machine are left out, and those of validation, which a replay does not repeat.

    >>> first_difference({10: {"loss": 2.0, "seconds": 1.5}}, {5: {"loss": 3.0}, 10: {"loss": 2.5, "seconds": 9.0}})
    'step 10: loss is 2.5, attested 2.0'
    """
    for step, line in attested.items():
        for key, value in line.items():
            if key not in MACHINE_COLUMNS and not key.startswith("validation_") and replayed[step].get(key) != value:
                return f"step {step:,}: {key} is {replayed[step].get(key, 'missing')}, attested {value}"
    return None
