"""How far the same steps, trained twice, may lie apart: what an update is, how two are compared, and the bands.

Where sums are rounded alike two runs are the same bytes, and there is nothing to weigh. Elsewhere each tensor's update, its
change over the steps, is compared with the attested one. The bands lie between what rounding did and what the smallest faults
did, both measured by `benchmarks/replay.py`; docs/trust.md has the figures.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from relm.recipes.recipe import Phase
from relm.training.attested_hashes import OF_THE_MACHINE

Lines = Mapping[int, Mapping[str, Any]]


class Band(NamedTuple):
    """What counts as rounding."""

    distance: float
    """Of a tensor's update from the attested one, in lengths of the attested one."""
    length: float
    """Of the whole update, less that of the attested one, in lengths of the attested one."""
    loss: float
    """Root mean square of the relative differences of the losses in train.jsonl."""


FLOAT32 = Band(distance=1e-3, length=1e-4, loss=1e-6)
HALF = Band(distance=0.15, length=2e-3, loss=3e-4)
# With other draws of dropout updates say nothing: the losses alone, which still tell other data or another order.
LOSS_WITH_OTHER_DRAWS = 4e-3


def band_of(settings: Phase) -> Band:
    """The band of a phase's precision."""
    is_full = settings.precision == "float32" and settings.optimizer.state_precision == "float32"
    return FLOAT32 if is_full else HALF


class UpdateDifference(NamedTuple):
    """Between a replayed and an attested update."""

    distance: float
    """The largest of any tensor, in lengths of its attested update."""
    tensor: str
    """Which one that is."""
    length: float
    """By what part the whole update is longer than the attested one."""

    def within(self, band: Band) -> bool:
        """Whether rounding explains it."""
        return self.distance <= band.distance and abs(self.length) <= band.length

    def in_words(self, band: Band) -> str:
        """Both figures, beside what rounding may be."""
        return (
            f"the update of {self.tensor} lies {self.distance:.1e} of its length from the attested one, no other farther "
            f"(band {band.distance:g}), and all together are {self.length:+.1e} longer (band {band.length:g})"
        )


Read = Callable[[str], Tensor]


def update_difference(names: list[str], start: Read, attested: Read, replayed: Read) -> UpdateDifference:
    """Compare two updates from the same start.

    Args:
        names: of all tensors.
        start: name -> tensor before the first step.
        attested: after the last step.
        replayed: after the last step, as it was trained again.
    """
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
    """A tensor without the biases of attention's keys.

    Such a bias adds the same number to all scores of a query, which softmax takes away again: its gradient is rounding alone,
    and Adam makes full steps of it.
    """
    if name.endswith(".attn.c_attn.bias"):
        query, _, value = tensor.chunk(3)
        yield from ((f"{name} (queries)", query), (f"{name} (values)", value))
    elif not name.endswith(".key.bias"):
        yield name, tensor


def loss_difference(attested: Lines, replayed: Lines) -> float | None:
    """Root mean square of the relative differences of the losses; None without a line.

    >>> loss_difference({10: {"loss": 2.0}}, {10: {"loss": 2.002}, 11: {"loss": 2.0}})
    0.001
    """
    pairs = [(line["loss"], replayed[step]["loss"]) for step, line in attested.items() if line.get("loss")]
    squares = [((found - wanted) / wanted) ** 2 for wanted, found in pairs]
    return round(math.sqrt(sum(squares) / len(squares)), 12) if squares else None


def different_line(attested: Lines, replayed: Lines) -> str | None:
    """The first thing in which attested lines of `train.jsonl` differ from those of a replay; None where they are the same.

    Left out is what tells of the machine, and what held-out examples said, which are not looked at again.

    Args:
        replayed: with a line for each of the attested ones.

    >>> different_line({10: {"loss": 2.0, "seconds": 1.5}}, {5: {"loss": 3.0}, 10: {"loss": 2.5, "seconds": 9.0}})
    'step 10: loss is 2.5, attested 2.0'
    """
    for step, line in attested.items():
        for key, value in line.items():
            if key not in OF_THE_MACHINE and not key.startswith("validation_") and replayed[step].get(key) != value:
                return f"step {step:,}: {key} is {replayed[step].get(key, 'not there')}, attested {value}"
    return None
