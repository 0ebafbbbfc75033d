"""A process in which an extension is registered, so that the registries of this one stay unchanged."""

import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from relm.recipes.declaration import EXTENSIONS, load_extensions
from tiny_runs import FORKS

FOLDER = Path(__file__).parent


def run_extended(extension: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a test module where `RELM_EXTENSIONS` names a module of this folder; return its result.

    Raises:
        Exception: the function raised it.
    """
    receiver, sender = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=_call, args=(sender, extension, function, arguments))
    process.start()
    sender.close()
    result = receiver.recv()
    process.join()
    if isinstance(result, Exception):
        raise result
    return result


def extended_environment(extension: str, environment: dict[str, str]) -> dict[str, str]:
    """Return the environment of a command that finds a module of this folder and registers its declarations."""
    return {**environment, EXTENSIONS: extension, "PYTHONPATH": str(FOLDER)}


def _call(sender: Connection, extension: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    sys.path.append(str(FOLDER))
    os.environ[EXTENSIONS] = extension
    load_extensions()
    try:
        sender.send(function(*arguments))
    except Exception as error:
        sender.send(error)
