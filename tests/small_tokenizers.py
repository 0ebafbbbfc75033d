"""Tokenizers of a few known words or pieces of words."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


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
