"""Documents in arrays of JSON: a file that holds one array of objects, or a tar archive of such files.

An archive is read once, from its front to its end, a member at a time. Whatever it states about itself, no more is unpacked
than is in proportion to its size, and no array is read that does not fit into memory.
"""

import contextlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from relm.corpus.archive import FAULTS
from relm.corpus.decompression import find_compression, open_decompressed
from relm.corpus.documents import Encoded, Skipped
from relm.corpus.download.source_faults import SourceFault
from relm.corpus.records import extract_record, list_keys
from relm.corpus.tar_members import is_tar, read_tar_members
from relm.errors import RelmError
from relm.limits import require_memory
from relm.recipes.datasets import Dataset

# Objects of one batch for a worker.
BATCH = 1000
# Bytes of memory for a byte of JSON: those of the file, and 2.5 for stories with their keys when they are parsed.
MEMORY_OF_JSON = 4
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
    """Yield the objects of all arrays, in batches, each with only the keys that are read."""
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
    for name, content in _read_files(path):
        yield name, _parse(content, path, name)


def _read_files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each file of JSON."""
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(open(path, "rb"))
        try:
            if not _is_archive(raw):
                yield path.name, _read_whole(raw, path.stat().st_size, str(path))
                return
            unpacked = open_decompressed(raw, _find_compression(raw), stack)
            for entry, file in read_tar_members(unpacked, _holds_array, archive_size=path.stat().st_size, stack=stack):
                yield (name := Path(entry.name).name), _read_whole(file, entry.size, f"{path}: {name}")
        except SourceFault as fault:
            raise RelmError(f"{path}: {fault}; download it again, or correct its address") from None
        except FAULTS as error:
            raise RelmError(f"{path}: is damaged or truncated ({error}); download it again") from None


def _is_archive(raw: IO[bytes]) -> bool:
    """Return whether a file is a tar archive, compressed or not; no more of it is unpacked than a header."""
    with contextlib.ExitStack() as stack:
        head = open_decompressed(raw, _find_compression(raw), stack).read(tarfile.BLOCKSIZE)
    raw.seek(0)
    return is_tar(head)


def _find_compression(raw: IO[bytes]) -> str | None:
    head = raw.read(8)
    raw.seek(0)
    return find_compression(head)


def _holds_array(entry: tarfile.TarInfo) -> bool:
    """Return whether a member is a file of JSON; programs of macOS put files with names in `._` beside the real ones."""
    name = Path(entry.name).name
    return entry.isfile() and name.endswith(".json") and not name.startswith(".")


def _read_whole(file: IO[bytes], size: int, what: str) -> bytes:
    """Return the content of a file, which is parsed as a whole."""
    require_memory(MEMORY_OF_JSON * size, f"{what}, an array of {size:,} bytes", "divide it into several files")
    return file.read()


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
