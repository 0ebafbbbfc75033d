"""Variations of a recipe: `--set pretrain.main.steps=60` changes a key for one run without editing the file.

Keys are dotted paths. Values are YAML, merged like those of a recipe that extends the file.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relm.errors import RelmError
from relm.recipes.files.yaml_file import parse_yaml
from relm.recipes.recipe import Recipe
from relm.recipes.run_name import RunName
from relm.recipes.section import merge, read_extended, validate

KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
LONGEST_NAME = 180
"""Characters of a varied run's name, which is part of file names of at most 255 bytes."""
ELSEWHERE = {
    "extends": "a variation extends the same recipe; `relm new` writes another recipe",
    "run.machine": "name the machine after an @, as in results/NAME@MACHINE",
}
ABSENT = object()


@dataclass(frozen=True)
class Change:
    """One key of a variation that differs from the recipe's file."""

    key: str
    """Dotted path in the recipe."""
    value: Any
    """Value in this run."""
    before: Any
    """Value in the recipe's file, or its default."""

    @property
    def setting(self) -> str:
        """The change as KEY=VALUE, as in the run's name."""
        return f"{self.key}={format_value(self.value)}"


def format_value(value: Any) -> str:
    """Return a value as YAML in one line, without spaces where none are needed.

    >>> [format_value(value) for value in (60, 0.001, True, None, "linear", "60", [0.9, 0.95])]
    ['60', '0.001', 'true', 'null', 'linear', '"60"', '[0.9,0.95]']
    """
    if isinstance(value, str) and _is_plain(value):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)


def _is_plain(text: str) -> bool:
    try:
        return parse_yaml(text, Path("value")) == text and text.isprintable()
    except RelmError:
        return False


def vary_recipe(recipe: Recipe, settings: Sequence[str], path: Path) -> tuple[Recipe, tuple[Change, ...]]:
    """Return a recipe with settings KEY=VALUE applied, and its differences from the file, sorted by key."""
    values, faults = _parse(settings)
    content: Any = read_extended(path)
    for key, value in values.items():
        try:
            content = _replace(content, key.split("."), value)
        except RelmError as error:
            faults.append(f"{key}: {error}")
    where = f"{path} with {' '.join(settings)}"
    try:
        varied = validate(Recipe, content, Path(where))
    except RelmError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:]]
        faults += [_improve_hint(line, values, recipe) for line in lines]
    if faults:
        listed = "".join(f"\n  {fault}" for fault in faults)
        raise RelmError(f"{where}: {len(faults)} error{'s' if len(faults) > 1 else ''}{listed}")
    return varied, tuple(_list_changes(recipe, varied, values))


def _parse(settings: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return key -> value of the settings without faults, and a sentence for each fault."""
    values: dict[str, Any] = {}
    faults = []
    for setting in settings:
        key, sign, text = setting.partition("=")
        key = key.strip()
        if not sign or not KEY.fullmatch(key):
            faults.append(f"{setting}: expected KEY=VALUE, such as pretrain.main.steps=60")
        elif not text.strip():
            faults.append(f"{key}: no value; give one, null for none")
        elif key in ELSEWHERE:
            faults.append(f"{key}: cannot be set; {ELSEWHERE[key]}")
        elif any(f"{key}.".startswith(f"{known}.") or f"{known}.".startswith(f"{key}.") for known in values):
            faults.append(f"{key}: is set twice")
        else:
            try:
                values[key] = parse_yaml(text, Path(key))
            except RelmError as error:
                faults.append(re.sub(r", line \d+:", ":", str(error), count=1))
    return values, faults


def _replace(content: Any, parts: Sequence[str], value: Any) -> Any:
    """Return a file's content with the value at a path; a mapping is merged with the one there."""
    if not parts:
        return merge(content, value) if isinstance(content, Mapping) and isinstance(value, Mapping) else value
    if isinstance(content, list):
        if not parts[0].isdigit() or int(parts[0]) >= len(content):
            raise RelmError(f"the list has {len(content)} entries, counted from 0, and no entry {parts[0]}; set the whole list")
        number = int(parts[0])
        return [*content[:number], _replace(content[number], parts[1:], value), *content[number + 1 :]]
    keys = content if isinstance(content, Mapping) else {}
    key, rest = _step(keys, parts)
    return {**keys, key: _replace(keys.get(key), rest, value)}


def _step(keys: Mapping[str, Any], parts: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the first key of a path, and the parts after it; names of phases and machines may have dots."""
    for length in range(len(parts), 1, -1):
        if (key := ".".join(parts[:length])) in keys:
            return key, parts[length:]
    return parts[0], parts[1:]


def find_value(content: Any, key: str) -> Any:
    """Return the value at a dotted path in a recipe's content; ABSENT if there is none."""
    parts: Sequence[str] = key.split(".")
    while parts:
        if isinstance(content, list) and parts[0].isdigit() and int(parts[0]) < len(content):
            content, parts = content[int(parts[0])], parts[1:]
            continue
        if not isinstance(content, Mapping):
            return ABSENT
        name, parts = _step(content, parts)
        content = content.get(name, ABSENT)
    return content


def _list_changes(recipe: Recipe, varied: Recipe, values: Mapping[str, Any]) -> Iterator[Change]:
    """Yield the settings whose values differ from the file's, with values as the recipe reads them."""
    old, new = recipe.model_dump(mode="json"), varied.model_dump(mode="json")
    for key in sorted(values):
        before, after = find_value(old, key), find_value(new, key)
        if before != after:
            yield Change(key, values[key] if isinstance(after, Mapping) else after, None if before is ABSENT else before)


def _improve_hint(fault: str, values: Mapping[str, Any], recipe: Recipe) -> str:
    """Return a fault that suggests a key's whole path, such as pretrain.main.steps for an unknown `steps`."""
    key, found, _ = fault.partition(": unknown key; ")
    if not found or key not in values:
        return fault
    known = list(_list_keys(recipe.model_dump()))
    ends = difflib.get_close_matches(key.rpartition(".")[2], {path.rpartition(".")[2] for path in known}, n=1, cutoff=0.75)
    same = [path for path in known if ends and path.rpartition(".")[2] == ends[0]]
    near = difflib.get_close_matches(key, same or known, n=1, cutoff=0 if same else 0.6)
    return f"{key}{found}did you mean {near[0]}?" if near else fault


def _list_keys(content: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted paths of all keys of a recipe's content."""
    for key, value in content.items() if isinstance(content, Mapping) else ():
        yield f"{prefix}{key}"
        yield from _list_keys(value, f"{prefix}{key}.")


def require_effect(changes: Sequence[Change], placed: Recipe, unvaried: Recipe, run: RunName) -> None:
    """Raise for settings without effect, whose keys the run's machine or smoke twin overrides."""
    new, old = placed.model_dump(mode="json"), unvaried.model_dump(mode="json")
    idle = [change for change in changes if find_value(new, change.key) == find_value(old, change.key)]
    if not idle:
        return
    reason = "a smoke twin" if run.is_twin else f"machine {run.machine}"
    values = {change.key: find_value(old, change.key) for change in idle}
    fixed = ", ".join(f"{key} ({'not given' if value is ABSENT else format_value(value)})" for key, value in values.items())
    remedy = f"; set on.{run.machine}.KEY for a key of `run`" if run.machine and not run.is_twin else ""
    raise RelmError(f"results/{run}: {reason} overrides {fixed}, so these settings have no effect; remove them{remedy}")


def require_short_name(run: RunName) -> str:
    """Return a run's name, which is that of a folder."""
    if run.settings and len(str(run.published)) > LONGEST_NAME:
        raise RelmError(
            f"the {len(run.settings)} settings make a name of {len(str(run.published))} characters, and a folder's may have "
            f"{LONGEST_NAME}; write them into a recipe: relm new NAME --from {run.recipe}"
        )
    return str(run)
