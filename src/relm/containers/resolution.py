"""`relm images resolve`: compare the digests in the lock with the registries', and write the result into the lock."""

import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from relm.artifact import atomic_file
from relm.containers.lock import LOCK, Lock, Pinned, read_lock
from relm.containers.registry import Answer, OutOfReach, compare_tag, find_host, format_commands
from relm.errors import RelmError
from relm.recipes.files.yaml_file import parse_yaml, read_text
from relm.recipes.section import validate


def resolve(wanted: str | None, write: bool, update: bool, folder: Path = Path(), today: datetime.date | None = None) -> str:
    """Compare one entry of the lock or all of them with the registry, and return a line for each.

    Args:
        wanted: ``images.ROLE``, ``bases.NAME``, or a role, which means its image and its bases; none: all.
        write: write into the lock what is confirmed.
        update: write the registry's digest where it is another one.
        today: written as `checked`; by default the day in UTC.

    Raises:
        RelmError: an entry is not confirmed; the others are written all the same.
    """
    today = today or datetime.datetime.now(datetime.UTC).date()
    lines, faults = [], 0
    for key, entry in _select_entries(read_lock(folder), wanted):
        try:
            line, values = _resolve_entry(key, entry, write=write, update=update, today=today)
            if values:
                _write(folder / LOCK, key, values)
        except OutOfReach as error:
            faults += 1
            commands = format_commands(entry.image, entry.tag)
            line = "\n  ".join([f"{error}; where it can be reached, one of these asks it:", *commands])
        except RelmError as error:
            faults += 1
            line = str(error)
        lines.append(f"{key}: {line}")
    if faults:
        raise RelmError("\n".join(lines))
    return "\n".join(lines)


def _resolve_entry(
    key: str, entry: Pinned, *, write: bool, update: bool, today: datetime.date
) -> tuple[str, Mapping[str, str]]:
    """Compare one entry with its registry; return a sentence about it, and the keys to be written with their values."""
    if key.startswith("images.") and entry.digest is None:
        return f"{entry.pinned} was never published, so there is no registry to ask", {}
    answer = compare_tag(entry.image, entry.tag, entry.digest)
    values = {"verified": "true", "checked": today.isoformat()}
    if update and not answer.confirms:
        values = {"digest": answer.tag_digest, "source": f"the registry, {find_host(entry.image)}", **values}
    elif not write or not answer.confirms:
        values = {}
    sentence = _format_answer(entry, answer, written=bool(values))
    if not (answer.confirms or values):
        raise RelmError(sentence)
    return sentence, values


def _select_entries(lock: Lock, wanted: str | None) -> Iterator[tuple[str, Pinned]]:
    """Yield key and entry of what is wanted."""
    entries: dict[str, Pinned] = {f"images.{role}": image for role, image in lock.images.items()}
    entries |= {f"bases.{name}": base for name, base in lock.bases.items()}
    keys = list(entries)
    if wanted is not None and f"images.{wanted}" in entries:
        keys = [f"images.{wanted}", *(f"bases.{name}" for name in lock.images[wanted].bases.values())]
    elif wanted is not None:
        keys = [wanted]
    for key in keys:
        if key not in entries:
            raise RelmError(f"{LOCK}: has no entry {key!r}; it has {', '.join([*lock.images, *entries])}")
        yield key, entries[key]


def _format_answer(entry: Pinned, answer: Answer, written: bool) -> str:
    found = f"{entry.image}:{entry.tag} is {answer.tag_digest}"
    if answer.confirms:
        image = f", whose image for {answer.platform} is {entry.digest}" if answer.locked == "platform" else ""
        now = f"; {LOCK} has it now" if written else " (--write notes it there)"
        return f"{found}{image}, as the lock has it: verified{now}"
    if written:
        return f"{found}; {LOCK} has it now"
    reason = {
        "none": "the lock has no digest",
        "moved": f"the registry has the lock's {entry.digest} as well, but the tag no longer names it",
        "absent": f"the registry does not have the lock's {entry.digest}",
    }[answer.locked]
    return f"{found} and {reason}: not verified; --update takes the registry's"


def _write(path: Path, key: str, values: Mapping[str, str]) -> None:
    """Write values into the lock, which must stay valid."""
    text = set_values(read_text(path), key.split("."), values)
    validate(Lock, parse_yaml(text, path), path)
    with atomic_file(path, "w") as file:
        file.write(text)


def set_values(text: str, keys: list[str], values: Mapping[str, str]) -> str:
    """Return YAML text in which one mapping has other values; every other character, comments included, stays.

    Args:
        keys: the keys that lead to the mapping.
        values: plain scalars, written unchanged; a key that is not there yet follows the last one.
    """
    node: Any = yaml.compose(text, yaml.SafeLoader)
    for name in keys:
        node = next(value for key, value in node.value if key.value == name)
    there = {key.value: value for key, value in node.value}
    last, column = node.value[-1][1], node.value[0][0].start_mark.column
    end = text.find("\n", last.end_mark.index - 1)
    end = len(text) if end < 0 else end
    added = "".join(f"\n{' ' * column}{name}: {value}" for name, value in values.items() if name not in there)
    edits = [(end, end, added)]
    edits += [
        (there[name].start_mark.index, there[name].end_mark.index, value) for name, value in values.items() if name in there
    ]
    for start, stop, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[stop:]
    return text
