"""The lines of `train.jsonl`. If the device is asynchronous, a line is written while it computes the next round.

So a line does not wait for a step that was just launched. It is complete before a checkpoint, a validation, a stop and the end,
and at once if a run that leaves its published curve must stop. Its values are the same.
"""

from collections.abc import Callable, Mapping
from typing import Any

from relm.training.curve_watch import CurveWatch
from relm.training.input import Round
from relm.training.journal import Journal
from relm.training.learner import Learner
from relm.training.meter import Readings
from relm.training.phase_run import PhaseRun


class LogLines:
    """The lines of a phase, one after the other; at most one is unread."""

    def __init__(
        self,
        run: PhaseRun,
        learner: Learner,
        journal: Journal,
        watch: CurveWatch | None,
        describe_failure: Callable[[int], str],
    ) -> None:
        self._run, self._learner, self._journal, self._watch = run, learner, journal, watch
        self._describe_failure = describe_failure
        self._unread: tuple[Readings, Mapping[str, Any] | None] | None = None
        """Figures on their way from the device, and the line's other columns; None: only a checkpoint needs them."""
        # A device that traces would make another program to copy the loss scaler's tensors, which each step changes.
        is_copied = learner.scaler is None or not run.device.traces
        self.can_wait = run.device.asynchronous and is_copied and not (watch is not None and watch.may_stop)
        """True if a line can be read while the next round is computed."""

    def begin(self, given: Round, learning_rate: float, is_written: bool) -> None:
        """Request the figures of the newest round without waiting: for a line if `is_written`, else only for a checkpoint."""
        line = {"step": given.last, "epoch": self._run.epoch(given.last), "learning_rate": learning_rate}
        scaler = self._learner.scaler
        readings = self._learner.meter.begin_read(scaler.readings() if scaler is not None else None)
        self._unread = readings, line if is_written else None

    def finish(self, validate: Callable[[], Mapping[str, Any]] = dict) -> None:
        """Read the requested figures, if any, and write the line with the columns that `validate` computes."""
        unread, self._unread = self._unread, None
        if unread is None:
            return
        readings, begun = unread
        read = self._learner.meter.finish_read(readings, self._describe_failure)
        if begun is None:
            return
        line = {**begun, **self._learner.meter.line()}
        if self._learner.scaler is not None:
            line |= self._learner.scaler.line(read)
        validated = validate()
        if self._watch is not None:
            line |= self._watch.judge({**line, **validated})
        if validated:
            self._learner.meter.leave_out()
        self._journal.write({**line, **validated})
