"""The index of a run in a store: each file's name, sha256 and size. Nothing in it is trusted before it is checked.

Each push that changes something adds one, `runs/NAME/FINGERPRINT/TIME.json`; pull takes the newest.
"""

import collections
import contextlib
import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from relm.errors import RelmError
from relm.recipes.run_name import RUN_NAME

FORMAT = 1
LARGEST = 1 << 50  # bytes; a petabyte is no file of a run
TIME = "%Y%m%dT%H%M%S.%fZ"
_SHA256 = re.compile("[0-9a-f]{64}")
_STRANGE = re.compile(r"[\x00-\x1f\x7f-\x9f\\\ud800-\udfff]")
_INDEX_PATH = re.compile(rf"(?P<name>{RUN_NAME})/(?P<fingerprint>[0-9a-f]{{12}})/(?P<time>\d{{8}}T\d{{6}}\.\d{{6}}Z)\.json")


class Entry(NamedTuple):
    """One file."""

    name: str
    """Its path: `work/...`, `results/...`, or in one of the user's own folders that the recipe names."""
    sha256: str
    size: int


class IndexName(NamedTuple):
    """An index by its name in the store: a run, its fingerprint, and the time of the push."""

    name: str
    fingerprint: str
    time: str

    def __str__(self) -> str:
        return f"runs/{self.name}/{self.fingerprint}/{self.time}.json"


@dataclass(frozen=True)
class Index:
    """One push of a run."""

    name: str
    fingerprint: str
    files: Sequence[Entry]

    def document(self) -> dict[str, Any]:
        """Return the index as the JSON document that is stored."""
        files = [{"path": name, "sha256": sha256, "size": size} for name, sha256, size in self.files]
        return {"format": FORMAT, "name": self.name, "fingerprint": self.fingerprint, "files": files}


def parse_index_name(path: str) -> IndexName | None:
    """Return the name of an index from its path inside `runs/`, or None where the path is no index's.

    >>> parse_index_name("smoke/tiny/0123456789ab/20261120T223000.000000Z.json").name
    'smoke/tiny'
    >>> parse_index_name("tiny/latest.json")
    >>> parse_index_name("tiny/0123456789ab/20269920T223000.000000Z.json")
    """
    found = _INDEX_PATH.fullmatch(path)
    if found is None:
        return None
    with contextlib.suppress(ValueError):  # no such day
        datetime.datetime.strptime(found["time"], TIME)
        return IndexName(found["name"], found["fingerprint"], found["time"])
    return None


def next_time(newest: str | None, now: datetime.datetime) -> str:
    """Return the time in the name of the next index, later than the newest even if this machine's clock is behind."""
    if newest is None:
        return now.strftime(TIME)
    try:
        after = datetime.datetime.strptime(newest, TIME).replace(tzinfo=datetime.UTC) + datetime.timedelta(microseconds=1)
    except OverflowError:
        raise RelmError(f"the store has an index {newest}.json, and no time is later; delete it in the store's runs/") from None
    return max(now, after).strftime(TIME)


def read_index(told: Any, where: str, place: IndexName) -> Index:
    """Return the index in a JSON document.

    Args:
        where: the address it came from, for messages.
    """
    if not isinstance(told, Mapping) or told.get("format") != FORMAT:
        found = told.get("format") if isinstance(told, Mapping) else None
        raise RelmError(
            f"{where}: no index of format {FORMAT} (found {_format_value(found)}); pull with the version of relm that pushed it"
        )
    try:
        files = [Entry(file["path"], file["sha256"], file["size"]) for file in told["files"]]
        index = Index(str(told["name"]), str(told["fingerprint"]), files)
    except (KeyError, TypeError, ValueError) as error:
        raise RelmError(f"{where}: damaged: {type(error).__name__} {error}; push the run again") from None
    if (index.name, index.fingerprint) != (place.name, place.fingerprint):
        raise RelmError(
            f"{where}: is of run {_format_value(index.name)} {_format_value(index.fingerprint)}; "
            "it was stored under another run's name: nothing was pulled"
        )
    for file in files:
        require_inside(file.name, where)
        if not _is_sha256(file.sha256) or type(file.size) is not int or not 0 <= file.size <= LARGEST:
            found = f"{_format_value(file.sha256)} and {_format_size(file.size)}"
            raise RelmError(f"{where}: {file.name:.200}: expected a sha256 and a size, found {found}; push the run again")
    _require_each_once([file.name for file in files], where)
    return index


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _format_size(value: Any) -> str:
    """Return a size as it was found; one of thousands of digits cannot be shown."""
    return (
        f"a number of {value.bit_length():,} bits" if isinstance(value, int) and abs(value) > LARGEST else _format_value(value)
    )


def _format_value(value: Any) -> str:
    """Return the beginning of what was found, without characters that a terminal obeys."""
    return "".join(character if character.isprintable() else "?" for character in f"{value!s:.70}")


def _require_each_once(names: Sequence[str], where: str) -> None:
    """Raise RelmError for two entries of one file, and for a file where another entry needs a folder."""
    files = set(names)
    above = {name.rsplit("/", count)[0] for name in files for count in range(1, name.count("/") + 1)}
    twice = [name for name, count in collections.Counter(names).items() if count > 1]
    if wrong := [*twice, *sorted(files & above)]:
        raise RelmError(
            f"{where}: names the file {wrong[0][:200]!r} twice; nothing was pulled: this is not what `relm push` wrote"
        )


def require_inside(name: Any, where: str) -> None:
    """Raise RelmError for a name that leads out of its folder, or that a terminal or another system reads differently."""
    parts = name.split("/") if isinstance(name, str) else []
    strange = len(parts) < 2 or any(part in ("", ".", "..") for part in parts) or _STRANGE.search(name)
    if strange or len(name) > 4096 or any(len(part.encode()) > 255 for part in parts):
        raise RelmError(
            f"{where}: names the file {str(name)[:200]!r}, which does not lie inside the folders of a run; nothing was pulled: "
            "this is not what `relm push` wrote"
        )
