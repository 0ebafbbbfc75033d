"""Rows of a dataset that the `datasets` library reads: from the Hugging Face hub, pinned by commit, or from a folder.

Only data files are read, by five of the library's own readers. There are no loading scripts: the library has refused them
since its version 4, and readers that would unpickle are refused here.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import yaml
from huggingface_hub import DatasetCard

from relm.corpus.records import RowRange, check_keys, list_keys
from relm.errors import RelmError
from relm.json_shapes import LINE, read_shaped
from relm.progress import ProgressBar
from relm.recipes.datasets import Dataset, Hub

READERS = ("arrow", "csv", "json", "parquet", "text")
ROWS = 256
MOST_NAMES = 100_000


def batch_hugging_face(dataset: Dataset, folder: Path | None) -> Iterator[RowRange]:
    """Yield the rows of one split, streamed; only the columns that are read.

    The folder is an output of `save_to_disk`, or has data files; None: `dataset.hub` is read over the network.
    """
    location = f"{dataset.hub.name} at {dataset.hub.revision[:7]}" if dataset.hub else str(folder)
    first = 1
    try:
        # The library's own cache could answer with another revision of the hub's dataset; this one is empty.
        with tempfile.TemporaryDirectory() as cache, ProgressBar(desc=location, unit=" rows", disable=None) as bar:
            for table in _open_stream(dataset, folder, cache).with_format("arrow").iter(ROWS):
                check_keys(dataset, table.column_names, f"split {dataset.split}")
                yield RowRange(location, first, table.select(list_keys(dataset)))
                first += len(table)
                bar.update(len(table))
    except RelmError as error:
        raise RelmError(f"{location}: {error}") from None
    except Exception as error:  # the library passes on the exceptions of its many parts
        reason = str(error).split("\n")[0] or type(error).__name__
        raise RelmError(f"{location}, split {dataset.split}, after row {first - 1}: cannot be read ({reason})") from None


def _open_stream(dataset: Dataset, folder: Path | None, cache: str) -> Any:
    """Return the split as a `datasets.Dataset` or `datasets.IterableDataset`."""
    hub = dataset.hub
    if hub is None and folder is not None and (saved := _load_saved(folder)) is not None:
        return _choose_split(saved, dataset.split)
    if hub is None and folder is not None:
        _check_cards(folder)
    # Without this prefix a local folder of the same name would be read instead.
    path = f"hf://datasets/{hub.name}" if hub else str(folder.absolute()) if folder else ""
    builder = datasets.load_dataset_builder(
        path, hub.config if hub else None, revision=hub.revision if hub else None, cache_dir=cache
    )
    reader = type(builder).__module__.split(".")
    if reader[:2] != ["datasets", "packaged_modules"] or reader[2] not in READERS:
        raise RelmError(f"its files need the reader {'.'.join(reader)}; only the readers {', '.join(READERS)} are allowed")
    _check_data_files(builder, hub, folder)
    return builder.as_streaming_dataset(dataset.split)


def _check_data_files(builder: Any, hub: Hub | None, folder: Path | None) -> None:
    """Raise RelmError unless all data files of every split are inside the folder, or part of the pinned commit.

    A dataset card can name any path or address, but files outside would not be part of the dataset's identity.
    """
    files = [str(file) for split in (builder.config.data_files or {}).values() for file in split]
    if hub is None:
        _check_inside(folder or Path(), files)
        return
    pinned = f"hf://datasets/{hub.name}@{hub.revision}/"
    for file in files:
        if not file.startswith(pinned) or "::" in file or ".." in file.split("/"):
            raise RelmError(f"its data file {file} lies outside the dataset's pinned commit; use another dataset")


def _check_cards(folder: Path) -> None:
    """Raise RelmError if a folder's dataset card leads elsewhere: the library opens every path and address that it names."""
    for name, is_card in ((datasets.config.REPOCARD_FILENAME, True), (datasets.config.REPOYAML_FILENAME, False)):
        if not (folder / name).is_file():
            continue
        text = (folder / name).read_text(encoding="utf-8")
        named = vars(DatasetCard(text, ignore_metadata_errors=True).data) if is_card else yaml.safe_load(text)
        configs = named.get("configs") if isinstance(named, dict) else None
        for config in configs if isinstance(configs, list) else []:
            if isinstance(config, dict):
                _check_names(name, [config.get("data_files"), config.get("data_dir")])


def _check_names(card: str, named: list[Any]) -> None:
    """Raise RelmError unless all strings in nested lists and mappings are paths, or patterns, that stay inside a folder."""
    count = 0
    while named:
        value, count = named.pop(), count + 1
        if count > MOST_NAMES:
            raise RelmError(f"{card}: names more than {MOST_NAMES:,} data files; leave them out, or use patterns")
        if isinstance(value, (list, tuple)):
            named.extend(value)
        elif isinstance(value, dict):
            named.extend(value.values())
        elif isinstance(value, str) and _leads_out(value):
            raise RelmError(
                f"its data file {value[:200]!r}, which {card} names, lies outside the folder; copy it into the folder, and "
                "give a path inside that"
            )


def _leads_out(path: str) -> bool:
    is_address = "://" in path or "::" in path or path.startswith("data:")
    return is_address or path.startswith(("/", "~")) or ".." in path.split("/")


def _check_inside(folder: Path, files: list[str]) -> None:
    root = folder.resolve()
    for file in files:
        location = Path(root, file).resolve()
        if "::" in file or "://" in file or not location.is_relative_to(root):
            raise RelmError(
                f"its data file {file} lies outside the folder, at {location if '://' not in file else file}; copy it into the "
                "folder, or correct the dataset card or link that leads there"
            )


def _load_saved(folder: Path) -> Any:
    """Return the output of `save_to_disk`, mapped into memory; None: the folder holds something else."""
    if not any((folder / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return None
    remedy = "copy the folder again"
    listed = folder / "dataset_dict.json"
    splits = read_shaped(listed, {"splits": [LINE]}, remedy)["splits"] if listed.is_file() else []
    _check_inside(folder, splits)
    for part in (folder, *(folder / split for split in splits)):
        if (part / "state.json").is_file():
            files = read_shaped(part / "state.json", {"_data_files": [{"filename": LINE}]}, remedy)["_data_files"]
            _check_inside(folder, [str(part.resolve() / file["filename"]) for file in files])
    return datasets.load_from_disk(folder)


def _choose_split(saved: Any, split: str) -> Any:
    if isinstance(saved, datasets.Dataset):
        held = str(saved.split or "train")
        if held != split:
            raise RelmError(f"has the split {held}, expected {split}; set `split: {held}` in the dataset's file")
        return saved
    if split not in saved:
        raise RelmError(f"has no split {split}; it has {', '.join(saved)}")
    return saved[split]
