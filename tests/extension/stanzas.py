"""A format of documents from outside the package: stanzas between lines of one separator."""

from collections.abc import Iterator
from pathlib import Path

from relm.corpus.documents import Document, Encoded, Skipped, encode_document
from relm.recipes.datasets import Dataset, FormatDeclaration, register_format
from relm.recipes.section import Section


class Stanzas(Section):
    """Options of stanzas."""

    separator: str = "%%"
    """The line between two stanzas."""


def batches(dataset: Dataset, path: Path) -> Iterator[list[tuple[int, str]]]:
    parts = path.read_text().split(f"{dataset.stanzas.separator}\n")
    yield from ([(number, part)] for number, part in enumerate(parts))


def documents(dataset: Dataset, file: str, batch: list[tuple[int, str]]) -> Iterator[Encoded | Skipped]:
    for number, text in batch:
        if text.strip():
            yield encode_document(Document(f"{file}:{number}", f"{file}:{number}", text), decided_by=text)
        else:
            yield Skipped("empty")


register_format(
    FormatDeclaration("stanzas", batches="stanzas:batches", documents="stanzas:documents", entries="stanzas", options=Stanzas)
)
