"""The small committed text and its vocabulary, read as the originals read theirs."""

import re
from collections.abc import Sequence
from pathlib import Path

from small_project import CHECKOUT
from small_tokenizers import save_byte_level, save_uncased_wordpieces

__all__ = ["DATA", "blocks_of", "save_byte_level", "save_wordpiece", "words_of"]

DATA = CHECKOUT / "tests" / "data"


def blocks_of(text: str) -> list[str]:
    """Return the documents of a text with blank lines between them."""
    return re.split(r"\n\n+", text.strip("\n"))


def words_of(path: Path) -> list[str]:
    """Return the tokens of a vocabulary file, by id."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def save_wordpiece(words: Sequence[str], path: Path) -> Path:
    """Return a BERT tokenizer with this vocabulary."""
    return save_uncased_wordpieces(path, words)
