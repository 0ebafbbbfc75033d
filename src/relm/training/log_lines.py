"""The lines of `train.jsonl`, written while the device computes the next round where it computes beside the host.

So a line waits for no step that was just launched. It is complete before a checkpoint, a validation, a stop and the end, and at
once where the recipe wants a run to stop that leaves its published curve; its values are the same.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from relm.training.curve_watch import CurveWatch, Unwatched
from relm.training.input import Round
from relm.training.journal import Journal
from relm.training.learner import Learner
from relm.training.meter import Readings
from relm.training.phase_run import PhaseRun


class Unread(NamedTuple):
    """A round whose figures are on their way from the device."""

    readings: Readings
    line: Mapping[str, Any] | None
    """The columns that are known before; None: the figures are for a checkpoint alone."""


class LogLines:
    """The lines of a phase, in turn; at most one is unread."""

    def __init__(
        self,
        run: PhaseRun,
        learner: Learner,
        journal: Journal,
        watch: CurveWatch | Unwatched,
        describe_failure: Callable[[int], str],
    ) -> None:
        self._run, self._learner, self._journal, self._watch = run, learner, journal, watch
        self._describe_failure = describe_failure
        self._unread: Unread | None = None
        # Where operations are traced, a copy of the loss scaler's tensors, which each step changes, would be another program.
        is_copied = learner.scaler is None or not run.device.traces
        self.can_wait = run.device.asynchronous and is_copied and not watch.may_stop
        """True if a line can be read while the next round is computed."""

    def begin(self, given: Round, learning_rate: float, is_written: bool) -> None:
        """Request the figures of the newest round from the device, without waiting.

        Args:
            is_written: they become a line; otherwise a checkpoint needs them.
        """
        line = {"step": given.last, "epoch": self._run.epoch(given.last), "learning_rate": learning_rate}
        self._unread = Unread(self._learner.meter.begin_read(self._learner.readings()), line if is_written else None)

    def finish(self, validate: Callable[[], Mapping[str, Any]] = dict) -> None:
        """Read what was requested, if anything was, and write the line.

        Args:
            validate: returns columns to add at the end, after the figures have been read.

        Raises:
            RelmError: a loss, a norm or a scale is no finite number, or the line cannot be written.
        """
        unread, self._unread = self._unread, None
        if unread is None:
            return
        read = self._learner.meter.finish_read(unread.readings, self._describe_failure)
        if unread.line is None:
            return
        line = {**unread.line, **self._learner.meter.line(), **self._learner.line(read)}
        validated = validate()
        line |= self._watch.judge({**line, **validated})
        if validated:
            self._learner.meter.leave_out()
        self._journal.write({**line, **validated})
