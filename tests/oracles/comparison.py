"""The comparison of a run with a golden: the first step that differs by more than rounding, and the largest differences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from golden_files import STEPS, Golden
from our_runs import Bounds, Oracle, OurRun

from relm.replay.resemblance import parts

# Figure of a step -> the attribute of a golden, and of a run, with those of all steps.
FIGURES = {"learning rate": "learning_rates", "loss": "losses", "gradient norm": "gradient_norms"}


@dataclass(frozen=True)
class Comparison:
    """The differences of a run from its golden."""

    first: str | None
    """The first step that differs by more than rounding, and what differs in it; None: no step does."""
    loss: float
    """The largest relative difference of a step's loss."""
    gradient_norm: float
    """The largest relative difference of a step's gradient norm."""
    weights: float
    """The largest absolute difference of any weight after the last step, except the biases of attention's keys."""
    farthest: str
    """The tensor of that weight."""


def compare(oracle: Oracle, golden: Golden, ours: OurRun) -> Comparison:
    """Compare a run with its golden, whose weights are converted to relm's names."""
    faults = sorted(list_faults(oracle.bounds, golden, ours), key=lambda fault: fault[0])
    weights, farthest = compare_weights(oracle, golden, ours) if ours.steps == STEPS else (0.0, "")
    first = next((text for _, text in faults), None)
    if first is None and weights > oracle.bounds.weights:
        first = f"step {STEPS}: a weight of {farthest} differs by {weights:.1e} after it (bound {oracle.bounds.weights:g})"
    largest = [max(relative(*pair)) for pair in (pairs(golden, ours, "loss"), pairs(golden, ours, "gradient norm"))]
    return Comparison(first, *largest, weights, farthest)


def list_faults(bounds: Bounds, golden: Golden, ours: OurRun) -> Iterator[tuple[int, str]]:
    """Yield each step that differs by more than rounding, and a sentence; within a step the cause before its effects."""
    for step, (wanted, found) in enumerate(zip(golden.batches_sha256, ours.batches_sha256, strict=False), start=1):
        if wanted != found:
            yield step, f"step {step}: the batch has sha256 {found}, the original's {wanted}"
    for what, bound in (
        ("learning rate", bounds.learning_rate),
        ("loss", bounds.loss),
        ("gradient norm", bounds.gradient_norm),
    ):
        both = pairs(golden, ours, what)
        for step, (difference, wanted, found) in enumerate(zip(relative(*both), *both, strict=True), start=1):
            if not difference <= bound:
                apart = f"{difference:.1e} apart (bound {bound:g})"
                yield step, f"step {step}: the {what} is {found!r}, the original's {wanted!r}: {apart}"


def pairs(golden: Golden, ours: OurRun, what: str) -> tuple[Sequence[float], Sequence[float]]:
    """Return the figures of every step that both took, the original's and ours."""
    name = FIGURES[what]
    return getattr(golden, name)[: ours.steps], getattr(ours, name)


def relative(wanted: Sequence[float], found: Sequence[float]) -> list[float]:
    """Return the relative differences of figures from the wanted ones."""
    return [abs(b - a) / (abs(a) or 1.0) for a, b in zip(wanted, found, strict=True)]


def compare_weights(oracle: Oracle, golden: Golden, ours: OurRun) -> tuple[float, str]:
    """Return the largest absolute difference of a weight after the last step, and its tensor."""
    converted = oracle.convert(golden.final)
    assert set(converted) == set(ours.final), set(converted) ^ set(ours.final)
    farthest = (0.0, "")
    for name, weight in converted.items():
        theirs = dict(parts(name, torch.from_numpy(np.ascontiguousarray(weight))))
        for part, tensor in parts(name, ours.final[name]):
            difference = float((tensor.double() - theirs[part].double()).abs().max())
            farthest = max(farthest, (difference, part))
    return farthest
