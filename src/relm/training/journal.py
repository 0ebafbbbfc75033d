"""Everything that tells how training goes: `train.jsonl`, the progress on the terminal, and other loggers."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from relm.training.phase_run import PhaseRun
from relm.training.progress import Progress
from relm.training.run_log import RunLog


class Journal:
    """Of the one rank that writes."""

    def __init__(self, log: RunLog, progress: Progress) -> None:
        self._log, self._progress = log, progress

    def advance(self, step: int) -> None:
        """A step was taken."""
        self._progress.advance(step)

    def write(self, line: Mapping[str, Any]) -> None:
        """Tell one line of `train.jsonl` everywhere."""
        self._log.write(line)
        self._progress.report(line)

    def sync(self) -> None:
        """Have the disk hold every line."""
        self._log.sync()


class Silence(Journal):
    """Of all other ranks, whose figures are the same."""

    def __init__(self) -> None:
        """Nothing is opened."""

    def advance(self, step: int) -> None:
        """Nothing is told."""

    def write(self, line: Mapping[str, Any]) -> None:
        """Nothing is told."""

    def sync(self) -> None:
        """There is nothing to sync."""


@contextmanager
def open_journal(run: PhaseRun, step: int) -> Iterator[Journal]:
    """The journal of a run that goes on after `step`; what an interrupted attempt told beyond it is taken away."""
    if not run.writes:
        yield Silence()
        return
    with ExitStack() as stack:
        log = stack.enter_context(closing(RunLog(run.folder / "train.jsonl", step)))
        progress = Progress(f"pretrain {run.phase}", step, run.settings.steps, run.tokens_per_step)
        yield Journal(log, stack.enter_context(closing(progress)))
