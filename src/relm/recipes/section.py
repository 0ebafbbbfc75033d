"""Sections of YAML files and their validation, which reports all faults at once, each with its path and the nearest key."""

import datetime
import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import core_schema

from relm.errors import RelmError
from relm.formatting import find_control_character
from relm.recipes.files.yaml_file import parse_yaml, read_text

NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]*")
Slug = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
LONGEST_CHAIN = 32
# pydantic's fault, whose message would name Python's types -> message about the file.
_MAPPING, _DAY = "expected a mapping of keys to values", "expected a day such as 2026-01-15"
_YES = "expected a number (YAML reads yes, no, on and off as true and false)"
_TEXT = "expected a number, without quotes"
MESSAGES = {
    "model_type": _MAPPING,
    "dict_type": _MAPPING,
    "list_type": "expected a list",
    "string_type": "expected text",
    "bool_type": "expected true or false, without quotes",
    "int_type": "expected a whole number",
    "float_type": "expected a number",
    "date_type": _DAY,
    "date_from_datetime_parsing": _DAY,
    "date_from_datetime_inexact": _DAY,
}


class Section(BaseModel):
    """A mapping in a YAML file: immutable, without unknown keys or converted values."""

    multi_line: ClassVar[frozenset[str]] = frozenset()
    """Keys whose texts may have line breaks; all others must be one line on a page, in a table or in a terminal."""
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def text_is_one_line(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[str(info.field_name)].annotation
        checks_itself = info.field_name in cls.multi_line or _holds_sections(annotation)
        if not checks_itself and (found := find_control_character(value)):
            raise ValueError(f"expected one line of text, found the character {found}; delete it, or write a block as >-")
        return _with_tuples(annotation, value)


def _with_tuples(annotation: Any, value: Any) -> Any:
    """Return a list as the tuple, or list of tuples, of a key's type; YAML and JSON have no tuples."""
    if not isinstance(value, list):
        return value
    origin, kinds = get_origin(annotation), get_args(annotation)
    if origin is list:
        return [_with_tuples(kinds[0], item) for item in value]
    return tuple(value) if origin is tuple or any(get_origin(kind) is tuple for kind in kinds) else value


def _holds_sections(annotation: Any) -> bool:
    """Return True for a key with a section, or a list or mapping of sections, which check texts themselves."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return True
    return any(map(_holds_sections, get_args(annotation)))


class SectionOf:
    """Annotation of a key with one of several sections, which a key inside selects, such as ``architecture: gpt2``."""

    def __init__(self, key: str, sections: Callable[[], Mapping[str, type[Section]]]) -> None:
        """Store the key that selects, and a function that returns the section of each of its values."""
        self.key, self.sections = key, sections

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        *most, last = self.sections()
        message = f"expected {self.key}: {', '.join(most)}{' or ' if most else ''}{last}"
        options = [Annotated[section, Tag(name)] for name, section in self.sections().items()]
        chosen = Discriminator(self._value, custom_error_type=self.key, custom_error_message=message)
        return handler.generate_schema(Annotated[Union[tuple(options)], chosen])  # noqa: UP007

    def _value(self, content: Any) -> Any:
        return content.get(self.key) if isinstance(content, dict) else getattr(content, self.key, None)


Document = TypeVar("Document", bound=Section)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; errors name file and line."""
    try:
        content = parse_yaml(read_text(path), path)
    except FileNotFoundError:
        raise RelmError(f"{path}: no such file{suggest_file(path)}") from None
    if not isinstance(content, dict):
        found = "nothing" if content is None else type(content).__name__
        raise RelmError(f"{path}: expected keys with values, such as 'title: My run', found {found}")
    return content


def suggest_file(path: Path) -> str:
    """Return ' (did you mean X?)' for a missing file if its folder has a similar name, otherwise the names in the folder."""
    names = [other.stem for other in path.parent.glob(f"*{path.suffix}")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.stem, names, n=1)
    return f" (did you mean {near[0]}?)" if near else (f"; there are: {', '.join(sorted(names))}" if names else "")


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below` updated with `above`: mappings are merged key by key, everything else (lists too) is replaced.

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
    """Return a recipe's mapping, merged with that of the recipe it `extends`, if any."""
    if len(seen) > LONGEST_CHAIN:
        raise RelmError(f"{seen[0]}: extends more than {LONGEST_CHAIN} recipes in a row; copy keys of the last ones")
    if path in seen:
        chain = " -> ".join(other.stem for other in (*seen, path))
        raise RelmError(f"{seen[0]}: extends goes in a circle: {chain}")
    content = read_yaml(path)
    parent = content.pop("extends", None)
    if parent is None:
        return content
    if not isinstance(parent, str) or not NAME.fullmatch(parent):
        raise RelmError(f"{path}: extends: expected the name of one recipe, found {_shortened(repr(parent))}")
    parent_path = path.parent / f"{parent}.yaml"
    if not os.path.lexists(parent_path):  # which, unlike Path.exists, is False for a name that is too long
        raise RelmError(f"{path}: extends: there is no recipe {_shortened(repr(parent))}{suggest_file(parent_path)}")
    return merge(read_extended(parent_path, (*seen, path)), content)


def validate(kind: type[Document], content: Mapping[str, Any], path: Path) -> Document:
    """Return `content` as a section; an error lists all faults."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        faults = error.errors()
        try:
            kind.model_validate(_without(content, [_locate(kind, fault["loc"])[0] for fault in faults]))
        except ValidationError as other:  # rules between keys are checked only where the keys have no faults
            faults += [fault for fault in other.errors() if fault["type"] == "value_error"]
    kept = _drop_consequences(kind, faults)
    lines = list(dict.fromkeys(f"{where}: {line}" if where else line for where, text in kept for line in text.splitlines()))
    raise RelmError(f"{path}: {len(lines)} error{'s' if len(lines) > 1 else ''}\n" + "\n".join(f"  {line}" for line in lines))


def _drop_consequences(kind: type[Section], faults: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the place and message of each fault, but none that a misspelt key causes: a missing key, a broken rule."""
    unknown = [_locate(kind, fault["loc"]) for fault in faults if fault["type"] == "extra_forbidden"]
    meant = [[*path[:-1], key] for path, keys in unknown for key in difflib.get_close_matches(str(path[-1]), keys, n=1)]
    caused = {"missing": meant, "value_error": [path[:-1] for path, _ in unknown]}
    for fault in faults:
        if _locate(kind, fault["loc"])[0] not in caused.get(fault["type"], []):
            yield _describe_fault(kind, fault)


def _without(content: Mapping[str, Any], places: list[list[Any]]) -> dict[str, Any]:
    """Return a copy of a mapping without the keys at some paths; of a list, the whole list goes."""
    kept: dict[str, Any] = {}
    for key, value in content.items():
        inside = [place[1:] for place in places if place[:1] == [key]]
        if isinstance(value, dict) and inside and all(inside):
            kept[key] = _without(value, inside)
        elif not inside:
            kept[key] = value
    return kept


def raise_together(checks: Iterable[Callable[[], Any]], error_class: type[Exception] = ValueError) -> None:
    """Call every check, and raise one error of a class with the messages of all that raised it, a line for each."""
    faults: list[str] = []
    for check in checks:
        try:
            check()
        except error_class as error:
            faults.append(str(error))
    if faults:
        raise error_class("\n".join(dict.fromkeys(faults)))


def _describe_fault(kind: type[Section], fault: Any) -> tuple[str, str]:
    location, keys = _locate(kind, fault["loc"])
    is_key = location[-1:] == ["[key]"]  # pydantic's mark; the part before it is the key, as Python would write it
    where = ".".join(str(part) for part in (location[:-2] if is_key else location))
    where += f", key {fault['input']}" if is_key else ""
    if fault["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(location[-1]), keys, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(keys) or 'none'}"
        return where, f"unknown key; {hint}"
    if fault["type"] == "missing":
        return where, "missing; add this key"
    message = MESSAGES.get(
        fault["type"], str(fault["msg"]).removeprefix("Value error, ").replace("Input should be", "expected")
    )
    found = fault["input"]
    if fault["type"] in ("int_type", "float_type"):
        message = _YES if isinstance(found, bool) else _TEXT if isinstance(found, str) else message
    if fault["type"] == "string_type" and isinstance(found, (bool, int, float, datetime.date)):
        read = {bool: "true or false", datetime.date: "a date"}.get(type(found), "a number")
        message += f", and YAML reads this as {read}: put it in quotes"
    if isinstance(found, (str, int, float, datetime.date)) or found is None:
        message += f"; found {_shortened(str(found) if isinstance(found, datetime.date) else repr(found))}"
    return where, message


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text):,} characters)"


def _locate(kind: Any, location: tuple[Any, ...]) -> tuple[list[Any], list[str]]:
    """Return a fault's path in the file, without pydantic's tags of selected sections, and its section's known keys."""
    path: list[Any] = []
    keys: list[str] = []
    for part in location:
        choices = _choices(kind)
        if part in choices:
            kind = choices[part]
            continue
        path.append(part)
        if None in choices:
            kind = choices[None]
        if isinstance(kind, type) and issubclass(kind, Section):
            keys = list(kind.model_fields)
            field = kind.model_fields.get(part)
            marks = (mark for mark in field.metadata if isinstance(mark, SectionOf)) if field else iter(())
            kind = next(marks, field.annotation if field else None)
        else:  # a dict's or list's item: its last type argument
            keys, kind = [], getattr(kind, "__args__", (None,))[-1]
    return path, keys


def _choices(kind: Any) -> dict[Any, Any]:
    """Return value -> section for a key with one of several sections, and None -> section for an optional section."""
    if isinstance(kind, SectionOf):
        return dict(kind.sections())
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    sections = [option for option in options if isinstance(option, type) and issubclass(option, Section)]
    return {None: sections[-1]} if sections else {}
