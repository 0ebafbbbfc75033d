"""Everything that tells how training goes: `train.jsonl`, the progress on the terminal, and other loggers."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from relm.recipes.run_folder import LOG
from relm.training.loggers import Loggers, open_loggers
from relm.training.phase_run import PhaseRun
from relm.training.progress import Progress
from relm.training.run_log import RunLog


class Journal:
    """Of the one rank that writes."""

    def __init__(self, log: RunLog, progress: Progress, loggers: Loggers) -> None:
        self._log, self._progress, self._loggers = log, progress, loggers

    def advance(self, step: int) -> None:
        """A step was taken."""
        self._progress.advance(step)

    def write(self, line: Mapping[str, Any]) -> None:
        """Tell one line of `train.jsonl` everywhere."""
        self._log.write(line)
        self._progress.report(line)
        self._loggers.write(line)

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
def open_journal(run: PhaseRun, step: int, last: int) -> Iterator[Journal]:
    """The journal of a run that goes on after `step`; what an interrupted attempt told beyond it is taken away.

    Args:
        last: step of this process.
    """
    if not run.writes:
        yield Silence()
        return
    with ExitStack() as stack:
        log = stack.enter_context(closing(RunLog(run.folder / LOG, step)))
        progress = Progress(f"pretrain {run.phase}", step, last, run.tokens_per_step)
        stack.enter_context(closing(progress))
        name = "/".join(run.folder.absolute().parts[-3:])  # RECIPE/FINGERPRINT/PHASE
        settings = run.recipe.model_dump(mode="json")
        yield Journal(
            log, progress, stack.enter_context(open_loggers(run.recipe.run.loggers, run.folder, name, step, settings))
        )
