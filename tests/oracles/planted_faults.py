"""Faults that are planted in the optimizer, the schedule, the order and the loss, to show that a comparison finds them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any
from unittest.mock import patch

import pytest
import torch

from relm.models import contract, decoder
from relm.models.layers import rotary_angles
from relm.training import input as training_input
from relm.training import learner, schedules, updates
from relm.training.input import Reader
from relm.training.optimizers import building, muon

Replace = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Fault:
    """A fault, and where it is planted."""

    name: str
    module: Any
    attribute: str
    replace: Replace
    """Function: the right function -> the faulty one."""

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the right function by the faulty one."""
        right = getattr(self.module, self.attribute)
        monkeypatch.setattr(self.module, self.attribute, wraps(right)(self.replace(right)))


def with_settings(change: Callable[[Any], dict[str, Any]]) -> Replace:
    """Return a replacement of a function (model, settings, ...) whose settings are changed."""

    def replace(right: Callable[..., Any]) -> Callable[..., Any]:
        return lambda model, settings, *others: right(model, settings.model_copy(update=change(settings)), *others)

    return replace


def decay_every_parameter(right: Callable[..., Any]) -> Callable[..., Any]:
    """Return a grouping of parameters that lets biases and scales decay too."""

    def faulty(model: Any, settings: Any) -> Any:
        return [{**group, "weight_decay": settings.weight_decay} for group in right(model, settings)]

    return faulty


def swap_batches(first: int) -> Replace:
    """Return a replacement of `Reader.numbers` and `batch` that exchanges two neighbouring steps."""
    other = {first: first + 1, first + 1: first}
    return lambda right: lambda reader, step: right(reader, other.get(step, step))


def divide_by_micro_batch(right: Callable[..., Any]) -> Callable[..., Any]:
    """Return divisors that make the loss the mean of the micro-batches' means, whatever each of them scores."""
    return lambda counts, shares=1: right(counts, len(counts))


def divide_by_own_micro_batch(right: Callable[..., Any]) -> Callable[..., Any]:
    """Return divisors that leave out all labels but a micro-batch's own, so that gradients are summed and not averaged."""
    return lambda counts, shares=1: [divided for count in counts for divided in right([count])]


def divide_by_one_more(right: Callable[..., Any]) -> Callable[..., Any]:
    """Return divisors that count one label too many."""

    def faulty(counts: Sequence[Any], shares: int = 1) -> Any:
        return [{name: divisor + 1 for name, divisor in divided.items()} for divided in right(counts, shares)]

    return faulty


def as_speedruns(right: Callable[..., Any]) -> Callable[..., Any]:
    """Return an orthogonalisation with the polynomial and the steps of the first Muon."""

    def faulty(matrix: Any, epsilon: float) -> Any:
        with patch.multiple(muon, COEFFICIENTS=(3.4445, -4.775, 2.0315), STEPS=5):
            return right(matrix, epsilon)

    return faulty


def orthogonalise_together(right: Callable[..., Any]) -> Callable[..., Any]:
    """Return a grouping of parameters in which queries, keys and values are one map."""

    def faulty(model: Any, settings: Any) -> Any:
        groups = right(model, settings)
        return [{**group, "widths": group["widths"] and [(sum(widths),) for widths in group["widths"]]} for group in groups]

    return faulty


def turn_all_pairs(right: Callable[..., Any]) -> Callable[..., Any]:
    """Return angles of the whole head."""

    def faulty(positions: Any, head_size: int, base: float) -> Any:
        cosine, sine = rotary_angles(positions, head_size, base)
        return torch.stack([cosine, -sine])

    return faulty


LEARNING_RATE = Fault(
    "a learning rate of 1 % more",
    updates,
    "learning_rate_of",
    lambda right: lambda run, step: 1.01 * right(run, step),
)
BETAS = Fault(
    "exchanged betas",
    learner,
    "build_optimizer",
    with_settings(lambda settings: {"betas": (settings.betas[1], settings.betas[0])}),
)
DECAY = Fault("decay of biases and scales", building, "parameter_groups", decay_every_parameter)
SCHEDULE = Fault(
    "a schedule that is one step ahead",
    schedules,
    "learning_rate_scale",
    lambda right: lambda schedule, step, steps: right(schedule, step + 1, steps),
)
ORDER = Fault("two batches in each other's place", Reader, "batch", swap_batches(4))
MEAN_OF_MEANS = Fault("a mean of micro-batches' means", training_input, "loss_denominators", divide_by_micro_batch)
DIVISOR = Fault("a loss divided by one label too many", training_input, "loss_denominators", divide_by_one_more)
CLIPPING = Fault(
    "no clipping",
    updates,
    "finish_gradients",
    lambda right: lambda parameters, scaler, clipping: right(parameters, scaler, None),
)
CLIPPING_ADDED = Fault(
    "clipping where the original has none",
    updates,
    "finish_gradients",
    lambda right: lambda parameters, scaler, clipping: right(parameters, scaler, 0.1),
)
SOFTCAP = Fault("twice the softcap", contract, "softcapped", lambda right: lambda logits, limit: right(logits, 2 * limit))
HALF_ROTARY = Fault("rotary positions in whole heads", decoder, "half_rotary_angles", turn_all_pairs)
QUERY_KEY_NORM = Fault("no norm of queries", decoder, "root_mean_square_normalised", lambda right: lambda x, epsilon: x)
COEFFICIENTS = Fault("another polynomial of Newton and Schulz", muon, "orthogonalise", as_speedruns)
WIDTHS = Fault("queries, keys and values orthogonalised together", building, "parameter_groups", orthogonalise_together)
GROUPS = Fault(
    "exchanged rates of embedding and head",
    learner,
    "build_optimizer",
    with_settings(
        lambda settings: {
            "groups": {**settings.groups, "embeddings": settings.groups["head"], "head": settings.groups["embeddings"]}
        }
    ),
)
MICRO_BATCH_ALONE = Fault("a sum of micro-batches' means", training_input, "loss_denominators", divide_by_own_micro_batch)
