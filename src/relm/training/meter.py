"""What a run measures of itself, read from the device only when somebody wants to know."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relm.errors import RelmError


class Meter:
    """Counts steps, and keeps loss, gradient norm and time of the newest."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        """Begin at step 0, or where `state`, from a checkpoint, was left."""
        self.step = self.first_step = int(state["step"]) if state else 0
        self.loss = float(state["loss"]) if state else math.nan
        self.gradient_norm = math.nan
        self.tokens_per_second = 0.0
        self._seconds_before = float(state["seconds"]) if state else 0.0
        self._started = self._line_time = time.monotonic()
        self._line_step = self.step
        self._unread: list[Tensor] = []

    @property
    def seconds(self) -> float:
        """Wall time of all steps, over all attempts whose steps count."""
        return self._seconds_before + time.monotonic() - self._started

    @property
    def seconds_per_step(self) -> float:
        """Of this attempt."""
        return (time.monotonic() - self._started) / (self.step - self.first_step)

    def count(self, loss: Tensor, gradient_norm: Tensor) -> None:
        """One more step was taken; nothing waits for the two scalars."""
        self.step += 1
        self._unread += [loss, gradient_norm]

    def read(self, last_good: Path | None) -> None:
        """Wait for the device and take over loss and gradient norm of the newest step.

        Args:
            last_good: the newest checkpoint, for the message.

        Raises:
            RelmError: a loss or a norm since the last reading is not a finite number; names the step.
        """
        values = torch.stack(self._unread).tolist()
        first = self.step - len(values) // 2 + 1
        for position, value in enumerate(values):
            if not math.isfinite(value):
                what = "norm of the gradient" if position % 2 else "loss"
                where = f"the last good checkpoint is {last_good}" if last_good else "there is no checkpoint before it"
                raise RelmError(
                    f"step {first + position // 2:,}: the {what} is {value}, expected a finite number; {where}. The same "
                    "command would end the same way: lower optimizer.learning_rate, warm up longer, or clip the gradient"
                )
        self.loss, self.gradient_norm = values[-2:]
        self._unread.clear()

    def line(self, tokens_per_step: int) -> dict[str, float]:
        """The measured columns of a line of `train.jsonl`, after `read`."""
        now = time.monotonic()
        self.tokens_per_second = (self.step - self._line_step) * tokens_per_step / (now - self._line_time)
        self._line_step, self._line_time = self.step, now
        return {
            "loss": self.loss,
            "gradient_norm": self.gradient_norm,
            "tokens_per_second": round(self.tokens_per_second, 1),
            "seconds": round(self.seconds, 3),
        }

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps of it, after `read`."""
        return {"step": self.step, "loss": self.loss, "seconds": round(self.seconds, 3)}
