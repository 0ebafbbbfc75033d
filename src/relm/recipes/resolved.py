"""The resolved recipe as JSON: everything that a run was asked for, and the keys in which two runs differ."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from relm.recipes.plan import Plan
from relm.recipes.recipe import Recipe
from relm.recipes.redaction import mask_value

# Parts of a recipe in its fingerprint, which also has the content of the data; the others are prose or say where it runs.
MEANING = ("data", "tokenizer", "model", "init_from", "seed", "pretrain")
# Keys of a dataset or a published model that change no byte of what is made from it.
DESCRIPTIVE = frozenset({"title", "licence", "homepage", "published", "sources", "size", "smoke", "url"})
# Key of a recorded run with the folders of its documents, tokenizer and examples.
DATA_FOLDERS = "data_folders"


class KeyDifference(NamedTuple):
    """A key with two values; None: absent or null."""

    key: str
    first: Any
    second: Any

    @property
    def is_meaning(self) -> bool:
        """True if the fingerprint depends on the key."""
        top, *inner = self.key.split(".")
        if top in ("dataset", "tokenizer_model", "init_model"):
            return DESCRIPTIVE.isdisjoint(inner)
        return top in MEANING


def resolve(plan: Plan) -> dict[str, Any]:
    """Return the recipe of a plan with everything that it extends or names, and all defaults."""
    parts = {"dataset": plan.dataset, "tokenizer_model": plan.tokenizer_model, "init_model": plan.init_model}
    files = {name: part.model_dump(mode="json") if part else None for name, part in parts.items()}
    recipe = plan.recipe.model_dump(mode="json")
    changes = {change.key: {"value": change.value, "file": change.before} for change in plan.changes}
    varied = {"set": changes} if changes else {}
    resolved: dict[str, Any] = mask_value(
        {"name": plan.published_name, "fingerprint": plan.fingerprint, **varied, "recipe": recipe, **files}
    )
    return resolved


def record_run(plan: Plan) -> dict[str, Any]:
    """Return what training records when it begins: the resolved recipe and the folders of its data."""
    folders = [job.folder.relative_to(plan.work).as_posix() for job in plan.data_jobs]
    return {**resolve(plan), DATA_FOLDERS: list(dict.fromkeys(folders))}


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[KeyDifference]:
    """Return the keys in which two resolved recipes differ: those of the fingerprint first, each in the order of the recipe."""
    one, other = (dict(_leaves(_with_defaults(resolved), "")) for resolved in (first, second))
    keys = dict.fromkeys((*one, *other))
    found = [KeyDifference(key, one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)]
    return sorted(found, key=lambda difference: not difference.is_meaning)


def _with_defaults(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a resolved recipe without its names, with defaults for keys that are newer than it."""
    recipe = resolved["recipe"]
    with contextlib.suppress(ValidationError):  # an older version had keys that no longer exist
        recipe = Recipe.model_validate(recipe).model_dump(mode="json")
    parts = {name: value for name, value in resolved.items() if name in ("dataset", "tokenizer_model", "init_model")}
    return {**recipe, **parts}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each key of nested mappings; an empty mapping and a list are values."""
    if not isinstance(value, Mapping) or (not value and path):
        yield path, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, f"{path}.{key}" if path else str(key))
