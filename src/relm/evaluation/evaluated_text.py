"""The input of an evaluation: a file, checked against its recipe's sha256, as text and as tokens."""

import hashlib
import logging
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tokenizers.models import BPE

from relm.artifact import sha256_of
from relm.corpus.published_rows import parse_json
from relm.errors import RelmError
from relm.examples.tokenization.encoder import Disagreement, EncodedTexts, TextEncoder
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer
from relm.json_shapes import TEXT, find_misfit

log = logging.getLogger(__name__)

Row = npt.NDArray[np.int32]
BYTE_ORDER_MARK = "\ufeff"
"""The character with which some editors begin a file, and which JSON does not allow."""


def read_text(path: Path, sha256: str | None) -> tuple[str, str]:
    """Return the unchanged text of a UTF-8 file, with line ends and byte order mark, and the file's sha256."""
    content, found = read_content(path, sha256)
    if not content.strip():
        raise RelmError(f"{path}: has no text ({len(content):,} bytes), so there is nothing to score")
    return decode(content, str(path)), found


def decode(content: bytes, name: str) -> str:
    """Return the text of a file in UTF-8; errors name it."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise RelmError(f"{name}: byte {error.start} is not UTF-8; save the file as UTF-8") from None


def split_lines(text: str, name: str, limit: int | None = None) -> Iterator[tuple[str, str]]:
    """Yield the first `limit` lines of a text, without a byte order mark, each with its place for messages."""
    lines = text.removeprefix(BYTE_ORDER_MARK).removesuffix("\n").split("\n")[:limit]
    yield from ((f"{name}, line {number}", line) for number, line in enumerate(lines, 1))


def count_editor_marks(path: Path, text: str) -> dict[str, int]:
    """Return the counts above 0 of a byte order mark and of CR LF in a file's text, and warn if there are any."""
    counts = {"byte_order_mark": int(text.startswith(BYTE_ORDER_MARK)), "cr_lf": text.count("\r\n")}
    found = {name: count for name, count in counts.items() if count}
    if found:
        advice = "relm extract removes both from training text; remove them here too, to score the same text"
        log.warning("%s: scored with %s byte order marks and %s CR LF line ends. %s", path, *counts.values(), advice)
    return found


def read_content(path: Path, sha256: str | None) -> tuple[bytes, str]:
    """Return the content of a file and its sha256, which must be the given one, if any."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RelmError(f"{path}: cannot be read: {error.strerror}; give the file to score") from None
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise RelmError(
            f"{path}: has sha256 {found}, expected {sha256}. Give the file that the test names, or correct the hash"
        )
    return content, found


def read_passages(file: Path, sha256: str | None, text_key: str, limit: int | None) -> tuple[list[str], str]:
    """Return the passages of a file, one from each line, and the file's sha256."""
    text, found = read_text(file, sha256)
    return [_passage(line, text_key, where) for where, line in split_lines(text, str(file), limit)], found


def _passage(line: str, key: str, where: str) -> str:
    content = parse_json(line, where, f'expected an object such as {{"{key}": "A passage."}}')
    if fault := find_misfit(content, {key: TEXT}):
        raise RelmError(f"{where}: {fault}; lambada.text_key of the test's file names the passage's key")
    text: str = content[key]
    if not before_last_space(text).strip() or len(text.split()) < 2:
        raise RelmError(f"{where}: expected a passage of two words or more with a space before the last, found {text[:80]!r}")
    return text


def before_last_space(text: str) -> str:
    """Return the part of a text before its last space; empty if it has none."""
    return text.rpartition(" ")[0]


def load_matching_tokenizer(model_folder: Path, path: Path) -> LoadedTokenizer:
    """Return the tokenizer in a `tokenizer.json`, which must agree with the one in the model's folder, if any."""
    loaded, own = load_tokenizer(path), model_folder / "tokenizer.json"
    if not own.is_file() or sha256_of(own) == loaded.sha256:
        return loaded
    ids = load_tokenizer(own).tokenizer.get_vocab()
    other = sorted((n, token) for token, n in loaded.tokenizer.get_vocab().items() if ids.get(token, n) != n)
    if other:
        number, token = other[0]
        raise RelmError(
            f"{path}: {token!r} has id {number}, but {ids[token]} in {own}, and {len(other) - 1:,} more tokens differ. Use "
            "the tokenizer of the model"
        )
    return loaded


def encode_texts(tokenizer: LoadedTokenizer, texts: Sequence[str]) -> EncodedTexts:
    """Return the ids of each text, encoded unchanged and in one piece."""
    advice = "Remove it from the text, or use a tokenizer and a model of that language"
    if lacking := lacking_characters(tokenizer.tokenizer, set().union(*texts)):
        raise RelmError(
            f"{tokenizer.path}: has no token for {lacking[0]!r} and {len(lacking) - 1} more characters, so they would not be "
            f"scored. {advice}"
        )
    try:
        return TextEncoder(tokenizer.tokenizer).encoded(texts)
    except Disagreement:  # the fast encoder gave other ids for a sample than the library, which now encodes everything
        return TextEncoder(tokenizer.tokenizer, fast=False).encoded(texts)
    except RelmError:
        raise
    except Exception as error:  # the library raises bare exceptions
        raise RelmError(f"{tokenizer.path}: cannot encode the text: {error}. {advice}") from None


def encode_rows(tokenizer: LoadedTokenizer, texts: Sequence[str]) -> list[Row]:
    """Return the ids of each text as an array."""
    encoded = encode_texts(tokenizer, texts)
    return np.split(encoded.tokens, np.cumsum(encoded.sizes, dtype=np.int64)[:-1])


def lacking_characters(tokenizer: Tokenizer, characters: Collection[str]) -> list[str]:
    """Return the characters that a BPE would silently leave out, in order; other kinds of tokenizers raise an exception.

    White space that a normaliser or the division into words removes has no token by design.
    """
    model = tokenizer.model
    if not isinstance(model, BPE) or model.unk_token or model.byte_fallback or model.continuing_subword_prefix:
        return []
    if model.end_of_word_suffix:
        return []
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    added = {part for token in tokenizer.get_added_tokens_decoder().values() for part in token.content}
    return [each for each in sorted(set(characters) - added) if not vocabulary.keys() >= _symbols(tokenizer, each)]


def _symbols(tokenizer: Tokenizer, text: str) -> set[str]:
    """Return the characters that a tokenizer's model sees of a text; a byte-level model sees one for each byte."""
    shown = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
    pieces = [(shown, None)] if tokenizer.pre_tokenizer is None else tokenizer.pre_tokenizer.pre_tokenize_str(shown)
    return {symbol for piece, _ in pieces for symbol in piece}
