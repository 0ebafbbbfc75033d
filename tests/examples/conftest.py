"""Documents and a tokenizer small enough to make in every test."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relm.artifact import write_sidecar
from relm.examples.tokenizers import train_tokenizer

WriteDocuments = Callable[[str, list[str]], Path]


@pytest.fixture
def write_documents(tmp_path: Path) -> WriteDocuments:
    """Writes texts as a file of documents with its sidecar."""

    def write(name: str, texts: list[str]) -> Path:
        path = tmp_path / name
        lines = (json.dumps({"id": str(i), "title": f"T{i}", "text": t}, ensure_ascii=False) for i, t in enumerate(texts))
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        write_sidecar(path, documents=len(texts))
        return path

    return write


@pytest.fixture(scope="session")
def prose() -> list[str]:
    """200 texts of made-up words, frequent and rare ones, with numbers, marks and a few letters beyond ASCII."""
    generator = np.random.default_rng(5)
    syllables = ["ka", "ro", "the", "ing", "mi", "stre", "o", "né", "ță", "der", "шк", "2", "19", "'s", "-", ".\n"]
    words = ["".join(generator.choice(syllables, size)) for size in generator.integers(1, 5, 3000)]
    return [" ".join(np.array(words)[generator.zipf(1.3, size) % 3000]) for size in generator.integers(1, 200, 200)]


@pytest.fixture
def tokenizer(tmp_path: Path, prose: list[str], write_documents: WriteDocuments) -> Path:
    """A tokenizer of 400 tokens trained on the prose."""
    path = tmp_path / "tokenizer" / "tokenizer.json"
    train_tokenizer([write_documents("training.jsonl", prose)], 400, 10**9, path)
    return path
