"""Documents in arrays of JSON: a file that holds one array of objects, or a tar archive of such files.

An archive is read once, from its front to its end, a member at a time.
"""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from relm.corpus.documents import Encoded, Skipped
from relm.corpus.records import extract_record, list_keys
from relm.errors import RelmError
from relm.recipes.datasets import Dataset

# Objects of one batch for a worker.
BATCH = 1000
# Numbers for which `choose_split` gives the same split, whatever share of documents is held out.
_TRAINED, _HELD_OUT = 1, 0


class Slice(NamedTuple):
    """Consecutive objects of an array."""

    path: Path
    """The file or archive, for messages."""
    member: str
    """The array's file."""
    first: int
    """The position of the first object, counted from 1."""
    records: list[Any]


def batch_json_arrays(dataset: Dataset, path: Path) -> Iterator[Slice]:
    """Yield the objects of all arrays, in batches, each with only the keys that are read.

    Raises:
        RelmError: a file is not an array of objects, or `json_arrays.held_out_members` names a member that is not there.
    """
    absent = set(dataset.json_arrays.held_out_members)
    for member, content in _read_arrays(path):
        absent.discard(member)
        for first in range(0, len(content), BATCH):
            yield Slice(path, member, first + 1, [_keep_keys(dataset, record) for record in content[first : first + BATCH]])
    if absent:
        raise RelmError(f"{path}: json_arrays.held_out_members: {min(absent)} is not in it; correct the dataset's file")


def _keep_keys(dataset: Dataset, record: Any) -> Any:
    """Return an object with the keys that are read alone, since a batch is copied to another process.

    One that lacks a key stays whole, for the message.
    """
    keys = list_keys(dataset)
    return {key: record[key] for key in keys} if isinstance(record, dict) and all(key in record for key in keys) else record


def _read_arrays(path: Path) -> Iterator[tuple[str, list[Any]]]:
    """Yield the name and the content of each array."""
    if not tarfile.is_tarfile(path):
        yield path.name, _parse(path.read_bytes(), path, path.name)
        return
    try:
        with tarfile.open(path, "r|*") as archive:
            for entry in archive:
                name = Path(entry.name).name
                # Programs of macOS put files with names in `._` beside the real ones.
                if entry.isfile() and name.endswith(".json") and not name.startswith("."):
                    file = archive.extractfile(entry)
                    assert file is not None, "it is a file"
                    yield name, _parse(file.read(), path, name)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise RelmError(f"{path}: is damaged or truncated ({error}); download it again") from None


def _parse(content: bytes, path: Path, name: str) -> list[Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RelmError(f"{path}: {name}: not valid JSON ({error}); each file holds one array of objects") from None
    if not isinstance(found, list):
        raise RelmError(f"{path}: {name}: expected an array of objects, found a {type(found).__name__}")
    return found


def extract_json_arrays(dataset: Dataset, file: str, batch: Slice) -> Iterator[Encoded | Skipped]:
    """Yield the document of each object, named MEMBER:NUMBER unless it has an id.

    With `held_out_members` the member decides the split, otherwise the text does.

    Raises:
        RelmError: something in an array is no object, or lacks a key; names member and number.
    """
    options = dataset.json_arrays
    for number, record in enumerate(batch.records, batch.first):
        location = f"{batch.path}: {batch.member}, object {number}"
        if not isinstance(record, dict):
            raise RelmError(f'{location}: expected an object, as in {{"text": ...}}, found {record!r:.60}')
        text = record.get(dataset.text_key)
        if options.strip and isinstance(text, str):
            record = {**record, dataset.text_key: text.strip()}
        found = extract_record(dataset, record, f"{batch.member}:{number}", location)
        if options.held_out_members and isinstance(found, Encoded):
            found = found._replace(number=_HELD_OUT if batch.member in options.held_out_members else _TRAINED)
        yield found
