"""The process that sends the lines of `train.jsonl` to Weights & Biases; `relm.training.loggers` starts and ends it.

Its arguments are the phase's folder, the run's title and the resolved recipe as JSON. Training writes its exit code to standard
input at its end. If training is killed, standard input closes without one, and this process ends even if it hangs.
"""

import json
import os
import secrets
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import wandb

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


def _begin_run(folder: Path, name: str, settings: dict[str, Any]) -> Any:
    """Return a run that records only the lines it is given.

    `wandb sync` takes each folder for the whole run, so an offline run is written again from `train.jsonl` when training
    resumes; a server reports which step it expects.
    """
    online, run_id = os.environ["WANDB_MODE"] == "online", _run_id(folder / "wandb" / "run_id")
    for earlier in () if online else (folder / "wandb").glob("offline-run-*"):
        if run_id in earlier.name:
            shutil.rmtree(earlier, ignore_errors=True)
    quiet = wandb.Settings(**_QUIET)
    wandb.setup(quiet)
    return wandb.init(
        dir=str(folder),
        id=run_id,
        name=name,
        project=os.environ.get("WANDB_PROJECT") or "relm",
        resume="allow" if online else None,
        config=settings,
        settings=quiet,
    )


def _run_id(path: Path) -> str:
    """Return the run's id in Weights & Biases, drawn once for each folder."""
    if not path.exists():
        with atomic_file(path) as file:
            file.write(f"{secrets.token_hex(8)}\n".encode())
    return path.read_text().strip()


def main(folder: Path, name: str, settings: dict[str, Any]) -> None:
    """Send the lines to Weights & Biases until training has ended; report a failure once."""
    ended: Future[int] = Future()
    threading.Thread(target=_await_end, args=(ended,), daemon=True).start()
    try:
        run = _begin_run(folder, name, settings)
        for line in _follow(folder / LOG, ended):
            if line["step"] >= run.starting_step:  # a server may be ahead: the checkpoint is older than its last line
                figures = {key: value for key, value in line.items() if key != "step" and isinstance(value, int | float)}
                run.log(figures, step=line["step"], commit=True)
        run.finish(exit_code=ended.result())
        wandb.teardown(ended.result())
    except (Exception, SystemExit) as error:
        message = f"run.loggers: wandb failed ({type(error).__name__}: {error}); training continues without it"
        print(message, file=sys.stderr, flush=True)
    os._exit(0)  # at the end of Python, Weights & Biases may wait for its service


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
