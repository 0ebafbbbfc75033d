"""Save checkpoints in the background: copy them to main memory; a thread hashes and writes them while training continues.

At most one is written at a time, and its error is raised in the loop, at the latest by the next save or at the end. If the copy
does not fit into memory, training waits for the disk instead. Neither that nor a kill while the thread writes changes a byte: a
checkpoint gets its name last, and does not rely on lines of later steps.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from relm.artifact import write_json
from relm.errors import RelmError
from relm.json_shapes import read_shaped
from relm.recipes.run_folder import CHECKPOINTS, DEVICE_FIGURES, DEVICE_SHAPE, checkpoint_folder
from relm.training.checkpoints import open_list, save_checkpoint
from relm.training.journal import Journal
from relm.training.kill_points import kill_point
from relm.training.learner import Learner
from relm.training.meter import Meter
from relm.training.phase_run import PhaseRun
from relm.training.run_log import RunLog
from relm.training.shard_stamps import require_unwritten

logger = logging.getLogger(__name__)


class Saves:
    """The saves of one process, one after the other; only rank 0 writes."""

    def __init__(
        self, run: PhaseRun, learner: Learner, journal: Journal, checkpoint_list: RunLog | None, thread: ThreadPoolExecutor
    ) -> None:
        self._run, self._learner, self._journal = run, learner, journal
        self._list, self._thread = checkpoint_list, thread
        self._written: Future[None] | None = None

    def save(self, listed: bool, background: bool) -> Path:
        """Save a checkpoint of the newest step, after `learner.meter.read`, and return its folder.

        Args:
            listed: True if the recipe requests it, False if an interruption caused it.
            background: return once the tensors are copied, if they fit into memory; otherwise once it is written.
        """
        self.wait()
        self._require_finite_weights()
        require_unwritten(self._run.stamps)
        run, meter = self._run, self._learner.meter
        if run.writes:
            files = self._learner.model.state_dict(), self._learner.tensors()
            copies = self._copy(*files) if background else None
            state = {**run.identity, **meter.state(), "made_on": run.made_on}
            # Taken now, because training changes them while the thread writes.
            facts = state, self._journal.log.facts(), run.device.figures(), listed
            if copies is None:
                self._write(files, *facts)
            else:
                self._written = self._thread.submit(self._write, copies, *facts)
        return checkpoint_folder(run.checkpoints, meter.step)

    def check(self) -> None:
        """Raise the error of the newest checkpoint if writing it has failed; do not wait for it."""
        if self._written is not None and self._written.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the newest checkpoint is written, and raise its error."""
        written, self._written = self._written, None  # forgotten first, so that its error is raised only once
        if written is not None:
            written.result()

    def wait_after_an_error(self) -> None:
        """Wait until the newest checkpoint is written, and only log its error, because another error ends training."""
        try:
            self.wait()
        except RelmError as error:
            logger.error("%s", error)

    def describe_failure(self, step: int) -> str:
        """Describe a step whose figures are not finite, after the newest checkpoint is written."""
        self.wait_after_an_error()
        return self._run.describe_failure(step)

    def _require_finite_weights(self) -> None:
        # The norm shows an infinite gradient. Without a norm only the next loss would show an overflow of the newest update.
        meter = self._learner.meter
        if meter.gradient_norm is None and (found := self._learner.find_infinite_weight()) is not None:
            raise RelmError(f"step {meter.step:,}: {found}, expected finite numbers; {self._run.describe_failure(meter.step)}")

    def _copy(self, *files: Mapping[str, Tensor]) -> list[Mapping[str, Tensor]] | None:
        """Return copies of the tensors of all files, made in one transfer; None: they do not fit into memory."""
        copies = self._run.device.copy_to_host([tensor for tensors in files for tensor in tensors.values()])
        if copies is None:
            return None
        each = iter(copies)
        return [{name: next(each) for name in tensors} for tensors in files]

    def _write(
        self,
        files: Iterable[Mapping[str, Tensor]],
        state: Mapping[str, Any],
        log: Mapping[str, Any],
        figures: Mapping[str, float],
        listed: bool,
    ) -> None:
        """Sync the log, which the checkpoint attests, and write the checkpoint."""
        run, every = self._run, self._run.recipe.run
        model, optimizer = files
        self._journal.log.sync()
        save_checkpoint(
            run.checkpoints,
            state,
            model,
            optimizer,
            keep=every.keep_checkpoints,
            forever=every.keep_every * every.checkpoint_interval if every.keep_every else None,
            listed=listed,
            log=log,
            checkpoint_list=self._list,
        )
        note_device_figures(run, self._learner.meter.first_step, int(state["step"]), figures)
        kill_point("checkpoint-saved")


@contextmanager
def open_saves(run: PhaseRun, learner: Learner, journal: Journal) -> Iterator[Saves]:
    """Open the list of checkpoints and the thread that writes them; at the end wait for the thread."""
    with ThreadPoolExecutor(1, "checkpoint") as thread:
        if not run.writes:
            yield Saves(run, learner, journal, None, thread)
            return
        with closing(open_list(run.checkpoints, learner.meter.step, learner.logs.get(CHECKPOINTS))) as checkpoint_list:
            saves = Saves(run, learner, journal, checkpoint_list, thread)
            try:
                yield saves
            except BaseException:
                saves.wait_after_an_error()
                raise
            saves.wait()


@contextmanager
def device_figures(run: PhaseRun, meter: Meter) -> Iterator[None]:
    """Write this process's line of `device.json` at the end, also after an error."""
    try:
        yield
    finally:
        note_device_figures(run, meter.first_step, meter.step, run.device.figures())


def note_device_figures(run: PhaseRun, first_step: int, step: int, figures: Mapping[str, float]) -> None:
    """Write this process's line of `device.json`: the step it resumed after, its count of steps, and its counters so far.

    Each process that trained the phase has a line, because each counts from 0. Every checkpoint writes the file, so a killed
    process leaves a line for the steps that were kept. Lines of processes that began at the same step or later are removed,
    because none of their steps were kept. A run's identity does not depend on the file.
    """
    if not (run.writes and figures):
        return
    path = run.folder / DEVICE_FIGURES
    known: list[dict[str, Any]] = []
    if path.exists():
        with suppress(RelmError):  # a damaged file of counters must not end training
            known = read_shaped(path, DEVICE_SHAPE)["processes"]
    others = [line for line in known if line["after_step"] < first_step]
    own = {"after_step": first_step, "steps": step - first_step, **figures}
    write_json(path, {"phase": run.phase, "processes": [*others, own]})
