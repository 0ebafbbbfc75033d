"""Documents and a tokenizer small enough to make in every test."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relm.examples import table
from relm.examples.tokenization.tokenizer_files import import_tokenizer, train_tokenizer
from small_documents import write_texts

WriteDocuments = Callable[[str, list[str]], Path]


@pytest.fixture
def write_documents(tmp_path: Path) -> WriteDocuments:
    """Return a function that writes texts as a file of documents with its sidecar."""

    def write(name: str, texts: list[str]) -> Path:
        return write_texts(tmp_path / name, texts, title="T")

    return write


@pytest.fixture(scope="session")
def prose() -> list[str]:
    """Return 200 texts of made-up words, frequent and rare ones, with numbers, marks and a few letters beyond ASCII."""
    generator = np.random.default_rng(5)
    syllables = ["ka", "ro", "the", "ing", "mi", "stre", "o", "né", "ță", "der", "шк", "2", "19", "'s", "-", ".\n"]
    words = ["".join(generator.choice(syllables, size)) for size in generator.integers(1, 5, 3000)]
    return [" ".join(np.array(words)[generator.zipf(1.3, size) % 3000]) for size in generator.integers(1, 200, 200)]


@pytest.fixture
def tokenizer(tmp_path: Path, prose: list[str], write_documents: WriteDocuments) -> Path:
    """Train a tokenizer of 400 tokens on the prose."""
    path = tmp_path / "tokenizer" / "tokenizer.json"
    train_tokenizer("byte_level_bpe", [write_documents("training.jsonl", prose)], 400, 10**9, path)
    return path


# Name -> kind, and the files in the folder of published tokenizers by the names that they are imported under.
PUBLISHED = {
    "gpt2": ("gpt2_bpe", {"vocab.json": "gpt2/encoder.json", "merges.txt": "gpt2/vocab.bpe"}),
    "roberta": ("roberta_bpe", {name: f"roberta-fairseq/{name}" for name in ("vocab.json", "merges.txt")}),
    "bert": ("bert_wordpiece_uncased", {"vocab.txt": "bert-base-uncased/vocab.txt"}),
    "t5": ("t5_sentencepiece", {"spiece.model": "t5/spiece.model"}),
    "mt5": ("t5_sentencepiece", {"spiece.model": "mt5/spiece.model"}),
}


@pytest.fixture(scope="session")
def published(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that imports a published tokenizer once, by its name, and returns its `tokenizer.json`."""
    folder = tmp_path_factory.mktemp("published")

    def imported(name: str) -> Path:
        path = folder / name / "tokenizer.json"
        if not path.exists():
            kind, files = PUBLISHED[name]
            import_tokenizer(kind, {file: shared_data / "tokenizers" / source for file, source in files.items()}, path)
        return path

    return imported


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the record batches of tables eight rows."""
    monkeypatch.setattr(table, "ROWS", 8)
