"""Encode lines of documents for a stream of tokens in a worker, which imports this module, so it imports little."""

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relm.examples.documents import Lines
from relm.examples.tokenization.encoder import TextEncoder
from relm.examples.tokenization.tokenizer_files import loaded_as

# A sample is compared with the library in the chunks that begin in one of this many MiB of a file, from the first on.
COMPARED = 4


class ChunkEncoding(NamedTuple):
    """The options by which a worker encodes a chunk."""

    tokenizer: Path
    tokenizer_sha256: str
    dtype: str
    """Type of stored tokens: uint16 or int32."""


class Chunk(NamedTuple):
    """The tokens of some documents, ends of text included, and counts of their text."""

    tokens: npt.NDArray[np.integer]
    sizes: npt.NDArray[np.int32]
    """Tokens of each document."""
    words: int
    bytes: int


def encoded_chunk(encoding: ChunkEncoding, end_of_text_id: int | None, lines: Lines) -> Chunk:
    """Encode some lines of a documents file, with the end of text, if any, after each document."""
    texts = lines.utf8_texts()
    end = [] if end_of_text_id is None else [end_of_text_id]
    compared = lines.start // 2**20 % COMPARED == 0
    tokens, sizes = _encoder(encoding).utf8_encoded(texts, end, compared)
    words, text_bytes = texts.count()
    dtype = np.dtype(encoding.dtype)
    if int(tokens.max(initial=0)) <= np.iinfo(dtype).max:  # else the parent raises
        tokens = tokens.astype(dtype)
    return Chunk(tokens, sizes, words, text_bytes)


@functools.lru_cache(maxsize=1)
def _encoder(encoding: ChunkEncoding) -> TextEncoder:
    return TextEncoder(loaded_as(encoding.tokenizer, encoding.tokenizer_sha256).tokenizer)
