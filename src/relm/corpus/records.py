"""Make documents of records: lines of JSON, rows of Parquet, rows of a Hugging Face dataset."""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from relm.corpus.documents import Document, Encoded, Skipped, encode_document
from relm.corpus.lines import LineBlock, split_lines
from relm.errors import RelmError
from relm.recipes.datasets import Dataset

if TYPE_CHECKING:
    import pyarrow as pa


# The count of records with something other than text.
DAMAGED = "damaged_records"
SKIP = "set `skip_damaged_records: true` to skip it"


class DamagedText(RelmError):
    """A text has half of a surrogate pair or a NUL."""


class RowRange(NamedTuple):
    """Some consecutive rows of a table."""

    source: str
    """The file or dataset, for messages."""
    first: int
    """The position of the first row, counted from 1."""
    table: "pa.RecordBatch | pa.Table"


def list_keys(dataset: Dataset) -> list[str]:
    """Return the keys that are read from each record."""
    keys = (dataset.text_key, dataset.id_key, dataset.title_key)
    return list(dict.fromkeys(key for key in keys if key is not None))


def check_keys(dataset: Dataset, found: Collection[str], location: str) -> None:
    """Raise RelmError unless each key that is read is present once."""
    if missing := [key for key in list_keys(dataset) if key not in found]:
        raise RelmError(
            f"{location}: lacks the key {missing[0]!r}; it has {', '.join(map(repr, found)) or 'none'}. "
            "Correct `text_key`, `id_key` and `title_key` in the dataset's file"
        )
    if double := [key for key in list_keys(dataset) if list(found).count(key) > 1]:
        raise RelmError(f"{location}: has the column {double[0]!r} twice; give a file in which each name occurs once")


# --- one record ------------------------------------------------------------------------------------------------------------


def extract_record(dataset: Dataset, record: Mapping[str, Any], name: str, location: str) -> Encoded | Skipped:
    """Return the document of a record, or `Skipped` if its text is null or blank, or is damaged and may be.

    The name is the id if the dataset has no ``id_key``; the location is for messages.
    """
    try:
        return _extract_sound(dataset, record, name, location)
    except DamagedText as damage:
        if not dataset.skip_damaged_records:
            raise RelmError(f"{damage}; correct the file, or {SKIP}") from None
        return Skipped(DAMAGED, damage=str(damage))


def _extract_sound(dataset: Dataset, record: Mapping[str, Any], name: str, location: str) -> Encoded | Skipped:
    try:
        text, identifier, title = [
            None if key is None else record[key] for key in (dataset.text_key, dataset.id_key, dataset.title_key)
        ]
    except KeyError:
        check_keys(dataset, record, location)
        raise
    if text is None or (isinstance(text, str) and not text.strip()):
        return Skipped("empty")
    text = _require_text(text, dataset.text_key, location)
    name = name if dataset.id_key is None else _require_text(identifier, dataset.id_key, location, whole_number=True)
    if dataset.title_key is None:
        return encode_document(Document(name, name, text), decided_by=text)
    return encode_document(Document(name, _require_text(title, dataset.title_key, location), text))


def _require_text(value: Any, key: str, location: str, whole_number: bool = False) -> str:
    if whole_number and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        expected = "a text or a whole number" if whole_number else "a text"
        raise RelmError(f"{location}: {key}: expected {expected}, found {value!r:.60}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"half of a surrogate pair ({value[error.start]!r})"
        raise DamagedText(f"{location}: {key}: character {error.start}: {half}, which is not text") from None
    if "\0" in value:
        raise DamagedText(f"{location}: {key}: character {value.index(chr(0))}: a NUL, which is not text")
    return value


# --- lines of JSON ---------------------------------------------------------------------------------------------------------


def extract_json_lines(dataset: Dataset, file: str, block: LineBlock) -> Iterator[Encoded | Skipped]:
    """Yield the document of each line, a JSON object, named FILE:LINE unless it has an id; blank lines are skipped."""
    for number, line in split_lines(block, takes_damaged=dataset.skip_damaged_records, or_else=f", or {SKIP}"):
        location = f"{block.path}, line {number}"
        if not line.strip():
            yield Skipped("empty")
            continue
        if "\0" in line:
            yield Skipped(DAMAGED, damage=f"{location}: a NUL, which is not text")
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RelmError(f"{location}: not valid JSON ({error}); expected one object per line") from None
        if not isinstance(record, dict):
            raise RelmError(f'{location}: expected an object, as in {{"text": ...}}, found {line:.60}')
        yield extract_record(dataset, record, f"{file}:{number}", location)


# --- rows ------------------------------------------------------------------------------------------------------------------


def extract_rows(dataset: Dataset, file: str, rows: RowRange) -> Iterator[Encoded | Skipped]:
    """Yield one document per row, named FILE:ROW unless it has an id."""
    try:
        columns = [rows.table.column(key).to_pylist() for key in list_keys(dataset)]
    except UnicodeDecodeError as error:
        last = rows.first + len(rows.table) - 1
        raise RelmError(
            f"{rows.source}, rows {rows.first} to {last}: not valid UTF-8 ({error.reason}); correct the file"
        ) from None
    for number, values in enumerate(zip(*columns, strict=True), rows.first):
        record = dict(zip(list_keys(dataset), values, strict=True))
        yield extract_record(dataset, record, f"{file}:{number}", f"{rows.source}, row {number}")
