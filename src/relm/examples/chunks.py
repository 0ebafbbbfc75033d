"""Encode lines of documents for a stream of tokens; workers import this module, so it imports little."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relm.examples.documents import Lines
from relm.examples.tokenization.encoder import load_encoder

# One in this many MiB of a file, from the first on, has a sample that is compared with the library.
COMPARED = 4


class Chunk(NamedTuple):
    """The tokens of some documents, ends of text included, and counts of their text."""

    tokens: npt.NDArray[np.integer]
    sizes: npt.NDArray[np.int32]
    """Tokens of each document."""
    words: int
    bytes: int


def encode_chunk(lines: Lines, *, tokenizer: Path, tokenizer_sha256: str, dtype: str, end_of_text_id: int | None) -> Chunk:
    """Encode some lines of a documents file, with the end of text, if any, after each document; `dtype` is the stored type."""
    texts = lines.utf8_texts()
    end = [] if end_of_text_id is None else [end_of_text_id]
    compared = lines.start // 2**20 % COMPARED == 0
    tokens, sizes = load_encoder(tokenizer, tokenizer_sha256).utf8_encoded(texts, end, compared)
    words, text_bytes = texts.count()
    if int(tokens.max(initial=0)) <= np.iinfo(np.dtype(dtype)).max:  # else the parent raises
        tokens = tokens.astype(dtype)
    return Chunk(tokens, sizes, words, text_bytes)
