"""Import files of 16-bit tokens as a stream: the shards of llm.c, and the `train.bin` and `val.bin` of nanoGPT.

A shard of llm.c begins with 256 int32: a magic number, the version, the count of tokens, and zeros (dev/data/data_common.py of
github.com/karpathy/llm.c). nanoGPT's files have only tokens. Neither records documents: an end of text ends one here, though
llm.c's shards have it before each document, so that their first document is an end of text and nothing else.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from relm.artifact import read_sidecar, sha256_of, sidecar_of, write_hashed_sidecar
from relm.errors import RelmError
from relm.examples.described_tables import first_facts, last_facts
from relm.examples.documents import counts_of
from relm.examples.manifest import ExampleCounts
from relm.examples.storage import index_of, shard_writer
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer
from relm.progress import ProgressBar
from relm.recipes.objectives import Objective

Integers = npt.NDArray[np.int64]

STREAM = Objective(objective="causal", sequence_length=Objective.LONGEST)
HEADER = 256
"""Number of int32 before the tokens of a shard of llm.c."""
MAGIC, VERSION = 20240520, 1
BLOCK = 2**20
"""Tokens that are read at once."""
LONGEST = 2**27
"""The most tokens of a document in memory."""


class TokenFile(NamedTuple):
    """The tokens of a file."""

    path: Path
    offset: int
    """Byte of the first token."""
    tokens: int
    """Number of tokens to read."""

    def blocks(self) -> Iterator[Integers]:
        """Yield the tokens in order, a block at a time."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            for first in range(0, self.tokens, BLOCK):
                read = np.fromfile(file, dtype="<u2", count=min(BLOCK, self.tokens - first))
                if len(read) < min(BLOCK, self.tokens - first):
                    raise RelmError(f"{self.path}: became shorter while it was read; copy it again")
                yield read.astype(np.int64)


def import_tokens(format: str, files: Sequence[Path], tokenizer: Path, output: Path, first_tokens: int | None = None) -> str:
    """Import files of tokens in order as one shard of a stream, `output` (.bin), with its .idx and sidecar; return a sentence.

    The format is llm_c or nanogpt; an end of text ends a document. Words and bytes are counted in the decoded text.
    `first_tokens` is how many tokens of each file are read; None: all.
    """
    loaded = load_tokenizer(tokenizer)
    for path in files:
        if sidecar_of(path).exists():
            loaded.require_made(path, read_sidecar(path).get("tokenizer_sha256"))
        if path.resolve() in (output.resolve(), index_of(output).resolve()):
            raise RelmError(f"{output}: --output would overwrite the imported file {path}; give another path")
    if output.suffix != ".bin":
        raise RelmError(f"{output}: expected a .bin file for a stream of tokens; rename it")
    opened = [(open_llm_c_shard if format == "llm_c" else open_nanogpt_file)(path) for path in files]
    counts, end, without_end = ExampleCounts(), loaded.special.end_of_text, 0
    with (
        shard_writer(output, loaded.vocabulary_size) as writer,
        ProgressBar(unit=" tokens", unit_scale=True, disable=None) as bar,
    ):
        for file in opened:
            cut = file._replace(tokens=min(file.tokens, first_tokens or file.tokens))
            for first, tokens, sizes in cut_documents(cut, end):
                _require_ids(tokens, sizes, loaded, file.path, first)
                writer.append(tokens, sizes)
                without_end += len(sizes) - int((tokens[np.cumsum(sizes) - 1] == end).sum())
                documents = [piece.tolist() for piece in np.split(tokens, np.cumsum(sizes)[:-1])]
                texts = loaded.tokenizer.decode_batch(documents, skip_special_tokens=True)
                counts.add(len(tokens), len(sizes), *counts_of(texts), sizes)
                bar.update(len(tokens))
    digests = [sha256_of(path) for path in files]
    source = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    facts = {**first_facts(STREAM, loaded), **last_facts(STREAM, loaded, source), "imported_from": format, **asdict(counts)}
    write_hashed_sidecar(output, writer.sha256, **facts, idx_sha256=writer.index_sha256)
    summary = f"read {counts.tokens:,} tokens of {counts.documents:,} documents: {output}"
    return summary + (f"; {without_end:,} of them do not end with the end-of-text token" if without_end else "")


def _require_ids(tokens: Integers, sizes: Integers, loaded: LoadedTokenizer, path: Path, first: int) -> None:
    """Raise RelmError for a token id that the tokenizer does not have; `first` is the number of the first document."""
    wrong = np.flatnonzero(tokens >= loaded.vocabulary_size)
    if len(wrong):
        document = first + int(np.searchsorted(np.cumsum(sizes), wrong[0], side="right"))
        raise RelmError(
            f"{path}, document {document:,}: token id {tokens[wrong[0]]}, but {loaded.path} has 0 to "
            f"{loaded.vocabulary_size - 1}; give the tokenizer that made it"
        )


def open_llm_c_shard(path: Path) -> TokenFile:
    """Return the tokens of a shard of llm.c, whose header is checked against the file's size."""
    header = np.fromfile(path, dtype="<i4", count=HEADER)
    if len(header) < HEADER or header[0] != MAGIC:
        found = f"begins with {header[0]}" if len(header) == HEADER else f"has {path.stat().st_size:,} bytes"
        raise RelmError(
            f"{path}: expected llm.c's header of {4 * HEADER:,} bytes, which begins with {MAGIC}; the file {found}. "
            "Tokens without a header have the format nanogpt"
        )
    if header[1] != VERSION:
        raise RelmError(f"{path}: version {header[1]}, expected {VERSION}; make it again with a version of llm.c that has that")
    tokens, expected = int(header[2]), 4 * HEADER + 2 * int(header[2])
    if tokens < 1 or path.stat().st_size != expected:
        raise RelmError(
            f"{path}: has {path.stat().st_size:,} bytes, but the {tokens:,} tokens in its header need {expected:,}: "
            "truncated or damaged; delete it and download it again"
        )
    return TokenFile(path, 4 * HEADER, tokens)


def open_nanogpt_file(path: Path) -> TokenFile:
    """Return the tokens of a file of nanoGPT."""
    size = path.stat().st_size
    if size == 0 or size % 2:
        raise RelmError(f"{path}: has {size:,} bytes, expected two per token, and at least one token; copy it again")
    if size >= 4 and int(np.fromfile(path, dtype="<i4", count=1)[0]) == MAGIC:
        raise RelmError(f"{path}: begins with llm.c's header; use the format llm_c")
    return TokenFile(path, 0, size // 2)


def cut_documents(file: TokenFile, end_of_text: int | None) -> Iterator[tuple[int, Integers, Integers]]:
    """Yield whole documents, each with its end of text, which the last may lack: the first one's number, tokens, sizes."""
    kept: list[Integers] = []
    documents = 0
    for block in file.blocks():
        ends = np.flatnonzero(block == end_of_text) + 1
        if not len(ends):
            kept.append(block)
            if sum(map(len, kept)) > LONGEST:
                raise RelmError(
                    f"{file.path}: more than {LONGEST:,} tokens without the tokenizer's end of text; "
                    "give the tokenizer that made it"
                )
            continue
        before = sum(map(len, kept))
        yield documents, np.concatenate([*kept, block[: ends[-1]]]), np.diff(ends + before, prepend=0)
        kept, documents = [block[ends[-1] :]], documents + len(ends)
    if rest := sum(map(len, kept)):
        yield documents, np.concatenate(kept), np.array([rest])
