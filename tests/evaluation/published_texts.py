"""Published test files and GPT-2's tokenizer, from the real data next to the checkout."""

import lzma
from pathlib import Path

import pytest

from relm.examples.tokenization.tokenizer_files import import_tokenizer


def gpt2_tokenizer(shared_data: Path, folder: Path) -> Path:
    """Import GPT-2's own tokenizer; return its path."""
    published = shared_data / "tokenizers" / "gpt2"
    files = {"vocab.json": published / "encoder.json", "merges.txt": published / "vocab.bpe"}
    import_tokenizer("gpt2_bpe", files, folder / "tokenizer.json")
    return folder / "tokenizer.json"


def unpacked(shared_data: Path, name: str, folder: Path) -> Path:
    """Decompress a file of the real data, such as wikitext-103/wiki.test.tokens, or skip the test if it is absent."""
    packed = shared_data / f"{name}.xz"
    if not packed.exists():
        pytest.skip(f"{name} is not among the real data of ../shared/data")
    path = folder / packed.stem
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    return path
