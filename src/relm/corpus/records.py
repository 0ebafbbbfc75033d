"""Documents in records, a mapping of keys to values each: lines of JSON, rows of Parquet, rows of a Hugging Face dataset."""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from relm.corpus.documents import Document, Encoded, Skipped, encoded
from relm.corpus.lines import LineBlock, lines_of
from relm.errors import RelmError
from relm.recipes.datasets import Dataset

if TYPE_CHECKING:
    import pyarrow as pa


class RowRange(NamedTuple):
    """Some consecutive rows of a table."""

    place: str
    """Where they are, for messages."""
    first: int
    """The number of the first, counted from 1."""
    table: "pa.RecordBatch | pa.Table"


def keys_of(dataset: Dataset) -> list[str]:
    """The keys that are read of a record."""
    keys = (dataset.text_key, dataset.id_key, dataset.title_key)
    return list(dict.fromkeys(key for key in keys if key is not None))


def check_keys(dataset: Dataset, found: Collection[str], place: str) -> None:
    """Raise RelmError unless all keys that are read are among those found."""
    if missing := [key for key in keys_of(dataset) if key not in found]:
        raise RelmError(
            f"{place}: no key {missing[0]!r}, it has {', '.join(map(repr, found)) or 'none'}; "
            "say which key has the text with `text_key` (and `id_key`, `title_key`) in the dataset's file"
        )


# --- one record ------------------------------------------------------------------------------------------------------------


def document_of_record(dataset: Dataset, record: Mapping[str, Any], name: str, place: str) -> Encoded | Skipped:
    """The document of a record: the text of ``text_key``; where that is null or blank, it is skipped.

    Args:
        name: its id, where the dataset has no ``id_key``.
        place: file and line or row, for messages.

    Raises:
        RelmError: a key is missing, or its value is no text.
    """
    try:
        text, identifier, title = [
            None if key is None else record[key] for key in (dataset.text_key, dataset.id_key, dataset.title_key)
        ]
    except KeyError:
        check_keys(dataset, record, place)
        raise
    if text is None or (isinstance(text, str) and not text.strip()):
        return Skipped("empty")
    text = _text(text, dataset.text_key, place)
    name = name if dataset.id_key is None else _text(identifier, dataset.id_key, place, whole_number=True)
    if dataset.title_key is None:
        return encoded(Document(name, name, text), decided_by=text)
    return encoded(Document(name, _text(title, dataset.title_key, place), text))


def _text(value: Any, key: str, place: str, whole_number: bool = False) -> str:
    if whole_number and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        expected = "a text or a whole number" if whole_number else "a text"
        raise RelmError(f"{place}: {key}: expected {expected}, found {value!r:.60}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"half of a surrogate pair ({value[error.start]!r})"
        raise RelmError(f"{place}: {key}: character {error.start}: {half}, which is no text; mend the file") from None
    if "\0" in value:
        raise RelmError(f"{place}: {key}: character {value.index(chr(0))}: a NUL, which is no text; mend the file")
    return value


# --- lines of JSON ---------------------------------------------------------------------------------------------------------


def documents_of_json_lines(dataset: Dataset, file: str, block: LineBlock) -> Iterator[Encoded | Skipped]:
    """One object a line, called FILE:LINE unless it has an id; blank lines are skipped.

    Raises:
        RelmError: a line is not valid JSON or no object; names file and line.
    """
    for number, line in lines_of(block):
        place = f"{block.path}, line {number}"
        if not line.strip():
            yield Skipped("empty")
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RelmError(f"{place}: not valid JSON ({error}); each line holds one object") from None
        if not isinstance(record, dict):
            raise RelmError(f'{place}: expected an object, as in {{"text": ...}}, found {line:.60}')
        yield document_of_record(dataset, record, f"{file}:{number}", place)


# --- rows ------------------------------------------------------------------------------------------------------------------


def documents_of_rows(dataset: Dataset, file: str, rows: RowRange) -> Iterator[Encoded | Skipped]:
    """One document a row, called FILE:ROW unless it has an id."""
    try:
        columns = [rows.table.column(key).to_pylist() for key in keys_of(dataset)]
    except UnicodeDecodeError as error:
        last = rows.first + len(rows.table) - 1
        raise RelmError(f"{rows.place}, rows {rows.first} to {last}: not valid UTF-8 ({error.reason}); mend the file") from None
    for number, values in enumerate(zip(*columns, strict=True), rows.first):
        record = dict(zip(keys_of(dataset), values, strict=True))
        yield document_of_record(dataset, record, f"{file}:{number}", f"{rows.place}, row {number}")
