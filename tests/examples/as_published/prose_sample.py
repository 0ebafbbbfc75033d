"""The small committed text and its vocabulary, read as the originals read theirs."""

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from small_project import CHECKOUT
from small_tokenizers import save_byte_level

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
    made = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save(str(path))
    return path
