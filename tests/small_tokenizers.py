"""Tokenizers of a few known words or pieces of words."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers


def save_words(path: Path, words: Sequence[str], special: Sequence[str], unknown: str) -> Path:
    """Write a tokenizer whose tokens are whole words, with ids by position; return its path."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(path))
    return path


def save_wordpieces(path: Path, special: Sequence[str], pieces: Sequence[str]) -> Path:
    """Write a WordPiece of special tokens and then pieces, with ids by position; return its path."""
    vocabulary = {token: number for number, token in enumerate([*special, *pieces])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.save(str(path))
    return path


def save_uncased_wordpieces(path: Path, words: Sequence[str]) -> Path:
    """Write a tokenizer like that of the uncased BERT, with ids by position; return its path."""
    made = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save(str(path))
    return path


def save_unigrams(path: Path, pieces: Sequence[tuple[str, float]]) -> Path:
    """Write a tokenizer like that of mT5: <pad>, </s>, <unk>, and then pieces, with ids by position; return its path."""
    made = Tokenizer(models.Unigram([tuple(piece) for piece in pieces], 2))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(["<pad>", "</s>", "<unk>"])
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
