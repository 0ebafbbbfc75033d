"""A section of a YAML file, and how such files are read: every fault at once, each with its path and the nearest known key."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, Tag, ValidationError, ValidationInfo, field_validator

from relm.errors import RelmError

Slug = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Section(BaseModel):
    """A mapping of the YAML file: unknown keys are refused, values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def a_number_is_no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML reads yes, no, on and off as true and false, which would pass for 1 and 0."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and not _takes_truth_values(annotation):
            raise ValueError("expected a number (YAML reads yes, no, on and off as true and false)")
        return value


def _takes_truth_values(annotation: Any) -> bool:
    """Whether True and False are among the values of a type, or numbers are not."""
    if get_origin(annotation) is Annotated:
        return _takes_truth_values(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return not any(type(value) in (int, float) for value in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return all(_takes_truth_values(option) for option in get_args(annotation))
    return annotation not in (int, float)


Document = TypeVar("Document", bound=Section)


class UniqueKeyLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML's safe loader, but a key given twice is an error and not a silent choice of the last; 1e-3 is a number."""


def _mapping_without_duplicates(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        line = key_node.start_mark.line + 1
        if key in seen:
            raise RelmError(f"line {line}: key '{key}' was already given in line {seen[key]}")
        seen[key] = line
    loader.flatten_mapping(node)
    return dict(loader.construct_pairs(node, deep=True))


UniqueKeyLoader.add_constructor("tag:yaml.org,2002:map", _mapping_without_duplicates)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        RelmError: the file is absent, not UTF-8, not YAML, or not a mapping; names the file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RelmError(f"{path}: no such file{nearest_file(path)}") from None
    except UnicodeDecodeError as error:
        raise RelmError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    try:
        content = yaml.load(text, UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise RelmError(f"{path}, line {line}: not valid YAML: {error.problem or error}") from None
    except RelmError as error:
        raise RelmError(f"{path}, {error}") from None
    if not isinstance(content, dict):
        raise RelmError(f"{path}: expected a mapping of keys to values, found {type(content).__name__}")
    return content


def nearest_file(path: Path) -> str:
    """' (did you mean X?)' for a missing file with a near name beside it, else nothing."""
    names = [other.stem for other in path.parent.glob(f"*{path.suffix}")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.stem, names, n=1)
    return f" (did you mean {near[0]}?)" if near else (f"; there are: {', '.join(sorted(names))}" if names else "")


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`: mappings merge key by key, everything else (lists too) is replaced.

    >>> merge({"run": {"device": "tpu", "threads": 2}, "evaluate": ["a"]}, {"run": {"threads": 4}, "evaluate": []})
    {'run': {'device': 'tpu', 'threads': 4}, 'evaluate': []}
    """
    merged = dict(below)
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def read_extended(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A recipe's mapping with the one it `extends`, if any, beneath it."""
    if path in seen:
        chain = " -> ".join(other.stem for other in (*seen, path))
        raise RelmError(f"{seen[0]}: extends goes in a circle: {chain}")
    content = read_yaml(path)
    parent = content.pop("extends", None)
    if parent is None:
        return content
    if not isinstance(parent, str):
        raise RelmError(f"{path}: extends: expected the name of one recipe, found {parent!r}")
    parent_path = path.parent / f"{parent}.yaml"
    if not parent_path.exists():
        raise RelmError(f"{path}: extends: there is no recipe {parent!r}{nearest_file(parent_path)}")
    return merge(read_extended(parent_path, (*seen, path)), content)


def validate(kind: type[Document], content: Mapping[str, Any], path: Path) -> Document:
    """`content` as a `kind`, or one error that lists every fault with its path and, for a misspelt key, the nearest one."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        faults = [_fault_in_words(kind, fault) for fault in error.errors()]
    raise RelmError(f"{path}: {len(faults)} error{'s' if len(faults) > 1 else ''}\n" + "\n".join(f"  {f}" for f in faults))


def _fault_in_words(kind: type[Section], fault: Any) -> str:
    location, keys = _place(kind, tuple(fault["loc"]))
    where = ".".join(str(part) for part in location) or "(whole file)"
    if fault["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(location[-1]), keys, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(keys)}"
        return f"{where}: unknown key; {hint}"
    if fault["type"] == "missing":
        return f"{where}: missing, and it has no default"
    message = str(fault["msg"]).removeprefix("Value error, ")
    if isinstance(fault["input"], (str, int, float, bool)) or fault["input"] is None:
        return f"{where}: {message}; found {fault['input']!r}"
    return f"{where}: {message}"


def _place(kind: Any, location: tuple[Any, ...]) -> tuple[list[Any], list[str]]:
    """A fault's place as the file has it, and the keys known beside it, found by walking the annotations.

    Where one of several sections is chosen by a key, the location has the choice in it as well, which the file has not.
    """
    place: list[Any] = []
    keys: list[str] = []
    for part in location:
        choices = _choices(kind)
        if part in choices:
            kind = choices[part]
            continue
        place.append(part)
        if None in choices:
            kind = choices[None]
        if isinstance(kind, type) and issubclass(kind, Section):
            keys = list(kind.model_fields)
            kind = kind.model_fields[part].annotation if part in kind.model_fields else None
        else:  # a dict's or list's item: its last type argument
            keys, kind = [], getattr(kind, "__args__", (None,))[-1]
    return place, keys


def _choices(kind: Any) -> dict[Any, Any]:
    """Tag -> section, of a union of tagged sections; None -> section, of an optional one."""
    choices: dict[Any, Any] = {}
    if get_origin(kind) in (Union, UnionType):
        for option in get_args(kind):
            section = get_args(option)[0] if get_origin(option) is Annotated else option
            tags = [mark.tag for mark in getattr(option, "__metadata__", ()) if isinstance(mark, Tag)]
            if isinstance(section, type) and issubclass(section, Section):
                choices[tags[0] if tags else None] = section
    return choices
