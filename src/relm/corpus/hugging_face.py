"""Read rows of a dataset of the Hugging Face hub, pinned by its commit, with the `datasets` library.

It reads only data files, with five of the library's readers. The library runs no loading scripts since its version 4; readers
that would unpickle are errors here.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets

from relm.corpus.records import RowRange, check_keys, list_keys
from relm.errors import RelmError
from relm.progress import ProgressBar
from relm.recipes.datasets import Dataset, Hub

READERS = ("arrow", "csv", "json", "parquet", "text")
ROWS = 256


def batch_hugging_face(dataset: Dataset, path: Path) -> Iterator[RowRange]:
    """Yield the rows of one split as a stream, with only the columns that are read."""
    assert dataset.hub is not None, "checked by the section"
    location = f"{dataset.hub.name} at {dataset.hub.revision[:7]}"
    first = 1
    try:
        # The library's own cache could answer with another revision of the dataset; this one is empty.
        with tempfile.TemporaryDirectory() as cache, ProgressBar(desc=location, unit=" rows", disable=None) as bar:
            for table in _open_stream(dataset.hub, dataset.split, cache).with_format("arrow").iter(ROWS):
                check_keys(dataset, table.column_names, f"split {dataset.split}")
                yield RowRange(location, first, table.select(list_keys(dataset)))
                first += len(table)
                bar.update(len(table))
    except RelmError as error:
        raise RelmError(f"{location}: {error}") from None
    except Exception as error:  # the library raises exceptions of its many parts
        reason = str(error).split("\n")[0] or type(error).__name__
        raise RelmError(
            f"{location}, split {dataset.split}, after row {first - 1}: cannot be read ({reason}); run it again"
        ) from None


def _open_stream(hub: Hub, split: str, cache: str) -> Any:
    """Return the split as a `datasets.IterableDataset`."""
    # Without the prefix the library would read a local folder of the same name.
    builder = datasets.load_dataset_builder(f"hf://datasets/{hub.name}", hub.config, revision=hub.revision, cache_dir=cache)
    reader = type(builder).__module__.split(".")
    if reader[:2] != ["datasets", "packaged_modules"] or reader[2] not in READERS:
        raise RelmError(
            f"its files need the reader {'.'.join(reader)}, expected one of {', '.join(READERS)}; use another dataset"
        )
    _check_data_files(builder, hub)
    return builder.as_streaming_dataset(split)


def _check_data_files(builder: Any, hub: Hub) -> None:
    """Raise RelmError unless the pinned commit has all data files of every split; a card can name any address."""
    pinned = f"hf://datasets/{hub.name}@{hub.revision}/"
    for file in (str(file) for split in (builder.config.data_files or {}).values() for file in split):
        if not file.startswith(pinned) or "::" in file or ".." in file.split("/"):
            raise RelmError(f"its data file {file} lies outside the dataset's pinned commit; use another dataset")
