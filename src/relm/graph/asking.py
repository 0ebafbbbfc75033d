"""The project that all functions of rules share, and errors as Snakemake shows them."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from snakemake_interface_common.exceptions import WorkflowError

from relm.artifact import record_of, sidecar_of
from relm.errors import RelmError
from relm.plan.products import pattern_of
from relm.recipes.declaration import load_extensions
from relm.recipes.identity import work_folder
from relm.recipes.project import Project
from relm.terminal.faults import note_fault

PROJECT = Project()

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def keep_signature(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Store a function's signature, which Snakemake would otherwise work out again for each job."""
    function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return function


def _convert_faults(error_class: type[BaseException]) -> Callable[[Callable[Arguments, Answer]], Callable[Arguments, Answer]]:
    """Return a decorator of functions that converts a RelmError to another class of error with the same message."""

    def decorate(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
        @functools.wraps(function)
        def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
            try:
                return function(*args, **kwargs)
            except RelmError as error:
                note_fault(str(error))
                raise error_class(str(error)) from None

        return keep_signature(wrapper)

    return decorate


report_faults = _convert_faults(WorkflowError)
"""Convert a RelmError to Snakemake's own kind of error, which shows its message without a traceback."""

stop_at_faults = _convert_faults(SystemExit)
"""End Snakemake with only the message of a RelmError, for what runs before any job.

Snakemake prints a traceback with every exception of an input function, even a WorkflowError, and lines of its code with those
of `onstart`. An input function of a target that only a person requests may end the process: nothing is lost.
"""


report_faults(load_extensions)()


def path(kind: str, **values: str) -> str:
    """Return the path of a kind of product of `plan/products.py`, with wildcards except for those in `values`."""
    return f"{work_folder()}/{pattern_of(kind, **values)}"


def sidecar(kind: str, **values: str) -> str:
    """Return the path of the sidecar of a kind of product."""
    return str(sidecar_of(Path(path(kind, **values))))


def record(kind: str, **values: str) -> str:
    """Return the path of the record of the step that makes a kind of product."""
    return str(record_of(Path(path(kind, **values))))


def sidecars(paths: list[Path]) -> list[str]:
    """Return the paths of files' sidecars, which have the hashes of their content."""
    return [str(sidecar_of(path)) for path in paths]


def strings(paths: list[Path]) -> list[str]:
    """Return paths as strings, for Snakemake."""
    return [str(path) for path in paths]
