"""Checks of records from others: only steps of the graph, on files of the checkout, may reach a shell."""

import argparse
import contextlib
import io
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from relm.containers.placement import OF_A_RECIPE
from relm.devices.ranks import split_launcher
from relm.errors import RelmError
from relm.recipes.checkout import read_commit
from relm.recipes.datasets import load_dataset
from relm.recipes.evaluations import EVALUATIONS
from relm.recipes.home_folder import expand_home
from relm.recipes.own_folders import require_consent
from relm.recipes.redaction import shorten_path
from relm.recipes.run_name import RUN_NAME
from relm.recipes.task_trust import FLAG
from relm.steps import list_steps
from relm.steps.parser import parser

# The steps that rules run and record; tests/steps/test_step_commands.py compares them with src/rules. Runs that were published
# before there was one command for evaluations have its short forms.
GRAPH_STEPS = frozenset({
    "download", "convert-weights", "extract", "join-ranges", "list-removed", "remove-listed", "train-tokenizer",
    "import-tokenizer", "pregenerate", "import", "manifest",
    "pretrain", "contamination", "evaluate", "verify", "report", *(declaration.command for declaration in EVALUATIONS),
})  # fmt: skip
# Options that name what a step writes.
_WRITTEN = frozenset({"output", "train", "held_out", "log"})
# Format characters that hide or reorder text, and separators that end a line.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def is_plain(text: object) -> bool:
    """Return whether a value is text that a terminal shows as it is: no control character, and no NUL."""
    return isinstance(text, str) and not any(unicodedata.category(character) in _UNSEEN for character in text)


def comment(text: str) -> str:
    """Return text as comment lines of a shell, which nothing in it can end.

    >>> comment("two" + chr(10) + "lines")
    '# two\\n# lines'
    """
    plain = ("".join(character if is_plain(character) else " " for character in line) for line in text.splitlines())
    return "\n".join(f"# {line}" for line in plain)


def words_of_step(argv: Sequence[str]) -> list[str]:
    """Return the words after `relm` of a recorded command.

    Raises:
        RelmError: it begins neither with `relm` nor with what relm starts several processes by.
    """
    words = split_launcher(argv)
    if words is None:
        raise RelmError(
            f"the recorded command begins with {' '.join(argv[:4])!r}, expected relm or its poprun; nothing is printed"
        )
    return words


def require_graph_step(argv: Sequence[str], commit: str | None = None) -> None:
    """Raise unless a recorded command is a step that the graph runs, with arguments that name files of the checkout alone.

    Args:
        argv: the recorded words.
        commit: the commit of the code that recorded them, which is named where this code does not take them.

    Raises:
        RelmError: it is another program or step, the step would not take its arguments, it trusts task files, or a path leads
            elsewhere.
    """
    words = words_of_step(argv)
    if not words or words[0] not in GRAPH_STEPS:
        raise RelmError(f"the recorded command runs {' '.join(words[:1]) or 'nothing'!r}, which is no step of the graph")
    given = _parsed(words, commit)
    recipe = getattr(given, "recipe", None)
    if words[0] in OF_A_RECIPE and not re.fullmatch(RUN_NAME, str(recipe)):
        raise RelmError(f"the recorded {words[0]} names the recipe {recipe!r}, which is no recipe's name")
    if getattr(given, "trust_tasks", False):
        raise RelmError(f"the recorded {words[0]} has {FLAG}, which nobody can give for you; nothing is printed")
    for option, path in _paths(given):
        _require_place(words[0], option, path, given)


def _parsed(words: Sequence[str], commit: str | None) -> argparse.Namespace:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return parser(list_steps()).parse_args(list(words))
    except SystemExit:
        why = (said.getvalue().strip().splitlines() or ["no reason given"])[-1]
        if commit not in (None, read_commit()["commit"]):
            raise RelmError(
                f"relm at commit {commit} recorded this {words[0]}, whose command runs with that commit "
                f"(git checkout {commit}) and not with the present one: {why}"
            ) from None
        raise RelmError(f"the recorded command is none that relm would take: {why}") from None


def _paths(given: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Yield each option that names files, with each of its paths."""
    for option, value in vars(given).items():
        yield from ((option, path) for path in (value if isinstance(value, list) else [value]) if isinstance(path, Path))


def _require_place(step: str, option: str, path: Path, given: argparse.Namespace) -> None:
    folders = ("work",) if option in _WRITTEN else ("work", "recipes")
    if option in ("dataset", "test") or (option == "model" and step in ("download", "convert-weights")):
        folders = ("recipes",)
    if path.parts[:1] and path.parts[0] in folders and ".." not in path.parts:
        return
    sources = _own_sources() if option == "source" else {}
    if str(path) not in sources:
        raise RelmError(
            f"the recorded {step} has --{option.replace('_', '-')} {path}, expected a path in {' or '.join(folders)}; "
            "nothing is printed"
        )
    if (folder := sources[str(path)]) is not None:
        require_consent(folder, f"the recorded {step} has --source")


def _own_sources() -> dict[str, str | None]:
    """Return what records call the sources of the checkout's datasets, with their folder, or None for those on the hub."""
    sources: dict[str, str | None] = {}
    for path in sorted(Path("recipes/data").glob("*.yaml")):
        with contextlib.suppress(RelmError):
            spec = load_dataset(path)
            if spec.folder is not None:
                sources |= {shorten_path(expand_home(spec.folder)): spec.folder, spec.folder: spec.folder}
            if spec.hub is not None:
                sources[f"{spec.hub.name}@{spec.hub.revision}"] = None
    return sources
