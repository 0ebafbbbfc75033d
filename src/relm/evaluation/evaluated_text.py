"""The input of an evaluation: a file, compared with the sha256 of its recipe, as text and as tokens."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from relm.errors import RelmError
from relm.examples.encoder import Disagreement, EncodedTexts, TextEncoder
from relm.examples.tokenizers import LoadedTokenizer


def read_text(path: Path, sha256: str | None) -> tuple[str, str]:
    """Return the unchanged text of a UTF-8 file, line ends included, and the file's sha256.

    Args:
        sha256: the expected sha256; None: any.

    Raises:
        RelmError: the file is absent, has another sha256, is empty, or is not UTF-8.
    """
    content, found = read_content(path, sha256)
    if not content.strip():
        raise RelmError(f"{path}: has no text ({len(content):,} bytes); there is nothing to score")
    try:
        return content.decode(), found
    except UnicodeDecodeError as error:
        raise RelmError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None


def read_content(path: Path, sha256: str | None) -> tuple[bytes, str]:
    """Return the content of a file, and its sha256.

    Args:
        sha256: the expected sha256; None: any.

    Raises:
        RelmError: the file is absent, or has another sha256.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RelmError(f"{path}: cannot be read: {error.strerror}; give the file that is to be scored") from None
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise RelmError(
            f"{path}: has sha256 {found}, the test's file has {sha256}: another file, or an altered one; delete it and "
            "download it again"
        )
    return content, found


def encode_texts(tokenizer: LoadedTokenizer, texts: Sequence[str]) -> EncodedTexts:
    """Return the ids of each text, encoded unchanged and in one piece."""
    try:
        return TextEncoder(tokenizer.tokenizer).encoded(texts)
    except Disagreement:  # the fast encoder gave other ids for a sample than the library, which now encodes everything
        return TextEncoder(tokenizer.tokenizer, fast=False).encoded(texts)
