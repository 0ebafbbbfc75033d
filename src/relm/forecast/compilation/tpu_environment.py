"""The environment with PyTorch/XLA and the TPU's compiler, and processes in it."""

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import relm
from relm.errors import RelmError
from relm.training.interruption import STOP_WITH_PARENT

CHECKOUT = Path(relm.__file__).parents[2]
FOLDER = "RELM_TPU_ENVIRONMENT"
# Lines of a failed process that are shown.
TAIL = 12


def find_interpreter() -> Path:
    """Return the interpreter of the TPU's environment: this one, or that in RELM_TPU_ENVIRONMENT, by default `.venv-tpu`."""
    stated = os.environ.get(FOLDER)
    if stated is None and all(map(importlib.util.find_spec, ("torch_xla", "libtpu", "jax"))):
        return Path(sys.executable)
    found = Path(stated or CHECKOUT / ".venv-tpu") / "bin" / "python"
    if found.exists():
        return found
    fault = f"{FOLDER} is {stated}, which has no bin/python" if stated else f"{found.parent.parent} does not exist"
    raise RelmError(
        f"the TPU's compiler needs a separate environment, and {fault}; make it with `make .venv-tpu/made-from` (8.9 GB, "
        "only x86, no TPU). Without it, `relm compile NAME` shows the figures of unchanged shipped recipes"
    )


def run_module(
    module: str,
    arguments: Sequence[str | Path],
    variables: Mapping[str, str],
    log: Path,
    doing: str,
    stop: threading.Event | None = None,
) -> int:
    """Run a module of this package in that environment, with its output in a log, and return the exit status.

    A terminal shows the elapsed seconds. `stop` ends processes started by threads, which Ctrl-C does not reach.
    """
    interpreter = str(find_interpreter())
    folders = [str(Path(relm.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]  # the caller's: extensions
    environment = {**os.environ, **variables, STOP_WITH_PARENT: "1", "PYTHONPATH": os.pathsep.join(folders)}
    started, terminal = time.monotonic(), sys.stderr.isatty() and stop is None
    if not terminal:
        print(f"{doing} ...", file=sys.stderr, flush=True)
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [interpreter, "-m", module, *map(str, arguments)], env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while True:
                try:
                    status = process.wait(1.0)
                    break
                except subprocess.TimeoutExpired:
                    if stop is not None and stop.is_set():
                        raise RelmError(f"{doing}: stopped") from None
                    if terminal:
                        print(f"\r{doing}: {time.monotonic() - started:.0f} s ", end="", file=sys.stderr, flush=True)
        finally:
            process.kill()
            process.wait()
    print(f"{chr(13) if terminal else ''}{doing}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    if status == -signal.SIGKILL:
        raise RelmError(f"{doing}: killed by the system, usually for lack of memory; close other programs and try again")
    return status


def read_tail(log: Path) -> str:
    """Return the last lines of a failed process's log."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:])
