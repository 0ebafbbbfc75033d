"""`relm images resolve`: asks registries whether the digests in the lock are what they say, and notes it there."""

import datetime
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from relm.artifact import atomic_file
from relm.containers.lock import LOCK, ROLES, Lock, Pinned, read_lock
from relm.containers.registry import Answer, OutOfReach, Registry, by_hand, repository
from relm.errors import RelmError
from relm.recipes.section import validate
from relm.recipes.yaml_file import parse_yaml, read_text


def resolve(wanted: str | None, write: bool, update: bool, folder: Path = Path(), today: datetime.date | None = None) -> str:
    """Ask for one entry of the lock or for all of them, and say of each whether the registry confirms it.

    Args:
        wanted: ``images.ROLE``, ``bases.NAME``, or a role, which means its image and what that is built on; none: all.
        write: note in the lock what is confirmed.
        update: note what the registry says now, too, where it is something else.
        today: noted as `checked`; by default the day in UTC.

    Raises:
        RelmError: an entry is not confirmed; the others are noted all the same.
    """
    told, faults = [], 0
    today = today or datetime.datetime.now(datetime.UTC).date()
    for key, entry in _entries(read_lock(folder), wanted):
        if key.startswith("images.") and entry.digest is None:
            told.append(f"{key}: {entry.pinned} was never published, so there is no registry to ask")
            continue
        try:
            answer = Registry(entry.image).answer(entry.tag, entry.digest)
        except OutOfReach as error:
            asked = [f"{key}: {error}; where it can be reached, one of these asks it:", *by_hand(entry.image, entry.tag)]
            told.append("\n  ".join(asked))
            faults += 1
            continue
        except RelmError as error:
            told.append(f"{key}: {error}")
            faults += 1
            continue
        noted = _noted(entry, answer, write, update, today)
        if noted:
            _write(folder / LOCK, key, noted)
        told.append(f"{key}: {_in_words(entry, answer, bool(noted))}")
        faults += not (answer.confirms or noted)
    if faults:
        raise RelmError("\n".join(told))
    return "\n".join(told)


def _entries(lock: Lock, wanted: str | None) -> Iterator[tuple[str, Pinned]]:
    """(key, entry) of what is to be asked for."""
    entries: dict[str, Pinned] = {f"images.{role}": image for role, image in lock.images.items()}
    entries |= {f"bases.{name}": base for name, base in lock.bases.items()}
    keys = list(entries)
    if wanted in ROLES and f"images.{wanted}" in entries:
        keys = [f"images.{wanted}", *(f"bases.{name}" for name in lock.images[wanted].bases.values())]
    elif wanted is not None:
        keys = [wanted]
    for key in keys:
        if key not in entries:
            raise RelmError(f"{LOCK}: has no entry {key!r}; it has {', '.join([*lock.images, *entries])}")
        yield key, entries[key]


def _noted(entry: Pinned, answer: Answer, write: bool, update: bool, today: datetime.date) -> dict[str, str]:
    """Keys of the entry with what is to be written there; empty for nothing."""
    if write and answer.confirms:
        return {"verified": "true", "checked": today.isoformat()}
    if update and not answer.confirms:
        where = f"the registry, {repository(entry.image).host}"
        return {"digest": answer.tag_digest, "source": where, "verified": "true", "checked": today.isoformat()}
    return {}


def _in_words(entry: Pinned, answer: Answer, noted: bool) -> str:
    named = f"{entry.image}:{entry.tag} is {answer.tag_digest}"
    written = f"; {LOCK} says so now" if noted else ""
    if answer.confirms:
        of = f", whose image for {answer.platform} is {entry.digest}" if answer.noted == "platform" else ""
        return f"{named}{of}, as the lock has it: verified{written or ' (--write notes it there)'}"
    if noted:
        return f"{named}{written}, and the Dockerfiles that name {entry.digest or 'another one'} are to follow"
    why = {
        "none": "the lock has no digest",
        "moved": f"the registry has the lock's {entry.digest} as well, but the tag names it no more",
        "absent": f"the registry does not have the lock's {entry.digest}",
    }[answer.noted]
    return f"{named} and {why}: not verified; --update takes the registry's"


def _write(path: Path, key: str, values: Mapping[str, str]) -> None:
    """Note values in the lock, which must be one afterwards too."""
    text = with_values(read_text(path), key.split("."), values)
    validate(Lock, parse_yaml(text, path), path)
    with atomic_file(path, "w") as file:
        file.write(text)


def with_values(text: str, place: list[str], values: Mapping[str, str]) -> str:
    """YAML text in which keys of one mapping have other values; every other character, comments as well, stays as it was.

    Args:
        place: keys that lead to the mapping.
        values: plain scalars as they are to stand there; a key that is not there yet follows the last one.
    """
    node: Any = yaml.compose(text, yaml.SafeLoader)
    for name in place:
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
