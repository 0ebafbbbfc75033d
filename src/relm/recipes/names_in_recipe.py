"""The names of other files in a recipe, read from its mapping, which may have faults: none of them hides a wrong name."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from relm.recipes.evaluation.evaluations import HARNESS, names_in_recipes
from relm.recipes.section import NAME

Kind = Literal["dataset", "model", "machine", "test", "reference_runs"]
SINGLE: dict[tuple[str, ...], Kind] = {
    ("data", "dataset"): "dataset",
    ("tokenizer", "from_model"): "model",
    ("init_from",): "model",
    ("expect_reference",): "model",
    ("run", "machine"): "machine",
}
"""Path of a key that names one file -> the kind of the file."""


class NamedFile(NamedTuple):
    """A file that a recipe names."""

    kind: Kind
    name: str
    key: str
    """The key with the name, for messages."""


def list_names(content: Mapping[str, Any]) -> Iterator[NamedFile]:
    """Yield the names in a recipe's mapping; what cannot be a name is left to the schema."""
    found = [(kind, value_at(content, *keys), ".".join(keys)) for keys, kind in SINGLE.items()]
    found += [("test", name, "evaluate") for name in _items(value_at(content, "evaluate")) if names_test(name)]
    found += [("test", name, "data.remove.tests") for name in _items(value_at(content, "data", "remove", "tests"))]
    found += [("machine", name, f"on.{name}") for name in _items(value_at(content, "on"))]
    rows = list(enumerate(_items(value_at(content, "expect"))))
    in_rows: dict[str, Kind] = {"measured_on": "machine", "reference_runs": "reference_runs"}
    found += [(kind, value_at(row, key), f"expect.{number}.{key}") for number, row in rows for key, kind in in_rows.items()]
    yield from (NamedFile(*each) for each in found if isinstance(each[1], str) and NAME.fullmatch(each[1]))


def names_test(evaluation: Any) -> bool:
    """Return True if an item of `evaluate` is a published test, a file in `recipes/evaluations/`."""
    return isinstance(evaluation, str) and evaluation not in names_in_recipes() and not evaluation.startswith(HARNESS)


def value_at(content: Any, *keys: str) -> Any:
    """Return the value at a path of keys in what may be a mapping; None: there is none."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _items(found: Any) -> list[Any]:
    """Return the items of a list, or the keys of a mapping; none of anything else."""
    return list(found) if isinstance(found, (list, dict)) else []
