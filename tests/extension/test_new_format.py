"""A format of documents that is declared outside the package is extracted by real workers and known to datasets."""

from pathlib import Path
from typing import Any

from extended_process import run_extended

from relm.corpus import extract as extraction
from relm.corpus.documents import read_documents
from relm.recipes.datasets import load_dataset
from relm.recipes.identity import documents_identity

DATASET = """
title: Some poems
licence: CC0-1.0
language: en
format: stanzas
folder: {folder}
pattern: "*.txt"
held_out_one_in: 4
stanzas: {{separator: "***"}}
"""


def poems(folder: Path) -> Path:
    """Write a dataset of 40 stanzas in two files; return its path."""
    folder.mkdir()
    for name in ("a", "b"):
        stanzas = [f"Stanza {number} of {name}\nhas two lines\n" for number in range(20)]
        (folder / f"{name}.txt").write_text("***\n".join(stanzas))
    dataset = folder / "poems.yaml"
    dataset.write_text(DATASET.format(folder=folder))
    return dataset


def extracted(dataset: Path, workers: int) -> list[bytes]:
    """Extract a dataset, each worker in a separate process; return the bytes of its two files."""
    extraction.BYTES_PER_WORKER = 1
    outputs = {split: dataset.with_name(f"{workers}.{split}.jsonl") for split in ("train", "held_out")}
    extraction.extract(load_dataset(dataset), dataset.parent, outputs, None, workers)
    return [path.read_bytes() for path in outputs.values()]


def documents_document(dataset: Path) -> dict[str, Any]:
    """Return the identity document of the dataset's documents."""
    return documents_identity(load_dataset(dataset), None, dataset.parent / "cache")


def test_a_format_from_outside_is_extracted_alike_by_any_number_of_workers(tmp_path: Path) -> None:
    dataset = poems(tmp_path / "poems")
    one, two = (run_extended("stanzas", extracted, dataset, workers) for workers in (1, 2))
    assert one == two
    found = [document for path in sorted(dataset.parent.glob("2.*.jsonl")) for document in read_documents(path)]
    assert len(found) == 40
    assert {document.text for document in found if document.id == "a.txt:3"} == {"Stanza 3 of a\nhas two lines\n"}


def test_its_options_decide_the_documents(tmp_path: Path) -> None:
    dataset = poems(tmp_path / "poems")
    assert run_extended("stanzas", documents_document, dataset)["stanzas"] == {"separator": "***"}
