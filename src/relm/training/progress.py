"""Training's progress: a bar on a terminal, a line every half a minute in a log."""

import sys
import time
from collections.abc import Mapping
from typing import Any

from relm.progress import ProgressBar
from relm.recipes.run_folder import CURVE

SECONDS_BETWEEN_LINES = 30


class Progress:
    """A progress report on stderr; rates count only steps of this process."""

    def __init__(self, name: str, step: int, steps: int, tokens_per_step: int) -> None:
        self._name, self._first, self._steps, self._tokens_per_step = name, step, steps, tokens_per_step
        self._bar = ProgressBar(total=steps, initial=step, desc=name, unit="step", disable=None, file=sys.stderr)
        self._started = self._printed = time.monotonic()
        self._loss: float | None = None
        """The loss of the newest line; None before the first."""
        self._curve = self._verdict = ""
        """The verdict on the published curve, shortened for the bar, and whole."""

    def report(self, line: Mapping[str, Any]) -> None:
        """Show the loss, the rate and the validation loss of a line of `train.jsonl`."""
        self._loss = line["loss"]
        if CURVE in line:
            self._report_curve(line[CURVE]["verdict"])
        rate = f"{line['tokens_per_second']:,.0f} tokens/s"
        self._bar.set_postfix_str(f"loss {line['loss']:.2f}{self._curve}  {rate}", refresh=False)
        if "validation_loss" in line:
            self._bar.write(
                f"{self._name}: step {line['step']:,}, held-out loss {line['validation_loss']:.4f}", file=sys.stderr
            )

    def _report_curve(self, verdict: str) -> None:
        """Show the verdict on the published curve; print it in full on a separate line when the run leaves the band."""
        left, colon, _ = verdict.partition(": ")
        if colon and verdict != self._verdict:
            self._bar.write(f"{self._name}: {verdict}", file=sys.stderr)
        self._verdict, self._curve = verdict, f" ({left})"

    def advance(self, step: int) -> None:
        """Count one step, and print a line if the last one is old enough."""
        self._bar.update()
        now = time.monotonic()
        if not sys.stderr.isatty() and now - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = now
            seconds_per_step = (now - self._started) / (step - self._first)
            loss = "" if self._loss is None else f"loss {self._loss:.3f}{self._curve}, "
            print(
                f"{self._name}: step {step:,} of {self._steps:,}, {loss}"
                f"{self._tokens_per_step / seconds_per_step:,.0f} tokens/s, "
                f"about {(self._steps - step) * seconds_per_step / 60:.1f} minutes left",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        """Close the bar and leave it on the terminal."""
        self._bar.close()
