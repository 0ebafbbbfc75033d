"""The project that all answers to rules share, patterns of its names, and the way of a fault to the user."""

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ParamSpec, TypeVar, get_args

from snakemake_interface_common.exceptions import WorkflowError

from relm.artifact import sidecar_of
from relm.errors import RelmError
from relm.recipes.declaration import load_extensions
from relm.recipes.project import Project
from relm.recipes.published_models import ModelFile

PROJECT = Project()
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
KEY = "[0-9a-f]{12}"
FILE = "|".join(re.escape(name) for name in get_args(ModelFile))

load_extensions()

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def report_faults(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Let a RelmError reach the user as Snakemake's own kind of error: its message and no traceback."""

    @functools.wraps(function)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        try:
            return function(*args, **kwargs)
        except RelmError as error:
            raise WorkflowError(str(error)) from None

    return wrapper


def sidecars(paths: list[Path]) -> list[str]:
    """Return the sidecars of files, which stand for their content."""
    return [str(sidecar_of(path)) for path in paths]


def sha256_option(expected: Mapping[str, str]) -> str:
    """Return `--sha256 NAME=HASH ...`, or nothing where nothing is expected."""
    return " ".join(["--sha256", *(f"{name}={sha256}" for name, sha256 in expected.items())]) if expected else ""


def strings(paths: list[Path]) -> list[str]:
    """Return paths as Snakemake takes them."""
    return [str(path) for path in paths]
