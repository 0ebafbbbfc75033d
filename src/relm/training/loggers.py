"""Loggers that report the lines of `train.jsonl` to TensorBoard and Weights & Biases, where `run.loggers` requests it.

`train.jsonl` stays the record. A logger that fails while training goes on is dropped with a warning: no chart is worth a run.
Neither package is imported unless it is requested.
"""

import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import chain, takewhile
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import psutil

from relm.artifact import atomic_file
from relm.errors import RelmError
from relm.recipes.run_folder import LOG

Line = Mapping[str, Any]
"""A line of `train.jsonl`: `step` and figures; only numbers are reported."""
Writer = Callable[[Line], None]

# Weights & Biases prints nothing and records neither the output, the code, git, the installed packages nor the machine.
_QUIET: dict[str, Any] = {"silent": True, "console": "off", "reinit": "create_new", "host": "", "symlink": False}
_QUIET |= dict.fromkeys(("save_code", "x_save_requirements"), False)
_QUIET |= dict.fromkeys(("disable_code", "disable_git", "label_disable"), True)
_QUIET |= dict.fromkeys(("x_disable_machine_info", "x_disable_meta", "x_disable_stats"), True)

START_SECONDS = 90.0
"""The time that Weights & Biases may take to begin."""
CLOSE_SECONDS = 60.0
"""The time that the end of training waits for Weights & Biases to take the remaining lines."""
STOP_SECONDS = 5.0
"""The same for a run that was stopped or failed; a resumed one gives everything again."""

logger = logging.getLogger(__name__)


class Loggers:
    """The open loggers by name; each line goes to all of them."""

    def __init__(self, writers: Mapping[str, Writer]) -> None:
        self._writers = dict(writers)

    def write(self, line: Line) -> None:
        """Pass on one line; never raise and never wait for a network."""
        for name, write in list(self._writers.items()):
            try:
                write(line)
            except Exception as error:
                del self._writers[name]
                _warn(name, error)


class _LoggedPhase(NamedTuple):
    """A phase of a run as its loggers know it; see `open_loggers`."""

    folder: Path
    name: str
    step: int
    settings: Mapping[str, Any]

    def recorded(self, after: int) -> Iterator[Line]:
        """Yield the lines of `train.jsonl` beyond step `after`, up to the step after which the run resumes."""
        if after >= self.step or not (self.folder / LOG).exists():
            return
        with open(self.folder / LOG, encoding="utf-8") as file:
            whole = takewhile(lambda text: text.endswith("\n"), file)  # one that is being written is beyond
            yield from (line for line in map(json.loads, whole) if after < line["step"] <= self.step)


@contextlib.contextmanager
def open_loggers(names: Sequence[str], folder: Path, name: str, step: int, settings: Mapping[str, Any]) -> Iterator[Loggers]:
    """Open what `run.loggers` names, and close it in the end; open `train.jsonl` (`RunLog`) before.

    In each of them every step stands once, however often training was interrupted.

    Args:
        names: "tensorboard", "wandb".
        folder: of the phase; they write in its folders `tensorboard` and `wandb`.
        name: the run's title in Weights & Biases, such as "roberta_base_v3-8/main".
        step: the run resumes after it; 0 at the beginning.
        settings: the resolved recipe, for the configuration in Weights & Biases.

    Raises:
        RelmError: a package is not installed, or Weights & Biases cannot begin.
    """
    phase, writers = _LoggedPhase(folder, name, step, settings), {}
    with contextlib.ExitStack() as stack:
        for each in dict.fromkeys(names):
            try:
                writers[each] = stack.enter_context({"tensorboard": _tensorboard, "wandb": _wandb}[each](phase))
            except ImportError as error:
                raise RelmError(
                    f"run.loggers: {each} cannot be imported here ({error}); `make environment` installs it, "
                    f"or take {each} out of run.loggers"
                ) from None
        yield Loggers(writers)


@contextlib.contextmanager
def _tensorboard(phase: _LoggedPhase) -> Iterator[Writer]:
    """Write event files; a purge hides the lines of an interrupted attempt beyond the step after which the run resumes."""
    from torch.utils.tensorboard import SummaryWriter

    folder = phase.folder / "tensorboard"
    held = phase.step if any(folder.glob("events.*")) else 0
    writer = SummaryWriter(str(folder), purge_step=held + 1)

    def write(line: Line) -> None:
        for key, value in _figures(line).items():
            writer.add_scalar(key, value, line["step"])
        writer.flush()

    try:
        for line in phase.recorded(after=held):
            write(line)
        yield write
    finally:
        with contextlib.suppress(OSError):  # every line was flushed before, or a warning was given
            writer.close()


@contextlib.contextmanager
def _wandb(phase: _LoggedPhase) -> Iterator[Writer]:
    """Write an offline run, or a run on the server that the environment names, by a thread for which training does not wait."""
    mode = _wandb_mode()
    if mode == "disabled":
        yield lambda line: None
        return
    # Its process writes a log of its own, by default in the home folder, and reports its errors to its makers.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_CACHE_DIR", str(phase.folder.absolute() / "wandb" / "cache"))
    import wandb  # noqa: F401 - its absence is found here, before the thread begins

    feed = _WandbFeed(phase, mode, _run_id(phase.folder / "wandb" / "run_id"))
    feed.start()
    try:
        feed.begun.result(START_SECONDS)
    except Exception as error:
        feed.give_up()
        raise RelmError(
            f"run.loggers: wandb did not start ({str(error) or f'no answer within {START_SECONDS:g} s'}); "
            "with WANDB_MODE=offline it needs neither network nor key, and `wandb sync` sends the run later"
        ) from None
    try:
        yield feed.lines.put
    except BaseException:
        feed.close(exit_code=1, seconds=STOP_SECONDS)
        raise
    feed.close(exit_code=0, seconds=CLOSE_SECONDS)


class _WandbFeed(threading.Thread):
    """The thread that begins a run of Weights & Biases, gives it the lines, and ends it; any of these may hang."""

    def __init__(self, phase: _LoggedPhase, mode: str, run_id: str) -> None:
        super().__init__(name="wandb", daemon=True)
        self.lines: SimpleQueue[Line | None] = SimpleQueue()
        self.begun: Future[None] = Future()
        self._phase, self._mode, self._run_id = phase, mode, run_id
        self._exit_code, self._given_up = 1, False

    def run(self) -> None:
        """Take the lines, of `train.jsonl` first, until there is None; a failure is logged once."""
        try:
            run = _begin_run(self._phase, self._mode, self._run_id)
            self.begun.set_result(None)
            recorded = self._phase.recorded(after=run.starting_step - 1)
            for line in chain(recorded, iter(self.lines.get, None)):
                if line["step"] >= run.starting_step:  # a server may be ahead: the checkpoint is older than its last line
                    run.log(_figures(line), step=line["step"], commit=True)
            run.finish(exit_code=self._exit_code)
        except (Exception, SystemExit) as error:
            if not self.begun.done():
                self.begun.set_exception(error)
            elif not self._given_up:
                _warn("wandb", error)
        _end_service(self._exit_code)

    def close(self, exit_code: int, seconds: float) -> None:
        """Wait until every line is taken and the run ended; after `seconds` end its process, which may hang."""
        self._exit_code = exit_code
        self.lines.put(None)
        self.join(seconds)
        if self.is_alive():
            logger.warning("run.loggers: wandb was not done after %g s and is stopped; train.jsonl has every line", seconds)
            self.give_up()

    def give_up(self) -> None:
        """Kill the process of Weights & Biases, so that the thread gets an error where it waits."""
        self._given_up = True
        for child in psutil.Process().children():
            if child.name() == "wandb-core":
                child.kill()
        self.join(STOP_SECONDS)
        _end_service(1)


def _begin_run(phase: _LoggedPhase, mode: str, run_id: str) -> Any:
    """Return a run that watches and keeps nothing but what it is given.

    `wandb sync` takes each folder for the whole run, so an offline run is written anew from `train.jsonl` when training is
    resumed; a server reports which step it expects.
    """
    import wandb

    for earlier in (phase.folder / "wandb").glob(f"offline-run-*-{run_id}*") if mode == "offline" else ():
        shutil.rmtree(earlier, ignore_errors=True)
    settings = wandb.Settings(**_QUIET, finish_timeout=CLOSE_SECONDS)
    wandb.setup(settings)
    return wandb.init(
        dir=str(phase.folder),
        id=run_id,
        name=phase.name,
        project=os.environ.get("WANDB_PROJECT") or "relm",
        mode=mode,  # type: ignore[arg-type]
        resume="allow" if mode == "online" else None,
        config=dict(phase.settings),
        settings=settings,
    )


def _end_service(exit_code: int) -> None:
    """End the process of Weights & Biases; left to the end of Python, it would be waited for there."""
    import wandb

    with contextlib.suppress(Exception, SystemExit):  # raised where the process failed before
        wandb.teardown(exit_code)


def _wandb_mode() -> str:
    """Return WANDB_MODE, offline where it is not set.

    Raises:
        RelmError: WANDB_MODE is something else, or online without a key.
    """
    mode = os.environ.get("WANDB_MODE") or "offline"
    if mode not in ("offline", "online", "disabled"):
        raise RelmError(f"WANDB_MODE: is {mode}, expected offline (the default), online or disabled")
    if mode == "online" and not os.environ.get("WANDB_API_KEY"):
        raise RelmError(
            "WANDB_MODE: is online, but WANDB_API_KEY is not set; set it in the environment, "
            "or unset WANDB_MODE to write to the disk and send it later with `wandb sync`"
        )
    return mode


def _run_id(path: Path) -> str:
    """Return the id of the run in Weights & Biases, drawn once: a run begun anew in a fresh folder is another one.

    Raises:
        RelmError: the file does not hold an id.
    """
    if not path.exists():
        with atomic_file(path) as file:
            file.write(f"{secrets.token_hex(8)}\n".encode())
    drawn = path.read_text().strip()
    if not re.fullmatch("[0-9a-f]{16}", drawn):  # it becomes part of a pattern of folders that are deleted
        raise RelmError(f"{path}: expected 16 hexadecimal digits, found {drawn[:50]!r}; delete it to begin another run")
    return drawn


def _figures(line: Line) -> dict[str, float]:
    """Return the numbers of a line but for its step."""
    return {key: value for key, value in line.items() if key != "step" and isinstance(value, int | float)}


def _warn(name: str, error: BaseException) -> None:
    logger.warning("run.loggers: %s failed (%s: %s); training goes on without it", name, type(error).__name__, error)
