"""The process that sends the lines of `train.jsonl` to Weights & Biases or trackio; `relm.training.loggers` starts and ends it.

Its arguments are the logger, the phase's folder, the run's title and the resolved recipe as JSON. Training writes its exit code
to standard input at its end. If training is killed, standard input closes without one, and this process ends even if it hangs.
"""

import json
import os
import secrets
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, NamedTuple

from relm.artifact import atomic_file
from relm.recipes.run_folder import LOG

# Weights & Biases prints nothing, and does not record output, code, git, installed packages or the machine.
_QUIET: dict[str, Any] = {"silent": True, "console": "off", "host": "", "symlink": False}
_QUIET |= dict.fromkeys(("save_code", "x_save_requirements"), False)
_QUIET |= dict.fromkeys(("disable_code", "disable_git", "label_disable"), True)
_QUIET |= dict.fromkeys(("x_disable_machine_info", "x_disable_meta", "x_disable_stats"), True)

SECONDS_BETWEEN_READS = 0.5


def _await_end(ended: Future[int]) -> None:
    """Pass on the exit code of training; without one, training was killed, and this process ends at once."""
    text = sys.stdin.readline()
    if not text:
        os._exit(1)
    ended.set_result(int(text))


def _follow(path: Path, ended: Future[int]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log as they are written, until training has ended."""
    text = ""
    with open(path, encoding="utf-8") as file:
        while True:
            last = ended.done()  # before the file is read to its end
            while part := file.readline():
                text += part
                if text.endswith("\n"):
                    yield json.loads(text)
                    text = ""
            if last:
                return
            wait([ended], timeout=SECONDS_BETWEEN_READS)


class LoggedRun(NamedTuple):
    """A logger's run."""

    first: int
    """The step of the first line that it lacks."""
    log: Callable[[dict[str, float], int], None]
    finish: Callable[[int], None]


def _open_wandb(folder: Path, name: str, settings: dict[str, Any]) -> LoggedRun:
    """Open a run that records only the lines it is given.

    `wandb sync` takes each folder for the whole run, so an offline run is written again from `train.jsonl` when training
    resumes; a server reports which step it expects.
    """
    import wandb

    online, run_id = os.environ["WANDB_MODE"] == "online", _run_id(folder / "wandb" / "run_id")
    for earlier in () if online else (folder / "wandb").glob("offline-run-*"):
        if run_id in earlier.name:
            shutil.rmtree(earlier, ignore_errors=True)
    quiet = wandb.Settings(**_QUIET)
    wandb.setup(quiet)
    run = wandb.init(
        dir=str(folder),
        id=run_id,
        name=name,
        project=os.environ.get("WANDB_PROJECT") or "relm",
        resume="allow" if online else None,
        config=settings,
        settings=quiet,
    )

    def finish(exit_code: int) -> None:
        run.finish(exit_code=exit_code)
        wandb.teardown(exit_code)

    return LoggedRun(run.starting_step, lambda figures, step: run.log(figures, step=step, commit=True), finish)


def _open_trackio(folder: Path, name: str, settings: dict[str, Any]) -> LoggedRun:
    """Open a run in the phase's folder `trackio`, which is written again from `train.jsonl` when training resumes."""
    # Only TRACKIO_DIR says where trackio writes: other variables of the user could send the run to a server.
    for variable in [variable for variable in os.environ if variable.startswith("TRACKIO_")]:
        del os.environ[variable]
    os.environ["TRACKIO_DIR"] = str((folder / "trackio").absolute())
    shutil.rmtree(folder / "trackio", ignore_errors=True)
    (folder / "trackio").mkdir()
    import trackio

    run = trackio.init("relm", name=name, config=settings, embed=False, auto_log_cpu=False, auto_log_gpu=False)
    return LoggedRun(0, run.log, lambda _: run.finish())  # type: ignore[no-untyped-call]


_OPEN: dict[str, Callable[[Path, str, dict[str, Any]], LoggedRun]] = {"wandb": _open_wandb, "trackio": _open_trackio}


def _run_id(path: Path) -> str:
    """Return the run's id in Weights & Biases, drawn once for each folder."""
    if not path.exists():
        with atomic_file(path) as file:
            file.write(f"{secrets.token_hex(8)}\n".encode())
    return path.read_text().strip()


def main(logger: str, folder: Path, name: str, settings: dict[str, Any]) -> None:
    """Send the lines to a logger until training has ended; report a failure once."""
    ended: Future[int] = Future()
    threading.Thread(target=_await_end, args=(ended,), daemon=True).start()
    try:
        run = _OPEN[logger](folder, name, settings)
        for line in _follow(folder / LOG, ended):
            if line["step"] >= run.first:  # a server may be ahead: the checkpoint is older than its last line
                figures = {key: value for key, value in line.items() if key != "step" and isinstance(value, int | float)}
                run.log(figures, line["step"])
        run.finish(ended.result())
    except (Exception, SystemExit) as error:
        message = f"run.loggers: {logger} failed ({type(error).__name__}: {error}); training continues without it"
        print(message, file=sys.stderr, flush=True)
    os._exit(0)  # at the end of Python, Weights & Biases may wait for its service


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
