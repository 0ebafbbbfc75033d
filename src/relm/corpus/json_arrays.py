"""Read documents in arrays of JSON: a file with one array of objects, or a tar archive of such files.

An archive is read once, from front to end, a member at a time. Whatever it states, it unpacks only in proportion to its size,
and an array that does not fit into memory is an error.
"""

import contextlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from relm.corpus.archive import explain_faults
from relm.corpus.decompression import open_content
from relm.corpus.documents import HELD_OUT_NUMBER, TRAINED_NUMBER, Encoded, Skipped
from relm.corpus.records import extract_record, list_keys
from relm.corpus.tar_members import is_tar, read_tar_members
from relm.errors import RelmError
from relm.limits import require_memory
from relm.recipes.datasets import Dataset

# Objects in one batch for a worker.
BATCH = 1000
# Bytes of memory per byte of JSON: the file, and 2.5 for parsed stories with their keys.
MEMORY_OF_JSON = 4


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
    """Yield the objects of all arrays, in batches, each with only the keys that are read."""
    absent = set(dataset.json_arrays.held_out_members)
    for member, content in _read_arrays(path):
        absent.discard(member)
        for first in range(0, len(content), BATCH):
            yield Slice(path, member, first + 1, [_keep_keys(dataset, record) for record in content[first : first + BATCH]])
    if absent:
        raise RelmError(f"{path}: json_arrays.held_out_members: found no {min(absent)}; correct the dataset's file")


def _keep_keys(dataset: Dataset, record: Any) -> Any:
    """Return an object with only the keys that are read, because a batch is copied to another process.

    An object that lacks a key stays whole for the message.
    """
    keys = list_keys(dataset)
    return {key: record[key] for key in keys} if isinstance(record, dict) and all(key in record for key in keys) else record


def _read_arrays(path: Path) -> Iterator[tuple[str, list[Any]]]:
    """Yield the name and the content of each array."""
    size = path.stat().st_size
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(open(path, "rb"))
        stack.enter_context(explain_faults(raw, size, str(path), "download it again, or correct its address"))
        if not is_tar(raw):
            yield path.name, _parse(raw, size, path, path.name)
            return
        for entry, file in read_tar_members(open_content(raw, stack), _holds_array, archive_size=size):
            name = Path(entry.name).name
            yield name, _parse(file, entry.size, path, name)


def _holds_array(entry: tarfile.TarInfo) -> bool:
    """Return whether a member is a JSON file; macOS adds files whose names begin with `._`."""
    name = Path(entry.name).name
    return entry.isfile() and name.endswith(".json") and not name.startswith(".")


def _parse(file: IO[bytes], size: int, path: Path, name: str) -> list[Any]:
    """Parse a whole file, and return its array."""
    require_memory(MEMORY_OF_JSON * size, f"{path}: {name}, an array of {size:,} bytes", "divide it into several files")
    try:
        found = json.loads(file.read())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RelmError(f"{path}: {name}: not valid JSON ({error}); expected one array of objects") from None
    if not isinstance(found, list):
        raise RelmError(f"{path}: {name}: expected an array of objects, found a {type(found).__name__}")
    return found


def extract_json_arrays(dataset: Dataset, file: str, batch: Slice) -> Iterator[Encoded | Skipped]:
    """Yield the document of each object, named MEMBER:NUMBER unless it has an id.

    With `held_out_members` the member decides the split, otherwise the text does.
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
            found = found._replace(number=HELD_OUT_NUMBER if batch.member in options.held_out_members else TRAINED_NUMBER)
        yield found
