"""Declare the shape of a JSON file, and compare a file with it before use, because somebody may have changed the file.

A shape is a `Kind`, a mapping of keys to shapes, or a list of one shape. In a mapping, `key?` is optional, `*` means every
other key, and keys that the shape does not name may have any value.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from relm.artifact import read_json
from relm.errors import RelmError
from relm.formatting import escape_controls, find_control_character

AGAIN = "delete it and run the step that makes it again"


class Kind(NamedTuple):
    """A kind of scalar value."""

    words: str
    fits: Callable[[Any], bool]


def is_count(value: Any) -> bool:
    """Return True for a whole number of at least 0, such as a size or a count, but not for true and false."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_number(value: Any) -> bool:
    """Return True for a finite number, but not for true and false."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


ANY = Kind("anything", lambda value: True)
COUNT = Kind("a whole number from 0 on", is_count)
NUMBER = Kind("a number", is_number)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
LINE = Kind("one line of text", lambda value: isinstance(value, str) and find_control_character(value) is None)
TEXT = Kind("text", lambda value: isinstance(value, str))
OBJECT = Kind("an object", lambda value: isinstance(value, dict))

Shape = Kind | Mapping[str, Any] | list[Any]


class Nullable(NamedTuple):
    """A shape that may also be null."""

    shape: Any


def read_shaped(path: Path, shape: Any, remedy: str = AGAIN) -> Any:
    """Return the content of a JSON file; raise RelmError if it is absent, not JSON, or of another shape."""
    content = read_json(path)
    require_shape(content, shape, str(path), remedy)
    return content


def require_shape(value: Any, shape: Any, place: str, remedy: str = AGAIN) -> None:
    """Raise RelmError unless a value has a shape.

    Args:
        place: the file, for the message.
        remedy: what the user can do.
    """
    if fault := find_misfit(value, shape):
        raise RelmError(f"{place}: {fault}; {remedy}")


def find_misfit(value: Any, shape: Any, key: str = "") -> str | None:
    """Return a phrase on the first key that does not fit its shape; None: the value fits.

    >>> find_misfit({"size": -1}, {"size": COUNT})
    'size: expected a whole number from 0 on, found -1'
    """
    if isinstance(shape, Nullable):
        return None if value is None else find_misfit(value, shape.shape, key)
    if isinstance(shape, Kind):
        return None if shape.fits(value) else _describe(key, shape.words, value)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _describe(key, "a list", value)
        found = (find_misfit(item, shape[0], f"{key}[{number}]") for number, item in enumerate(value))
        return next(filter(None, found), None)
    if not isinstance(value, dict):
        return _describe(key, "an object", value)
    return _find_in_object(value, shape, f"{key}." if key else "")


def _find_in_object(value: Mapping[str, Any], shape: Mapping[str, Any], prefix: str) -> str | None:
    named = {name.removesuffix("?"): inner for name, inner in shape.items() if name != "*"}
    for name in shape:
        if name != "*" and not name.endswith("?") and name not in value:
            return f"{prefix}{name} is missing"
    for name, inner in value.items():
        expected = named.get(name, shape.get("*"))
        if expected is not None and (fault := find_misfit(inner, expected, f"{prefix}{name}")):
            return fault
    return None


def _describe(key: str, expected: str, value: Any) -> str:
    found = "nothing (null)" if value is None else escape_controls(repr(value)[:80])
    return f"{escape_controls(key)}: expected {expected}, found {found}" if key else f"expected {expected}, found {found}"
