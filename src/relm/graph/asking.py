"""The project that all functions of rules share, and the conversion of errors for Snakemake."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ParamSpec, TypeVar

from snakemake_interface_common.exceptions import WorkflowError

from relm.artifact import sidecar_of
from relm.errors import RelmError
from relm.recipes.declaration import load_extensions
from relm.recipes.project import Project

PROJECT = Project()

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def report_faults(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Convert a RelmError to Snakemake's own kind of error, which shows its message without a traceback."""

    @functools.wraps(function)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        try:
            return function(*args, **kwargs)
        except RelmError as error:
            raise WorkflowError(str(error)) from None

    return wrapper


def stop_at_faults(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """End Snakemake with the message of a RelmError alone, for the input function of a target that a person names.

    Snakemake prints a traceback with every exception of an input function, even with its own. The function of such a target
    runs before any job, and no other rule makes the target; so nothing is lost if it ends the process.
    """

    @functools.wraps(function)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        try:
            return function(*args, **kwargs)
        except RelmError as error:
            raise SystemExit(str(error)) from None

    return wrapper


report_faults(load_extensions)()


def sidecars(paths: list[Path]) -> list[str]:
    """Return the paths of files' sidecars, which have the hashes of their content."""
    return [str(sidecar_of(path)) for path in paths]


def sha256_option(expected: Mapping[str, str]) -> str:
    """Return `--sha256 NAME=HASH ...`, or an empty string if no hash is given."""
    return " ".join(["--sha256", *(f"{name}={sha256}" for name, sha256 in expected.items())]) if expected else ""


def strings(paths: list[Path]) -> list[str]:
    """Return paths as strings, for Snakemake."""
    return [str(path) for path in paths]
