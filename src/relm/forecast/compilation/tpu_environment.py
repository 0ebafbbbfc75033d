"""The environment in which PyTorch/XLA and the TPU's compiler are, and processes in it."""

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


def python() -> Path:
    """The interpreter of the TPU's environment: this one, or that of the folder RELM_TPU_ENVIRONMENT, `.venv-tpu` by itself.

    Raises:
        RelmError: there is none; says how it is made.
    """
    stated = os.environ.get(FOLDER)
    if stated is None and all(map(importlib.util.find_spec, ("torch_xla", "libtpu", "jax"))):
        return Path(sys.executable)
    found = Path(stated or CHECKOUT / ".venv-tpu") / "bin" / "python"
    if found.exists():
        return found
    where = f"{FOLDER} is {stated}, where there is no bin/python" if stated else f"{found.parent.parent} is not there"
    raise RelmError(
        f"the TPU's compiler is in an environment of its own, and {where}; make it with `make .venv-tpu/made-from` "
        "(8.9 GB, no TPU needed; x86 alone)"
    )


def run_module(
    module: str,
    arguments: Sequence[str | Path],
    variables: Mapping[str, str],
    log: Path,
    doing: str,
    stop: threading.Event | None = None,
) -> int:
    """Run a module of this package there, its output in a log; the exit status. On a terminal the seconds go by.

    Args:
        variables: of the environment, beside this process's own.
        doing: what a person is told meanwhile.
        stop: where several run side by side in threads, which no Ctrl-C reaches: set, it ends them.

    Raises:
        RelmError: it was stopped, or the system killed it.
    """
    interpreter = str(python())
    environment = {**os.environ, **variables, STOP_WITH_PARENT: "1", "PYTHONPATH": str(Path(relm.__file__).parents[1])}
    started, terminal = time.monotonic(), sys.stderr.isatty() and stop is None
    if not terminal:
        print(f"{doing} ...", file=sys.stderr, flush=True)
    with open(log, "wb") as said:
        process = subprocess.Popen(
            [interpreter, "-m", module, *map(str, arguments)], env=environment, stdout=said, stderr=subprocess.STDOUT
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
        raise RelmError(f"{doing}: the system killed it, as it does where memory runs out; close other programs, and go on")
    return status


def tail_of(log: Path) -> str:
    """The last lines of a failed process."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:])
