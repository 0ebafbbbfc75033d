"""A section of a YAML file, and how such files are read: every fault at once, each with its path and the nearest known key."""

import difflib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

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
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from relm.errors import RelmError
from relm.recipes.yaml_file import parse_yaml, read_text

NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]*")
Slug = Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
LONGEST_CHAIN = 32


class Section(BaseModel):
    """A mapping of the YAML file: unknown keys are refused, values never change after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False
    )

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


class SectionOf:
    """An annotation of a key with one of several sections, of which a key inside, such as ``architecture: gpt2``, chooses one.

    The sections are looked up whenever the section with the key is built.
    """

    def __init__(self, key: str, sections: Callable[[], Mapping[str, type[Section]]]) -> None:
        """Take the key that chooses, and a function that returns the section of each of its values."""
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
    """The mapping in a YAML file.

    Raises:
        RelmError: the file is absent or no regular file, not UTF-8, not plain YAML, or not a mapping; names file and line.
    """
    try:
        content = parse_yaml(read_text(path), path)
    except FileNotFoundError:
        raise RelmError(f"{path}: no such file{nearest_file(path)}") from None
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
    if len(seen) > LONGEST_CHAIN:
        raise RelmError(f"{seen[0]}: extends more than {LONGEST_CHAIN} recipes, one upon the other; write the last ones out")
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
        raise RelmError(f"{path}: extends: there is no recipe {_shortened(repr(parent))}{nearest_file(parent_path)}")
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
        return f"{where}: {message}; found {_shortened(repr(fault['input']))}"
    return f"{where}: {message}"


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text):,} characters)"


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
            kind = _kind_of(kind.model_fields[part]) if part in kind.model_fields else None
        else:  # a dict's or list's item: its last type argument
            keys, kind = [], getattr(kind, "__args__", (None,))[-1]
    return place, keys


def _kind_of(field: FieldInfo) -> Any:
    """Return a key's annotation: one that chooses a section, or else its type."""
    return next((mark for mark in field.metadata if isinstance(mark, SectionOf)), field.annotation)


def _choices(kind: Any) -> dict[Any, Any]:
    """Return choice -> section of a key with one of several, and None -> section of an optional one."""
    if isinstance(kind, SectionOf):
        return dict(kind.sections())
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    sections = [option for option in options if isinstance(option, type) and issubclass(option, Section)]
    return {None: sections[-1]} if sections else {}
