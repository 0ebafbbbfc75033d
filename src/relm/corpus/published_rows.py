"""Check rows of published tests: parse JSON strictly, and find repeated rows.

An error names the file and, if it has lines, the line.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from relm.artifact import DEEPEST_JSON
from relm.errors import RelmError
from relm.formatting import format_bytes

# As many digits as the greatest number of 64 bits has; Python converts no number of thousands of digits.
MOST_DIGITS = 20
# Keys that number the rows of a test; a repeated row with a number was copied by mistake.
NUMBERS = ("idx", "index", "id", "ind", "pairID")
# A file may unpack to this many bytes, or to this multiple of its size if that is more.
LARGEST_UNPACKED, LARGEST_RATIO = 32 << 20, 20
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str, where: str, remedy: str) -> Any:
    """Return the value of a JSON text, a line or a whole file; `where` and `remedy` are for messages.

    Raises RelmError if it is not JSON, is nested deeply, or has a number of many digits, a key twice in one object, or half of
    a surrogate pair.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            double = find_repeated(key for key, _ in pairs)
            raise RelmError(f"{where}: has the key {double!r:.80} twice in one object; {remedy}")
        return found

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_int=_integer)
        _require_plain(value, where, has_surrogates=bool(_ESCAPED_SURROGATE.search(text)))
    except RecursionError:
        raise RelmError(f"{where}: not JSON (nested too deeply); {remedy}") from None
    except ValueError as error:
        raise RelmError(f"{where}: not JSON ({error}); {remedy}") from None
    return value


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number of {len(digits.lstrip('-')):,} digits")
    return int(digits)


def _require_plain(value: Any, where: str, has_surrogates: bool) -> None:
    """Raise an error if a value is nested deeply, or a text in it has half of a surrogate pair."""
    level = [value]
    for _ in range(DEEPEST_JSON):
        for text in filter(lambda each: isinstance(each, str), level if has_surrogates else ()):
            require_text(text, where)
        inner = [[*each, *each.values()] if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        if not inner:
            return
        level = [each for values in inner for each in values]
    raise RecursionError


def require_text(text: str, where: str) -> None:
    """Raise RelmError if a text has half of a surrogate pair, which cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half, before = ascii(text[error.start]), text[: error.start][-40:]
        raise RelmError(
            f"{where}: has half of a surrogate pair ({half}), which is not text, after {before!r}; correct the file"
        ) from None


def find_repeated(names: Iterable[str]) -> str | None:
    """Return the first name that occurs twice; None: all differ.

    >>> find_repeated(["a", "b", "c", "b", "a"])
    'b'
    """
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def require_proportion(unpacked: int, size: int, name: str) -> None:
    """Raise RelmError if a file of texts unpacks out of proportion to its size."""
    if unpacked > (most := max(LARGEST_UNPACKED, LARGEST_RATIO * size)):
        raise RelmError(
            f"{name}: unpacks to at least {format_bytes(unpacked)}, expected at most {format_bytes(most)}; download it again, "
            "or give the texts without compression"
        )


def require_new(row: Mapping[str, Any], where: str, seen: dict[bytes, str]) -> None:
    """Raise RelmError if a row with a number repeats an earlier one; official files repeat rows without a number.

    `seen` has the places of earlier rows, and gets the place `where` of this one.
    """
    if any(name in row for name in NUMBERS):
        digest = hashlib.sha256(repr(row).encode("utf-8", "surrogatepass")).digest()
        if (first := seen.setdefault(digest, where)) != where:
            raise RelmError(f"{where}: repeats {first} with the same number; delete one of them, or download the file again")
