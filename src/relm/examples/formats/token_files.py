"""Import files of tokens of 16 bits: the shards of llm.c, and the `train.bin` and `val.bin` of nanoGPT.

A shard of llm.c begins with 256 int32: a magic number, the version, the count of tokens, and zeros (dev/data/data_common.py of
github.com/karpathy/llm.c). nanoGPT's files have tokens alone. Neither records documents: an end of text ends one here, though
llm.c's shards have it before each document, so that the first of theirs is an end of text alone.
"""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relm.errors import RelmError
from relm.examples.formats.imports import Documents, import_stream, name_document
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer

Integers = npt.NDArray[np.int64]

HEADER = 256
"""Count of int32 before the tokens of a shard of llm.c."""
MAGIC, VERSION = 20240520, 1
BLOCK = 2**20
"""Tokens that are read at once."""
LONGEST = 2**27
"""Tokens of a document that are in memory at most."""


class TokenFile(NamedTuple):
    """The tokens of a file."""

    path: Path
    offset: int
    """Byte of the first token."""
    tokens: int
    """Count of tokens that are read."""

    def blocks(self) -> Iterator[Integers]:
        """Yield the tokens in order, a block at a time."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            for first in range(0, self.tokens, BLOCK):
                read = np.fromfile(file, dtype="<u2", count=min(BLOCK, self.tokens - first))
                if len(read) < min(BLOCK, self.tokens - first):
                    raise RelmError(f"{self.path}: became shorter while it was read; copy it again")
                yield read.astype(np.int64)


def import_llm_c(files: Sequence[Path], loaded: LoadedTokenizer, output: Path, first_tokens: int | None = None) -> str:
    """Import shards of llm.c in order, `first_tokens` of each or all."""
    return _import_files([open_llm_c_shard(path) for path in files], "llm_c", loaded, output, first_tokens)


def import_nanogpt(files: Sequence[Path], loaded: LoadedTokenizer, output: Path, first_tokens: int | None = None) -> str:
    """Import nanoGPT's files of tokens in order, `first_tokens` of each or all."""
    return _import_files([open_nanogpt_file(path) for path in files], "nanogpt", loaded, output, first_tokens)


def open_llm_c_shard(path: Path) -> TokenFile:
    """Return the tokens of a shard of llm.c, whose header is checked against the file's size."""
    header = np.fromfile(path, dtype="<i4", count=HEADER)
    if len(header) < HEADER or header[0] != MAGIC:
        found = f"begins with {header[0]}" if len(header) == HEADER else f"has {path.stat().st_size:,} bytes"
        raise RelmError(
            f"{path}: {found}, expected {MAGIC} and a header of {4 * HEADER:,} bytes: not a shard of GPT-2 tokens of llm.c; "
            "files of tokens without a header have the format nanogpt"
        )
    if header[1] != VERSION:
        raise RelmError(f"{path}: version {header[1]}, expected {VERSION}; make it again with a version of llm.c that has that")
    tokens, expected = int(header[2]), 4 * HEADER + 2 * int(header[2])
    if tokens < 1 or path.stat().st_size != expected:
        raise RelmError(
            f"{path}: has {path.stat().st_size:,} bytes, its header says {tokens:,} tokens, which need {expected:,}: "
            "truncated or damaged; delete it and download it again"
        )
    return TokenFile(path, 4 * HEADER, tokens)


def open_nanogpt_file(path: Path) -> TokenFile:
    """Return the tokens of a file of nanoGPT."""
    size = path.stat().st_size
    if size == 0 or size % 2:
        raise RelmError(f"{path}: has {size:,} bytes, expected two for each token, and at least one; copy it again")
    if size >= 4 and int(np.fromfile(path, dtype="<i4", count=1)[0]) == MAGIC:
        raise RelmError(f"{path}: begins with llm.c's header; give the format llm_c")
    return TokenFile(path, 0, size // 2)


def _import_files(
    files: Sequence[TokenFile], format: str, loaded: LoadedTokenizer, output: Path, first_tokens: int | None
) -> str:
    read = [file._replace(tokens=min(file.tokens, first_tokens or file.tokens)) for file in files]
    documents = (document for file in read for document in cut_documents(file, loaded.special.end_of_text))
    return import_stream(documents, [file.path for file in files], format, loaded, output)


def cut_documents(file: TokenFile, end_of_text: int | None) -> Iterator[Documents]:
    """Yield the tokens of a file in blocks of whole documents, each with its end of text; the last may lack it."""
    kept: list[Integers] = []
    documents = 0
    for block in file.blocks():
        ends = np.flatnonzero(block == end_of_text) + 1
        if not len(ends):
            kept.append(block)
            if sum(map(len, kept)) > LONGEST:
                raise RelmError(
                    f"{file.path}: more than {LONGEST:,} tokens follow each other without the tokenizer's end of text; "
                    "give the tokenizer that it was made with"
                )
            continue
        before = sum(map(len, kept))
        tokens = np.concatenate([*kept, block[: ends[-1]]])
        yield tokens, np.diff(ends + before, prepend=0), functools.partial(name_document, file.path, documents)
        kept, documents = [block[ends[-1] :]], documents + len(ends)
    if rest := sum(map(len, kept)):
        yield np.concatenate(kept), np.array([rest]), functools.partial(name_document, file.path, documents)
