"""Sources of a few lines, and the documents that `extract` makes of them."""

from pathlib import Path
from typing import Any, NamedTuple

from relm.artifact import checked_sidecar
from relm.corpus.documents import Document, Skipped, parse_document, read_documents
from relm.corpus.extract import extract
from relm.recipes.datasets import FORMATS
from relm.recipes.declaration import load
from small_dumps import dataset


class Extracted(NamedTuple):
    sentence: str
    train: list[Document]
    held_out: list[Document]
    skipped: dict[str, int]

    @property
    def documents(self) -> list[Document]:
        """The documents of both splits, in the order of the lines or rows they are named after."""
        return sorted(self.train + self.held_out, key=_place)


def _place(document: Document) -> tuple[str, int]:
    name, colon, number = document.id.rpartition(":")
    return (name, int(number)) if colon else (number, 0)


def files_of(folder: Path) -> dict[str, Path]:
    return {split: folder / f"shard.{split}.jsonl" for split in ("train", "held_out")}


def extracted(source: Path | None, out: Path, documents: int | None = None, workers: int = 1, **settings: Any) -> Extracted:
    """Extract a source, a file or, with `folder` in the settings, a folder, and return the result."""
    if source is not None and source.is_dir():
        settings["folder"] = str(source)
    names = [source.name] if source is not None else []
    sentence = extract(dataset(*settings.pop("names", names), **settings), source, files_of(out), documents, workers)
    train, held_out = (list(read_documents(path)) for path in files_of(out).values())
    return Extracted(sentence, train, held_out, checked_sidecar(files_of(out)["train"])["skipped"])


def read(path: Path, **settings: Any) -> list[Document | str]:
    """Return the documents of one file, and the reason for each that is skipped, before they are split."""
    chosen = dataset(folder=str(path.parent), **settings)
    made = FORMATS[chosen.format]
    outcomes = [one for batch in load(made.batches)(chosen, path) for one in load(made.documents)(chosen, path.name, batch)]
    return [one.reason if isinstance(one, Skipped) else parse_document(one.line, path.name) for one in outcomes]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
