"""All records of training: `train.jsonl`, the progress on the terminal, and other loggers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

from relm.errors import RelmError
from relm.recipes.run_folder import LOG, MACHINES, RESUMED_AFTER
from relm.training.attested_hashes import read_lines
from relm.training.curve_watch import CurveWatch
from relm.training.input import Round
from relm.training.learner import Learner
from relm.training.loggers import Writer, open_loggers
from relm.training.machine.history import machines_of
from relm.training.meter import Readings
from relm.training.phase_run import PhaseRun
from relm.training.progress import Progress
from relm.training.run_log import RunLog


class Journal:
    """The journal of rank 0, which writes; `log` is `train.jsonl`."""

    def __init__(self, log: RunLog, progress: Progress, write_loggers: Writer, unlogged: Mapping[str, Any]) -> None:
        self.log, self._progress, self._write_loggers = log, progress, write_loggers
        self._unlogged = unlogged
        """Only for the next line of the log: the step after which this attempt resumed, and the machines so far unless an
        earlier line has them."""

    def advance(self, step: int) -> None:
        """Count one step."""
        self._progress.advance(step)

    def write(self, line: Mapping[str, Any]) -> None:
        """Write one line to `train.jsonl`, the progress and all loggers."""
        self.log.write({**line, **self._unlogged})
        self._unlogged = {}
        self._progress.report(line)
        self._write_loggers(line)


class SilentJournal(Journal):
    """The journal of all other ranks, which write no line and save no checkpoint."""

    def __init__(self) -> None:
        """Open nothing."""

    def advance(self, step: int) -> None:
        """Do nothing."""

    def write(self, line: Mapping[str, Any]) -> None:
        """Do nothing."""


@contextmanager
def open_journal(run: PhaseRun, learner: Learner, last: int) -> Iterator[Journal]:
    """Open the journal of a run up to step `last`; lines of an interrupted attempt after the learner's step are removed."""
    if not run.writes:
        yield SilentJournal()
        return
    step, machines = learner.meter.step, learner.meter.machines
    with ExitStack() as stack:
        log = stack.enter_context(closing(RunLog(run.folder / LOG, step, learner.logs.get(LOG))))
        progress = Progress(f"pretrain {run.phase}", step, last, run.tokens_per_step)
        stack.enter_context(closing(progress))
        name = "/".join(run.folder.absolute().parts[-3:])  # RECIPE/FINGERPRINT/PHASE
        settings = run.recipe.model_dump(mode="json")
        loggers = stack.enter_context(open_loggers(run.recipe.run.loggers, run.folder, name, step, settings))
        unlogged: dict[str, Any] = {RESUMED_AFTER: step} if step else {}
        logged = None
        with suppress(RelmError):  # an edited log that was accepted gets the list again
            logged = machines_of(read_lines(run.folder / LOG))
        if logged != machines:
            unlogged[MACHINES] = machines
        yield Journal(log, progress, loggers, unlogged)


class LogLines:
    """The lines of `train.jsonl`; if the device is asynchronous, one is written while it computes the next round.

    So a line does not wait for a step that was just launched. It is complete before a checkpoint, a validation, a stop and the
    end. Its values are the same.
    """

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
        self.can_wait = run.device.asynchronous and is_copied
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
