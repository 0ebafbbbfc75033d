"""New recipes and datasets: `relm new NAME --from RECIPE`, `relm new [NAME] --data FOLDER`.

The files have comments with the keys that people change first and their present values; no file is ever overwritten.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from relm.errors import RelmError
from relm.formatting import format_bytes
from relm.recipes.datasets import FORMATS, Dataset
from relm.recipes.files.folder_contents import describe_left_out, ignore_case, list_linked_folders, match_files
from relm.recipes.files.own_folders import format_consent, needs_consent, require_own_files, resolve_own_folder
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe, load_recipe
from relm.recipes.run_name import NOT_RECIPES, RunName
from relm.recipes.section import NAME, validate
from relm.recipes.variation import format_value

SCHEMA = "# yaml-language-server: $schema={}envs/{}.schema.json"
EXTENDED = "quickstart"
"""Recipe that a new one extends unless it names another."""
FEW_FILES = 50
"""With fewer files, one in ten may be none: the end of each file is held out instead."""
# The keys that people change first, in the order of a recipe; those that a recipe does not have are left out.
FIRST_KEYS: dict[str, Sequence[str]] = {
    "data": ("dataset", "documents"),
    "model": ("layers", "heads", "hidden_size", "positions", "dropout"),
    "phase": ("steps", "global_batch_size", "sequence_length"),
    "optimizer": ("learning_rate", "weight_decay"),
    "schedule": ("name", "warmup_steps"),
    "run": ("threads", "micro_batch_size", "checkpoint_interval"),
}


def write_new(project: Project, name: str, extended: str | None, folder: str | None, pattern: str | None) -> str:
    """Write a new recipe, which extends one (the quickstart), and a dataset if a folder is given; return the next commands."""
    path, data_path = project.recipes / f"{name}.yaml", project.path_of("data", name)
    require_new_name(project, name)
    parent = extended or EXTENDED
    if (run := RunName.parse(parent)) and str(run) != run.recipe:
        raise RelmError(f"--from {parent}: names a run, and a recipe extends another recipe; give --from {run.recipe}")
    parent_path = project.recipe_path(parent)
    recipe = load_recipe(parent_path)
    files, left_out = {}, ""
    if folder is not None:
        files[data_path], left_out = new_dataset(name, folder, pattern)
    files[path] = "\n".join(_recipe_lines(recipe, name, parent, has_data=folder is not None)) + "\n"
    if taken := next((file for file in files if os.path.lexists(file)), None):
        raise RelmError(f"{taken}: exists already and stays as it is; choose another name")
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "x", encoding="utf-8") as opened:
            opened.write(text)
    asked = [folder] if folder is not None and needs_consent(resolve_own_folder(folder, "--data")) else []
    commands = {
        **{f"export {format_consent(outside)}": "recipes may read this folder, in this shell" for outside in asked},
        f"edit {path}": "change the keys that are there as comments",
        f"relm estimate {name}": "memory, time and disk, before anything is downloaded",
        f"snakemake results/smoke/{name}": "its small twin, in about a minute",
        f"snakemake results/{name}": "the run",
    }
    width = max(map(len, commands))
    return "\n".join(
        [
            *(f"wrote {file}" for file in files),
            *([f"not read: {left_out}"] if left_out else []),
            "next:",
            *(f"  {command:<{width}}   {words}" for command, words in commands.items()),
        ]
    )


def name_after_folder(folder: str | None) -> str:
    """Return the name of a new recipe that is named after its folder of texts.

    >>> name_after_folder("~/My texts/")
    'My_texts'
    """
    if folder is None:
        raise RelmError("the new recipe has no name; give relm new NAME, or --data FOLDER, which it is named after")
    name = _replace_characters(Path(folder).expanduser().resolve().name)
    if not NAME.fullmatch(name):
        raise RelmError(f"--data {folder}: no recipe can be named after this folder; give relm new NAME --data {folder}")
    return name


def _replace_characters(name: str) -> str:
    """Return a name without the characters that a recipe's name may not have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("_.-")


def require_new_name(project: Project, name: str) -> None:
    """Raise an error for a name that cannot be that of a new recipe."""
    if not project.recipes.is_dir():
        raise RelmError(f"{project.recipes}/: no such folder; give the command in the checkout")
    if name in NOT_RECIPES:
        raise RelmError(f"{name!r}: results/{name}/ is a folder of other results; choose another name, such as my_{name}")
    if not NAME.fullmatch(name):
        near = _replace_characters(name)
        hint = f"; did you mean {near}?" if NAME.fullmatch(near) and near not in NOT_RECIPES else ""
        raise RelmError(
            f"{name!r}: a recipe's name has letters, digits, '.', '_' and '-', and begins with a letter or digit{hint}"
        )
    if os.path.lexists(project.recipes / f"{name}.yaml"):
        raise RelmError(f"recipes/{name}.yaml: exists already and stays as it is; choose another name, such as my_{name}")


def _recipe_lines(recipe: Recipe, name: str, parent: str, has_data: bool) -> Iterator[str]:
    """Yield the lines of a new recipe."""
    yield SCHEMA.format("../", "recipe")
    yield f"# This recipe is {parent} until a key differs. To change one, take '# ' away from its line and from those above it"
    yield "# that are less indented. docs/recipes.md lists every key."
    yield f"extends: {parent}"
    title = f"{name}: the model of {parent}, on my texts" if has_data else f"{name}, after: {recipe.title}"
    yield f"title: {format_value(title)}"
    if has_data:
        yield f"data: {{dataset: {name}}}"
    if recipe.expect or recipe.expect_curve:
        keys = [key for key, present in (("expect: []", recipe.expect), ("expect_curve: null", recipe.expect_curve)) if present]
        yield f"# It is compared with the published figures of {parent}; where they no longer apply, write {' and '.join(keys)}"
    yield ""
    for line in _comment_lines(recipe, has_data):
        yield f"# {line}"


def _comment_lines(recipe: Recipe, has_data: bool) -> Iterator[str]:
    """Yield YAML with the keys that people change first and their present values, each with its first words."""
    if not has_data:
        yield from ("data:", *_lines_of(recipe.data, FIRST_KEYS["data"], 1))
    yield from ("model:", *_lines_of(recipe.model, FIRST_KEYS["model"], 1), "pretrain:")
    for phase_name, phase in recipe.pretrain.items():
        yield from (f"  {phase_name}:", *_lines_of(phase, FIRST_KEYS["phase"], 2))
        yield from ("    optimizer:", *_lines_of(phase.optimizer, FIRST_KEYS["optimizer"], 3))
        yield from ("    schedule:", *_lines_of(phase.schedule, FIRST_KEYS["schedule"], 3))
    yield from _lines_of(recipe, ("seed", "evaluate"), 0)
    yield from ("run:   # where and how it runs; not part of what it is", *_lines_of(recipe.run, FIRST_KEYS["run"], 1))


def _lines_of(section: BaseModel, keys: Sequence[str], depth: int) -> Iterator[str]:
    fields = type(section).model_fields
    values: Mapping[str, Any] = section.model_dump(mode="json")
    for key in keys:
        if key in fields:
            words = " ".join((fields[key].description or "").split())
            first = re.split(r"[.:;](?: |$)", words)[0]
            value = format_value(values[key]).replace('","', '", "')
            yield f"{'  ' * depth}{key}: {value}" + (f"   # {first}" if first else "")


def new_dataset(name: str, folder: str, pattern: str | None) -> tuple[str, str]:
    """Return the file of a dataset that is a folder of texts, with a count of what was found, and what was left out."""
    try:
        folder.encode()
    except UnicodeEncodeError:
        raise RelmError(f"--data {os.fsencode(folder)!r}: the folder's name is not valid UTF-8; rename it") from None
    content = {"title": name, "licence": "unknown", "language": "und", "format": "text_files", "folder": folder}
    given = content | ({"pattern": pattern} if pattern is not None else {})
    dataset = validate(Dataset, given, Path("--data" if pattern is None else "--data and --pattern"))
    resolved = resolve_own_folder(folder, "--data")
    if not resolved.is_dir():
        raise RelmError(f"--data {folder}: no such folder (looked in {resolved.resolve().parent}); give a folder of text files")
    files = match_files(resolved, dataset.file_pattern)
    if not files:
        raise RelmError(f"--data {folder}: no file matches {dataset.file_pattern}; {_advise(resolved, dataset.file_pattern)}")
    require_own_files(files, resolved, "--data")
    few = len(files) < FEW_FILES
    end = "held_out_end: 0.1   # the last tenth of each file tests the model; one file in N instead: held_out_one_in"
    size = format_bytes(sum(path.stat().st_size for path in files))
    found = f"{len(files):,} file{'s' if len(files) > 1 else ''} ({dataset.file_pattern}), {size}"
    lines = [
        SCHEMA.format("../../", "dataset"),
        f"# Found in {folder}: {found}. Each file is one document; after a file is changed, the next run is another one.",
        f"title: {format_value(f'Texts of {name}')}",
        "licence: unknown    # an SPDX identifier, or who allows what",
        "language: und       # of the text, such as en; und: not determined",
        "format: text_files",
        f"folder: {format_value(folder)}",
        *([f"pattern: {format_value(pattern)}"] if pattern else [f"# pattern: {format_value(FORMATS['text_files'].pattern)}"]),
        end if few else "# held_out_one_in: 10   # one file in ten tests the model",
    ]
    return "\n".join(lines) + "\n", describe_left_out(resolved, dataset.file_pattern, files)


def _advise(folder: Path, pattern: str) -> str:
    """Return a phrase on what a folder has in which no file matches a pattern, and an option that reads it."""
    left_out = describe_left_out(folder, pattern, ())
    found = f"it has files that are not read: {left_out}" if left_out else "it has no files"
    links = (f"{link.relative_to(folder).as_posix()}/{pattern}" for link in list_linked_folders(folder, ()))
    if near := next((other for other in (ignore_case(pattern), *links) if match_files(folder, other)), None):
        return f"{found}; give --pattern '{near}'"
    kinds = Counter(path.suffix for path in match_files(folder, "**/*"))
    most = next((suffix for suffix, _ in kinds.most_common() if suffix), "")
    if not most:
        return f"{found}; give a folder of text files"
    shown = ", ".join(f"{count:,} {suffix or 'without a suffix'}" for suffix, count in kinds.most_common(4))
    return f"it has {shown}; give --pattern '**/*{most}' for texts, or copy a file in recipes/data/ for another format"
