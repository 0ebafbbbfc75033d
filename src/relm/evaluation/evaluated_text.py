"""The input of an evaluation: a file, compared with the sha256 of its recipe, as text and as tokens."""

import hashlib
import logging
from collections.abc import Collection, Mapping, Sequence
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
from relm.formatting import escape_controls

log = logging.getLogger(__name__)

Row = npt.NDArray[np.int32]
BYTE_ORDER_MARK = "\ufeff"
"""The character with which some editors begin a file; it belongs to no JSON."""


def read_text(path: Path, sha256: str | None) -> tuple[str, str]:
    """Return the unchanged text of a UTF-8 file, with line ends and byte order mark, and the file's sha256."""
    content, found = read_content(path, sha256)
    if not content.strip():
        raise RelmError(f"{path}: has no text ({len(content):,} bytes); there is nothing to score")
    try:
        return content.decode(), found
    except UnicodeDecodeError as error:
        raise RelmError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None


def find_editor_marks(path: Path, text: str) -> dict[str, int]:
    """Return the counts of a byte order mark and of CR LF in a file's text, those above 0, with a warning if there are any."""
    counts = {"byte_order_mark": int(text.startswith(BYTE_ORDER_MARK)), "cr_lf": text.count("\r\n")}
    if found := {name: count for name, count in counts.items() if count}:
        advice = "relm extract removes these from the text files that models are trained on; remove them to score text alone"
        log.warning("%s: is scored%s; %s", path, describe_editor_marks(found), advice)
    return found


def describe_editor_marks(counts: Mapping[str, int]) -> str:
    """Return the end of a phrase on a text with these counts; empty for a text that has neither.

    >>> describe_editor_marks({"byte_order_mark": 1, "cr_lf": 3})
    ' with its byte order mark and 3 ends of lines of CR LF'
    """
    names = {"byte_order_mark": "its byte order mark", "cr_lf": f"{counts.get('cr_lf', 0):,} ends of lines of CR LF"}
    return f" with {' and '.join(names[name] for name in counts)}" if counts else ""


def read_content(path: Path, sha256: str | None) -> tuple[bytes, str]:
    """Return the content of a file, and its sha256, which must be the given one unless that is None."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RelmError(f"{path}: cannot be read: {error.strerror}; give the file that is to be scored") from None
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise RelmError(
            f"{path}: has sha256 {found}, the test's file has {sha256}: another file, or an altered one; give "
            "the right file, or correct the hash"
        )
    return content, found


def read_passages(file: Path, sha256: str | None, text_key: str, limit: int | None) -> tuple[list[str], str]:
    """Return the passages of a file, one from each line, and the file's sha256."""
    content, found = read_text(file, sha256)
    lines = content.removeprefix(BYTE_ORDER_MARK).removesuffix("\n").split("\n")[:limit]
    return [_passage(line, text_key, f"{file}, line {number}") for number, line in enumerate(lines, 1)], found


def _passage(line: str, key: str, where: str) -> str:
    content = parse_json(line, where, f'expected an object such as {{"{key}": "A passage."}}')
    text = content.get(key) if isinstance(content, dict) else None
    if not isinstance(text, str):
        keys = f"the keys {escape_controls(', '.join(content))[:200]}" if isinstance(content, dict) else type(content).__name__
        raise RelmError(
            f"{where}: expected an object with a text under {key!r}, found {keys}; lambada.text_key of the test's file names it"
        )
    if not before_last_space(text).strip() or len(text.split()) < 2:
        raise RelmError(f"{where}: expected a passage of two words or more with a space before the last, found {text[:80]!r}")
    return text


def before_last_space(text: str) -> str:
    """Return what stands before the last space of a text; empty if it has none."""
    return text.rpartition(" ")[0]


def load_tokenizer_of(model_folder: Path, path: Path) -> LoadedTokenizer:
    """Return the tokenizer in a `tokenizer.json`, compared with that of the model's folder, if it has one."""
    loaded, own = load_tokenizer(path), model_folder / "tokenizer.json"
    if not own.is_file() or sha256_of(own) == loaded.sha256:
        return loaded
    ids = load_tokenizer(own).tokenizer.get_vocab()
    other = sorted((n, token) for token, n in loaded.tokenizer.get_vocab().items() if ids.get(token, n) != n)
    if other:
        number, token = other[0]
        raise RelmError(
            f"{path}: has {token!r} as {number}, and {len(other) - 1:,} more tokens with another id than in {own}, where it is "
            f"{ids[token]}: the model was trained with that one; give it as the tokenizer"
        )
    return loaded


def encode_texts(tokenizer: LoadedTokenizer, texts: Sequence[str]) -> EncodedTexts:
    """Return the ids of each text, encoded unchanged and in one piece."""
    advice = "give a text without it, or the tokenizer and the model of another language"
    if lacking := lacking_characters(tokenizer.tokenizer, set().union(*texts)):
        raise RelmError(
            f"{tokenizer.path}: has no token for {lacking[0]!r} and {len(lacking) - 1} more characters of the text, nor one "
            f"for unknown characters, so that they would not be scored; {advice}"
        )
    try:
        return TextEncoder(tokenizer.tokenizer).encoded(texts)
    except Disagreement:  # the fast encoder gave other ids for a sample than the library, which now encodes everything
        return TextEncoder(tokenizer.tokenizer, fast=False).encoded(texts)
    except RelmError:
        raise
    except Exception as error:  # the library raises bare exceptions
        raise RelmError(f"{tokenizer.path}: cannot encode the text: {error}; {advice}") from None


def encode_rows(tokenizer: LoadedTokenizer, texts: Sequence[str]) -> list[Row]:
    """Return the ids of each text as an array."""
    encoded = encode_texts(tokenizer, texts)
    return np.split(encoded.tokens, np.cumsum(encoded.sizes, dtype=np.int64)[:-1])


def lacking_characters(tokenizer: Tokenizer, characters: Collection[str]) -> list[str]:
    """Return the characters that a BPE would leave out without a word, in order; other kinds raise an exception there.

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
    """Return the characters that a tokenizer's model sees of a text: for a byte-level one a character for each byte."""
    shown = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
    pieces = [(shown, None)] if tokenizer.pre_tokenizer is None else tokenizer.pre_tokenizer.pre_tokenize_str(shown)
    return {symbol for piece, _ in pieces for symbol in piece}
