"""Measurements of a run, which are read from the device only when a line or a checkpoint needs them."""

import math
import time
from collections.abc import Callable, Mapping
from itertools import islice, zip_longest
from typing import Any, NamedTuple

from torch import Tensor

from relm.devices.contract import Device
from relm.errors import RelmError
from relm.models.losses import Term
from relm.recipes.run_folder import MACHINES
from relm.training.machine.history import extend_history
from relm.training.step import Accumulated


class StepWork(NamedTuple):
    """The tokens, samples and operations of one step, for computing rates."""

    samples: int
    """Sequences of the global batch."""
    tokens: int
    """Tokens of the global batch, padding included; of pairs, only the source's."""
    flops: float
    """Operations of the model, forward and backward."""
    peak_flops: float | None
    """Peak operations per second of all devices together; None: unknown."""


class Readings(NamedTuple):
    """Scalars on their way from the device, of the steps since the last request up to `step`."""

    step: int
    losses: int
    """The count of losses, and of steps."""
    norms: int
    terms: list[str]
    also: list[str]
    values: Callable[[], list[float]]
    """Waits for the losses, for each term its nats, its count and its correct predictions, the norms, and the others."""
    ended: Callable[[], float]
    """Returns the time at which the device had computed them, in seconds of its clock."""


class Meter:
    """Counter of steps with loss, gradient norm and time of the newest."""

    def __init__(
        self, device: Device, work: StepWork, state: Mapping[str, Any] | None = None, machine: str | None = None
    ) -> None:
        """Start at step 0, or at a checkpoint's `state`, on a machine."""
        self.machines = extend_history(state, machine)
        self.step = self.first_step = int(state["step"]) if state else 0
        self.loss = float(state["loss"]) if state else math.nan
        self.gradient_norm: float | None = None
        """The norm over all ranks; None: the device does not report it."""
        self.terms: dict[str, float] = {}
        """TERM_loss in nats and TERM_accuracy of the newest step."""
        self._read_step = self.step
        self._device, self._work = device, work
        self._seconds_before = float(state["seconds"]) if state else 0.0
        self._started = time.monotonic()
        self._line_time = self._read_time = device.clock()()
        self._line_step = self.step
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []
        self._terms: Mapping[str, Term] = {}

    @property
    def seconds(self) -> float:
        """Return the wall time of all steps, over all attempts whose steps count."""
        return self._seconds_before + time.monotonic() - self._started

    def count(self, accumulated: Accumulated, gradient_norm: Tensor | None) -> None:
        """Count one more step, with this rank's part of the loss and the norm over all ranks, without waiting for them."""
        self.step += 1
        self._losses.append(accumulated.loss)
        if gradient_norm is not None:
            self._norms.append(gradient_norm)
        self._terms = accumulated.terms

    def read(self, describe_failure: Callable[[int], str], also: Mapping[str, Tensor] | None = None) -> dict[str, float]:
        """Read the newest step's loss, terms and norm from the device, waiting for it once; see `finish_read`."""
        return self.finish_read(self.begin_read(also), describe_failure)

    def begin_read(self, also: Mapping[str, Tensor] | None = None) -> Readings:
        """Request, without waiting, losses and norms since the last request, the newest step's terms, and `also`."""
        also = also or {}
        parts = [value for term in self._terms.values() for value in (term.nats, term.count, term.correct)]
        values = self._device.begin_read([*self._losses, *parts], [*self._norms, *also.values()])
        counts = len(self._losses), len(self._norms)
        readings = Readings(self.step, *counts, list(self._terms), list(also), values, self._device.clock())
        self._losses, self._norms = [], []
        return readings

    def finish_read(self, readings: Readings, describe_failure: Callable[[int], str]) -> dict[str, float]:
        """Wait for requested figures, set loss, terms and norm to those of their newest step, and return the values of `also`.

        `describe_failure` returns sentences on a step whose figures are not finite.
        """
        values = iter(readings.values())
        self._read_time = readings.ended()
        losses, parts, norms = (
            list(islice(values, count)) for count in (readings.losses, 3 * len(readings.terms), readings.norms)
        )
        self._check(readings.step, losses, norms, describe_failure)
        self.loss = losses[-1]
        self.gradient_norm = norms[-1] if norms else None
        self.terms = term_figures(readings.terms, parts)
        self._read_step = readings.step
        return dict(zip(readings.also, values, strict=True))

    def _check(self, last: int, losses: list[float], norms: list[float], describe_failure: Callable[[int], str]) -> None:
        first = last - len(losses) + 1
        for step, figures in enumerate(zip_longest(losses, norms), start=first):
            for name, value in zip(("loss", "norm of the gradient"), figures, strict=True):
                if value is not None and not math.isfinite(value):
                    raise RelmError(f"step {step:,}: the {name} is {value}, expected a finite number; {describe_failure(step)}")

    def line(self) -> dict[str, float]:
        """Return the measured columns of a line of `train.jsonl`, of the newest step that was read.

        `gradient_norm`, `mfu` and `memory_bytes` are left out if unknown. `mfu` is the model FLOPs utilisation of Chowdhery
        et al. 2022, appendix B: recomputation does not count.
        """
        rate = (self._read_step - self._line_step) / (self._read_time - self._line_time)
        memory = self._device.peak_memory()
        self._line_step, self._line_time = self._read_step, self._read_time
        return {
            "loss": self.loss,
            **self.terms,
            **({"gradient_norm": self.gradient_norm} if self.gradient_norm is not None else {}),
            "tokens_per_second": round(rate * self._work.tokens, 1),
            "samples_per_second": round(rate * self._work.samples, 3),
            **({"mfu": round(rate * self._work.flops / self._work.peak_flops, 5)} if self._work.peak_flops else {}),
            **({"memory_bytes": memory} if memory is not None else {}),
            "seconds": round(self.seconds, 3),
        }

    def leave_out(self) -> None:
        """Leave the time since the last line out of the next one's rates, because the device did not only train."""
        self._line_time = self._device.clock()()

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps, after `read`."""
        return {"step": self.step, "loss": self.loss, "seconds": round(self.seconds, 3), MACHINES: self.machines}


def term_figures(names: list[str], values: list[float]) -> dict[str, float]:
    """Return TERM_loss, in nats per label, and TERM_accuracy of each term, from its nats, count of labels and of correct ones.

    >>> term_figures(["next_token"], [8.0, 4.0, 1.0])
    {'next_token_loss': 2.0, 'next_token_accuracy': 0.25}
    """
    figures = {}
    for name, nats, count, correct in zip(names, values[::3], values[1::3], values[2::3], strict=True):
        figures[f"{name}_loss"], figures[f"{name}_accuracy"] = nats / max(count, 1.0), correct / max(count, 1.0)
    return figures
