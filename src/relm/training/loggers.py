"""Loggers that send the lines of `train.jsonl` to TensorBoard, Weights & Biases or trackio, if `run.loggers` names them.

`train.jsonl` stays the record, and no chart is worth a run: a logger that fails is dropped with a warning. This process writes
event files. The others may hang in any call, so a separate process for each follows `train.jsonl` and calls it.
"""

import contextlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from relm.errors import RelmError
from relm.recipes.run_folder import LOG

Line = Mapping[str, Any]
"""A line of `train.jsonl`: `step` and figures; only numbers are reported."""
Writer = Callable[[Line], None]

CLOSE_SECONDS = 60.0
"""Seconds that training waits at its end for a logger's process to take the remaining lines."""
STOP_SECONDS = 5.0
"""The same for a run that was stopped or failed; a resumed one sends every line again."""
INSTALL_LOGGERS = "install relm's extra `loggers` (pip install 'relm[loggers]'; in a checkout: make environment)"

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def open_loggers(names: Sequence[str], folder: Path, name: str, step: int, settings: Mapping[str, Any]) -> Iterator[Writer]:
    """Open the loggers that `run.loggers` names, after `train.jsonl`, and close them in the end.

    Yields a function to call with each line of `train.jsonl`; it never raises or waits for the network. Each logger has every
    step once, however often training was interrupted.

    Args:
        folder: of the phase; each logger writes in a folder there with its name.
        name: the run's title, such as "roberta_base_v3-8/main".
        step: the step after which the run resumes; 0 at the beginning.
        settings: the resolved recipe, shown as configuration.
    """
    if fault := find_missing_logger(names):
        raise RelmError(fault)
    with contextlib.ExitStack() as stack:
        if "wandb" in names and (mode := _wandb_mode()) != "disabled":
            quiet = {"WANDB_ERROR_REPORTING": "false", "WANDB_CACHE_DIR": str(folder.absolute() / "wandb" / "cache")}
            stack.push(_start("wandb", folder, name, settings, {**quiet, **os.environ, "WANDB_MODE": mode}))
        if "trackio" in names:
            stack.push(_start("trackio", folder, name, settings, os.environ))
        yield stack.enter_context(_tensorboard(folder, step)) if "tensorboard" in names else lambda line: None


def find_missing_logger(names: Sequence[str]) -> str | None:
    """Name the first logger that is not installed here and how to install it; None: all are installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            role = os.environ.get("RELM_IMAGE_ROLE")
            how = f"build the image with them: make images ROLES={role} LOGGERS=1" if role else INSTALL_LOGGERS
            return f"run.loggers: {name} is not installed here; {how}; or take {name} out of run.loggers"
    return None


@contextlib.contextmanager
def _tensorboard(folder: Path, step: int) -> Iterator[Writer]:
    """Write event files until one write fails."""
    events = _write_events(folder, step)

    def attempt(action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except StopIteration:  # it failed before
            pass
        except Exception as error:
            _warn("tensorboard", error)

    attempt(next, events)
    try:
        yield lambda line: attempt(events.send, line)
    finally:
        attempt(events.close)


def _write_events(folder: Path, step: int) -> Generator[None, Line, None]:
    """Write each line that is sent; a purge hides lines of an interrupted attempt after `step`."""
    from torch.utils.tensorboard import SummaryWriter

    held = step if any((folder / "tensorboard").glob("events.*")) else 0
    with SummaryWriter(str(folder / "tensorboard"), purge_step=held + 1) as writer:
        earlier = (folder / LOG).read_text(encoding="utf-8").splitlines() if held < step else []  # it ends with `step`
        line: Line = {}
        while True:
            line = json.loads(earlier.pop(0)) if earlier else (yield)
            for key, value in line.items():
                if key != "step" and isinstance(value, int | float):
                    writer.add_scalar(key, value, line["step"])
            writer.flush()


def _start(
    logger_name: str, folder: Path, name: str, settings: Mapping[str, Any], environment: Mapping[str, str]
) -> Callable[..., None]:
    """Start the process that follows `train.jsonl`; return what ends it, as a context manager's exit."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "relm.training.logger_process", logger_name, str(folder), name, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches only training
        )
    except OSError as error:
        _warn(logger_name, error)
        return lambda *_: None
    return lambda raised, *_: _end(logger_name, process, failed=raised is not None)


def _end(logger_name: str, process: subprocess.Popen[str], failed: bool) -> None:
    """Wait until the process has taken the remaining lines and ended; if it hangs, kill it and its children."""
    seconds = STOP_SECONDS if failed else CLOSE_SECONDS
    try:
        process.communicate(f"{int(failed)}\n", timeout=seconds)
        if process.returncode:
            logger.warning("run.loggers: %s ended with status %d; train.jsonl has every line", logger_name, process.returncode)
    except subprocess.TimeoutExpired:
        logger.warning(
            "run.loggers: %s did not end within %g s and was killed; train.jsonl has every line", logger_name, seconds
        )
    finally:
        if process.poll() is None:
            here = psutil.Process(process.pid)
            for each in [*here.children(recursive=True), here]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            process.wait()


def _wandb_mode() -> str:
    """Return WANDB_MODE, offline where it is not set."""
    mode = os.environ.get("WANDB_MODE") or "offline"
    if mode not in ("offline", "online", "disabled"):
        raise RelmError(f"WANDB_MODE: is {mode}, expected offline (the default), online or disabled")
    if mode == "online" and not os.environ.get("WANDB_API_KEY"):
        raise RelmError(
            "WANDB_MODE: is online, but WANDB_API_KEY is not set; set it in the environment, "
            "or unset WANDB_MODE to write to the disk and upload later with `wandb sync`"
        )
    return mode


def _warn(name: str, error: Exception) -> None:
    logger.warning("run.loggers: %s failed (%s: %s); training continues without it", name, type(error).__name__, error)
