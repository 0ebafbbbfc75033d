"""The small committed text and its vocabulary, read as the originals read theirs."""

import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from small_project import CHECKOUT

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


def save_byte_level(path: Path, special: Sequence[str] = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")) -> Path:
    """Return a tokenizer like RoBERTa's, of single bytes and the token ## only; its last special token comes last."""
    tokens = [*special[:-1], *_characters_of_bytes(), "##", special[-1]]
    made = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, [("#", "#")], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(special))
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save(str(path))
    return path


def _characters_of_bytes() -> list[str]:
    """Return GPT-2's character for each byte: printable bytes are themselves, the others are numbered from U+0100."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]
