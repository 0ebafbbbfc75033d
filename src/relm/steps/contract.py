"""The parts of a step: a sub-command with its help and arguments, and the job that is built from these."""

import argparse
import functools
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from relm.errors import RelmError
from relm.recipes.files.yaml_file import parse_yaml
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.recipes.run import MOST_THREADS
from relm.recipes.run_name import RunName
from relm.recipes.section import Section

Arguments = argparse.Namespace
Argument = tuple[tuple[str, ...], dict[str, Any]]
"""Names and options of `ArgumentParser.add_argument`."""
GROUPS = {
    "overview": "What there is",
    "forecast": "Before a run",
    "data": "Data",
    "examples": "Examples",
    "training": "Training",
    "evaluation": "Evaluation",
    "results": "Results",
    "machines": "Other machines and images",
    "project": "This checkout",
}
"""Modules of `relm.steps` in the order of `relm --help` -> heading over their steps."""


@dataclass(frozen=True)
class Job:
    """One step, ready to run: its inputs, its outputs, and the function that runs it and returns a sentence for the user."""

    run: Callable[[], str]
    inputs: Sequence[Path] = ()
    outputs: Sequence[Path] = ()
    expected_sha256: Mapping[Path, str] = field(default_factory=dict)
    """Input -> its sha256 in the recipe, for downloads and copies of a model in a local folder."""
    checked_by_run: Collection[Path] = ()
    """Inputs that `run` itself compares with their sidecars, if they have one, perhaps while it reads them."""
    described: Collection[Path] = ()
    """Inputs of which `run` reads only the sidecar, so that the file itself may be on another machine."""


@dataclass(frozen=True)
class Step:
    """A sub-command: its help, its arguments, and the function that builds its job."""

    help: str
    arguments: Sequence[Argument]
    job: Callable[[Arguments], Job | str]
    """Build the job, without a heavy import; a command without a record may do its work and return a sentence."""
    group: str
    """A key of `GROUPS`."""
    epilog: str = ""
    records: bool = True
    recorded_as: str = ""
    """Name in records; default: the step's own."""
    sentence_on_stderr: bool = False
    """True if standard output has only the step's product."""
    in_recipes: bool = True
    """False for a step with a record that recipes do not have as a job."""
    reads_result: bool = False
    """True if `relm STEP NAME` reads the model in results/NAME."""

    @property
    def takes_name(self) -> bool:
        """True if `relm STEP NAME` takes files and options from a recipe."""
        return self.reads_result or (self.records and self.in_recipes)


STEPS: dict[str, Step] = {}
"""Every declared step by its name; evaluations declare theirs, see `relm.steps.evaluation`."""
JobFunction = TypeVar("JobFunction", bound=Callable[[Arguments], Job | str])


def step(help: str, *arguments: Argument, **options: Any) -> Callable[[JobFunction], JobFunction]:
    """Declare a function as a step of its name, in the group of its module; `options` are further fields of `Step`."""

    def declare(function: JobFunction) -> JobFunction:
        group = function.__module__.rpartition(".")[2]
        STEPS[function.__name__.strip("_").replace("_", "-")] = Step(help, arguments, function, group, **options)
        return function

    return declare


command = functools.partial(step, records=False)


def argument(*names: str, **options: Any) -> Argument:
    """Return one argument of a step, as `ArgumentParser.add_argument` takes it."""
    return names, options


def require_checkout() -> None:
    """Raise an error where recipes are missing, since a command would seem to say that nothing was run."""
    if not Path("recipes").is_dir():
        raise RelmError(f"{Path.cwd()} has no folder recipes/; give the command in a checkout of relm")


def given_path(text: str) -> Path:
    """Return a path that is given on the command line."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise argparse.ArgumentTypeError(f"{os.fsencode(text)!r} is not UTF-8; rename the file or folder") from None
    if not text:
        raise argparse.ArgumentTypeError("expected a path, found an empty text; is a shell variable unset?")
    return Path(text)


def path(name: str, words: str, **options: Any) -> Argument:
    """Return an argument, required by default, that names one file or folder."""
    return argument(name, type=given_path, required=options.pop("required", True), metavar="PATH", help=words, **options)


def paths(name: str, words: str, **options: Any) -> Argument:
    """Return an argument, required by default, that names several files."""
    return path(name, words, nargs=options.pop("nargs", "+"), **options)


def positive(text: str) -> int:
    """Return a text as a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, found {text!r}")
    return int(text)


def process_count(text: str) -> int:
    """Return a text as a number of threads or processes; C libraries crash with many thousands."""
    if (number := positive(text)) > MOST_THREADS:
        raise argparse.ArgumentTypeError(f"{number:,} are too many; give at most {MOST_THREADS:,}")
    return number


def plain_yaml(text: str) -> Any:
    """Return the value of a text, read as in a recipe.

    >>> [plain_yaml(text) for text in ("true", "3", "[a, b]")]
    [True, 3, ['a', 'b']]
    """
    try:
        return parse_yaml(text, Path("value"))
    except RelmError:
        raise ValueError(text) from None


def section_argument(name: str, field: FieldInfo, before_default: str | None = "") -> Argument:
    """Return the argument for a key of a section; `before_default` are words of the help, None for none."""
    annotation = field.annotation
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(kind for kind in get_args(annotation) if kind is not type(None))
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    shown = None if isinstance(value, Section) or before_default is None else value
    default = f" Default: {before_default}{shown}." if shown is not None else ""
    text = " ".join(f"{field.description or ''}{default}".split()).replace("%", "%%").replace("null", "not given")
    option = f"--{name.replace('_', '-')}"
    if get_origin(annotation) is Literal and all(isinstance(choice, str) for choice in get_args(annotation)):
        return argument(option, choices=get_args(annotation), help=text)
    if get_origin(annotation) is list:
        return argument(option, nargs="*", metavar="TEXT", help=text)
    if annotation not in (int, float, str):
        return argument(option, type=plain_yaml, metavar="true|false" if annotation is bool else "YAML", help=text)
    is_positive = any(isinstance(limit, annotated_types.Gt) for limit in field.metadata)
    kind = positive if annotation is int and is_positive else annotation
    return argument(option, type=kind, metavar="TEXT" if annotation is str else "N", help=text)


def section_arguments(section: type[Section], *without: str) -> list[Argument]:
    """Return an argument for each key of a section."""
    return [section_argument(name, field) for name, field in section.model_fields.items() if name not in without]


def given_keys(section: type[Section] | None, a: Arguments) -> dict[str, Any]:
    """Return the keys of a section that a command gives."""
    keys = section.model_fields if section else ()
    return {key: value for key in keys if (value := getattr(a, key, None)) is not None}


def named_sha256(text: str) -> tuple[str, str]:
    """Return the two parts of `NAME=HASH`."""
    name, _, sha256 = text.rpartition("=")
    if not name or not re.fullmatch("[0-9a-f]{64}", sha256):
        raise ValueError(text)
    return name, sha256


def unite_values(option: str, pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the pairs of a name and its value as a dictionary."""
    united: dict[str, str] = {}
    for name, value in pairs:
        if united.setdefault(name, value) != value:
            raise RelmError(f"{option}: {name} has two values, {united[name]} and {value}; give one of them")
    return united


def expected_sha256(a: Arguments, files: Sequence[Path]) -> dict[Path, str]:
    """Return the files that `--sha256` names, each with its sha256."""
    given = unite_values("--sha256", a.sha256)
    if unknown := sorted(given.keys() - {file.name for file in files}):
        raise RelmError(f"--sha256: {unknown[0]} is not read; expected a name of {', '.join(map(str, files))}")
    return {file: given[file.name] for file in files if file.name in given}


def recipe_name(text: str) -> str:
    """Return a recipe's name, also from a path that a shell completes, such as `results/NAME/` or `recipes/NAME.yaml`.

    >>> [recipe_name(text) for text in ("tiny", "results/smoke/tiny/", "recipes/tiny.yaml")]
    ['tiny', 'smoke/tiny', 'tiny']
    """
    plain = text.removeprefix("./").rstrip("/")
    if plain.startswith("recipes/") and plain.endswith(".yaml"):
        return plain.removeprefix("recipes/").removesuffix(".yaml")
    return plain.removeprefix("results/")


RECIPE = argument(
    "recipe",
    type=recipe_name,
    metavar="NAME",
    help="a recipe in recipes/; smoke/NAME: its small twin; NAME@MACHINE: on another machine",
)
ANY_RECIPE = argument(
    "recipe", type=recipe_name, nargs="?", metavar="NAME", help="a recipe, a twin or a run on a machine; default: all"
)
FINGERPRINT = argument("--fingerprint", metavar="F", help="choose the run among `seeds`, which must have it")
WORKERS = argument("--workers", type=process_count, metavar="N", help="number of processes; default: all available cores")
EXPECTED = argument(
    "--sha256", type=named_sha256, nargs="+", default=[], metavar="NAME=HASH", help="require this content of file NAME"
)


def name_of(argument_of_step: Argument) -> str:
    """Return the name under which the parser stores an argument."""
    names, options = argument_of_step
    return str(options.get("dest", names[0].lstrip("-").replace("-", "_")))


def name_variation(arguments: Arguments) -> None:
    """Add the settings of `--set` to the recipe's name, so that every step plans the variation."""
    settings = getattr(arguments, "set", [])
    if not settings:
        return
    if arguments.recipe is None:
        raise RelmError(f"--set {settings[0]}: needs one recipe; give NAME")
    arguments.recipe = str(RunName.parse(arguments.recipe).vary(settings))


def plan_of(arguments: Arguments) -> Plan:
    """Return the plan of the recipe that a command names or, of several seeds, of the run with `--fingerprint`."""
    plan = Project().plan(arguments.recipe)
    wanted = getattr(arguments, "fingerprint", None)
    run = plan.find_run(wanted) if wanted else plan
    if run is None:
        raise RelmError(
            f"recipe {arguments.recipe} has fingerprint {plan.fingerprint}, this command was planned for {wanted}: "
            "the recipe changed; rerun snakemake"
        )
    return run
