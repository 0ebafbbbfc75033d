"""The lines of `train.jsonl` in TensorBoard and in Weights & Biases, for those who ask for them with `run.loggers`.

`train.jsonl` stays the record. A logger that fails while training goes on is dropped with a warning: no chart is worth a run.
Neither package is imported unless it is asked for.
"""

import contextlib
import functools
import itertools
import json
import logging
import os
import queue
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import psutil

from relm.artifact import atomic_file
from relm.errors import RelmError
from relm.recipes.run_folder import LOG

WandbMode = Literal["offline", "online", "disabled"]
Line = Mapping[str, Any]
"""A line of `train.jsonl`: `step` and figures; what is no number is left out."""

PROJECT = "relm"
_QUIET: dict[str, Any] = {
    "silent": True,
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "label_disable": True,
    "reinit": "create_new",
    "save_code": False,
    "symlink": False,
    "host": "",
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
"""Weights & Biases prints nothing, and looks neither at the output, the code, git, the installed packages nor the machine."""

START_SECONDS = 90.0
"""How long Weights & Biases may take to begin."""
CLOSE_SECONDS = 60.0
"""How long the end of training waits for Weights & Biases to take what it has not taken yet."""
STOP_SECONDS = 5.0
"""The same for a run that was stopped or failed; a resumed one gives everything again."""

logger = logging.getLogger(__name__)


class Loggers:
    """Gives lines to whoever wants them."""

    def __init__(self, writers: Mapping[str, Callable[[Line], None]]) -> None:
        self._writers = dict(writers)

    def write(self, line: Line) -> None:
        """Pass on one line; it never raises and never waits for a network."""
        for name, write in list(self._writers.items()):
            try:
                write(line)
            except Exception as error:
                del self._writers[name]
                _warn(name, error)


class _Destination(NamedTuple):
    """What the loggers are told of a run."""

    folder: Path
    name: str
    step: int
    settings: Mapping[str, Any]

    def recorded(self, after: int) -> Iterator[Line]:
        """The lines of `train.jsonl` beyond step `after`, up to the step that the run goes on after."""
        path = self.folder / LOG
        if not path.exists() or after >= self.step:
            return
        with open(path, encoding="utf-8") as file:
            for text in file:
                if not text.endswith("\n"):  # it is being written, so it is beyond
                    return
                line = json.loads(text)
                if line["step"] > self.step:
                    return
                if line["step"] > after:
                    yield line


@contextlib.contextmanager
def open_loggers(names: Sequence[str], folder: Path, name: str, step: int, settings: Mapping[str, Any]) -> Iterator[Loggers]:
    """Open what `run.loggers` names, and close it in the end; open `train.jsonl` (`RunLog`) before.

    In each of them every step stands once, however often training was interrupted.

    Args:
        names: "tensorboard", "wandb".
        folder: of the phase; they write in its folders `tensorboard` and `wandb`.
        name: what Weights & Biases calls the run, such as "roberta_base_v3-8/main".
        step: the run goes on after it; 0 at the beginning.
        settings: the resolved recipe, for the configuration in Weights & Biases.

    Raises:
        RelmError: a package is not installed, or Weights & Biases cannot begin.
    """
    destination = _Destination(folder, name, step, settings)
    with contextlib.ExitStack() as stack:
        yield Loggers({each: stack.enter_context(_OPENERS[each](destination)) for each in dict.fromkeys(names)})


@contextlib.contextmanager
def _tensorboard(destination: _Destination) -> Iterator[Callable[[Line], None]]:
    """Write event files; a purge hides what an interrupted attempt wrote beyond the step that is gone on after."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise _not_installed("tensorboard", error) from None
    folder = destination.folder / "tensorboard"
    held = destination.step if any(folder.glob("events.*")) else 0
    writer = SummaryWriter(str(folder), purge_step=held + 1)

    def write(line: Line) -> None:
        for key, value in _figures(line).items():
            writer.add_scalar(key, value, line["step"])
        writer.flush()

    try:
        for line in destination.recorded(after=held):
            write(line)
        yield write
    finally:
        try:
            writer.close()
        except OSError as error:
            _warn("tensorboard", error)


@contextlib.contextmanager
def _wandb(destination: _Destination) -> Iterator[Callable[[Line], None]]:
    """Write an offline run, or a run on the server that the environment names.

    `wandb sync` takes each folder for the whole run, so an offline run is written anew from `train.jsonl` when training is
    resumed; a server says what it has already.
    """
    mode = _wandb_mode()
    if mode == "disabled":
        yield lambda line: None
        return
    folder = destination.folder / "wandb"
    run_id = _run_id(folder / "run_id")
    for earlier in folder.glob(f"offline-run-*-{run_id}*") if mode == "offline" else ():
        shutil.rmtree(earlier, ignore_errors=True)
    run = _wandb_run(destination, mode, run_id)
    feed = _Feed(run, destination.recorded(after=run.starting_step - 1))
    try:
        yield feed.put
    except BaseException:
        feed.close(exit_code=1, seconds=STOP_SECONDS)
        raise
    feed.close(exit_code=0, seconds=CLOSE_SECONDS)


class _Feed:
    """A thread that gives lines to a run of Weights & Biases, so that training does not wait for it."""

    def __init__(self, run: Any, lines: Iterable[Line]) -> None:
        """Begin with `lines`; then come those of `put`."""
        self._run, self._exit_code, self._given_up = run, 0, False
        self._queue: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, args=(lines,), name="wandb", daemon=True)
        self._thread.start()

    def put(self, line: Line) -> None:
        """One more line."""
        self._queue.put(line)

    def close(self, exit_code: int, seconds: float) -> None:
        """Wait until every line is taken and the run ended; after `seconds` end its process, which may hang."""
        self._exit_code = exit_code
        self._queue.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._given_up = True
            logger.warning("run.loggers: wandb was not done after %g s and is stopped; train.jsonl has every line", seconds)
            _kill_service()
            self._thread.join(STOP_SECONDS)

    def _work(self, lines: Iterable[Line]) -> None:
        try:
            for line in itertools.chain(lines, iter(self._queue.get, None)):
                if line["step"] >= self._run.starting_step:  # a server may be ahead: the checkpoint is older than its last line
                    self._run.log(_figures(line), step=line["step"], commit=True)
            self._run.finish(exit_code=self._exit_code)
        except Exception as error:
            if not self._given_up:
                _warn("wandb", error)
        _end_service(self._exit_code)


def _wandb_mode() -> WandbMode:
    """Offline unless WANDB_MODE says otherwise.

    Raises:
        RelmError: WANDB_MODE is something else, or says online without a key.
    """
    mode = os.environ.get("WANDB_MODE") or "offline"
    if mode not in get_args(WandbMode):
        raise RelmError(f"WANDB_MODE: is {mode}, expected offline (the default), online or disabled")
    if mode == "online" and not os.environ.get("WANDB_API_KEY"):
        raise RelmError(
            "WANDB_MODE: is online, but WANDB_API_KEY is not set; set it in the environment, "
            "or leave WANDB_MODE away to write to the disk and send it later with `wandb sync`"
        )
    return cast(WandbMode, mode)


def _run_id(path: Path) -> str:
    """What the run is called by machines: drawn once, so that a run begun anew in a fresh folder is another one."""
    if not path.exists():
        with atomic_file(path) as file:
            file.write(f"{secrets.token_hex(8)}\n".encode())
    drawn = path.read_text().strip()
    if not re.fullmatch("[0-9a-f]{16}", drawn):  # it becomes part of a pattern of folders that are deleted
        raise RelmError(f"{path}: expected 16 hexadecimal digits, found {drawn[:50]!r}; delete it to begin another run")
    return drawn


def _wandb_run(destination: _Destination, mode: WandbMode, run_id: str) -> Any:
    """A run; it watches and keeps nothing but what it is given.

    Raises:
        RelmError: it did not start.
    """
    # Its process writes a log of its own, by default in the home folder, and reports its errors to its makers.
    cache = destination.folder.absolute() / "wandb" / "cache"
    with _environment_defaults({"WANDB_ERROR_REPORTING": "false", "WANDB_CACHE_DIR": str(cache)}):
        try:
            import wandb
        except ImportError as error:
            raise _not_installed("wandb", error) from None
        try:
            settings = wandb.Settings(**_QUIET, finish_timeout=CLOSE_SECONDS)
            wandb.setup(settings)
            begin = functools.partial(
                wandb.init,
                dir=str(destination.folder),
                id=run_id,
                name=destination.name,
                project=os.environ.get("WANDB_PROJECT") or PROJECT,
                mode=mode,
                resume="allow" if mode == "online" else None,
                config=dict(destination.settings),
                settings=settings,
            )
            return _result_within(START_SECONDS, begin)
        except Exception as error:
            _kill_service()
            _end_service(1)
            raise RelmError(
                f"run.loggers: wandb did not start ({error}); with WANDB_MODE=offline it needs neither network nor key, "
                "and `wandb sync` sends the run later"
            ) from None


def _result_within(seconds: float, begin: Callable[[], Any]) -> Any:
    """What `begin` returns, unless it takes longer, as `wandb.init` does for ever where the server cannot be reached.

    Raises:
        TimeoutError: it takes longer.
    """
    outcome: Future[Any] = Future()

    def work() -> None:
        try:
            outcome.set_result(begin())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, name="wandb.init", daemon=True).start()
    try:
        return outcome.result(seconds)
    except TimeoutError:
        raise TimeoutError(f"no answer within {seconds:g} s") from None


def _end_service(exit_code: int) -> None:
    """End the process of Weights & Biases; left to the end of Python, it would be waited for there."""
    import wandb

    # Where the process failed, `teardown` fails, or calls `sys.exit`.
    with contextlib.suppress(Exception, SystemExit):
        wandb.teardown(exit_code)


def _kill_service() -> None:
    """End the process of Weights & Biases, which may hang; whoever waits for it gets an error."""
    for child in psutil.Process().children():
        if child.name() == "wandb-core":
            child.kill()


@contextlib.contextmanager
def _environment_defaults(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables that are not set, for a while."""
    added = {key: value for key, value in variables.items() if key not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for key in added:
            del os.environ[key]


def _figures(line: Line) -> dict[str, float]:
    """The numbers of a line but for its step."""
    return {key: value for key, value in line.items() if key != "step" and isinstance(value, int | float)}


def _not_installed(package: str, error: ImportError) -> RelmError:
    return RelmError(
        f"run.loggers: {package} cannot be imported here ({error}); `make environment` installs it, "
        f"or take {package} out of run.loggers"
    )


def _warn(name: str, error: BaseException) -> None:
    logger.warning("run.loggers: %s failed (%s: %s); training goes on without it", name, type(error).__name__, error)


_OPENERS: dict[str, Callable[[_Destination], contextlib.AbstractContextManager[Callable[[Line], None]]]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
}
