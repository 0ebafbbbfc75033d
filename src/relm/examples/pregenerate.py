"""The step from documents to tokens on disk, by several processes, with the same bytes for any number of them."""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from relm.artifact import checked_sidecar, sha256_of, sidecar_of, write_sidecar
from relm.corpus.workers import ordered_map
from relm.errors import RelmError
from relm.examples.causal import with_end_of_text
from relm.examples.documents import document_texts
from relm.examples.encoder import Encoder
from relm.examples.storage import index_of, shard_writer
from relm.examples.tokenizers import load_tokenizer
from relm.limits import usable_cores

# Bytes of documents that travel to a worker at once: some 200 ms of work.
CHUNK = 2**20


class Lines(NamedTuple):
    """Consecutive lines of a documents file."""

    first: int
    """Number of the first one, counted from 1."""
    lines: list[bytes]


class Chunk(NamedTuple):
    """The tokens of some documents, ends of text included, and what is counted of their text."""

    tokens: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int32]
    """Tokens of each document."""
    words: int
    bytes: int
    read: int
    """Bytes of their lines."""


def pregenerate(documents: Path, tokenizer: Path, output: Path, workers: int | None = None) -> str:
    """Encode a file of documents as one shard of causal examples: `output` (.bin), its .idx, and the sidecar of `output`.

    Args:
        documents: JSON lines; compared with its sidecar if it has one.
        tokenizer: `tokenizer.json`.
        output: the .bin file; its sidecar's facts are what the manifest is made of.
        workers: processes; None: as many as there are cores. They change no byte.

    Raises:
        RelmError: an input is absent, changed or faulty (file and line are named), or a worker was killed.
    """
    started = perf_counter()
    loaded = load_tokenizer(tokenizer)
    source, may_be_empty = _checked_documents(documents)
    size = documents.stat().st_size
    wanted = usable_cores() if workers is None else workers
    encode = functools.partial(encoded_chunk, documents, tokenizer, loaded.sha256)
    words = text_bytes = 0
    with (
        open(documents, "rb") as file,
        shard_writer(output, loaded.vocabulary_size) as shard,
        contextlib.closing(
            ordered_map(encode, _chunks(file), min(wanted, 1 + size // CHUNK), f"encoding {documents}")  # type: ignore[type-var]
        ) as chunks,
        tqdm(total=size, unit="B", unit_scale=True, desc=documents.name, disable=None) as bar,
    ):
        for chunk in chunks:
            shard.append(chunk.tokens, chunk.sizes)
            words += chunk.words
            text_bytes += chunk.bytes
            bar.update(chunk.read)
            bar.set_postfix_str(f"{shard.tokens / (perf_counter() - started):,.0f} tokens/s")
        if not shard.documents and not may_be_empty:
            raise RelmError(f"{documents}: holds no documents; run the step that extracts them again")
    write_sidecar(
        output,
        objective="causal",
        dtype=shard.dtype,
        tokens=shard.tokens,
        documents=shard.documents,
        words=words,
        bytes=text_bytes,
        tokenizer_sha256=loaded.sha256,
        vocabulary_size=loaded.vocabulary_size,
        end_of_text_id=loaded.end_of_text_id,
        idx_sha256=sha256_of(index_of(output)),
        source=source,
    )
    seconds = perf_counter() - started
    return (
        f"encoded {shard.documents:,} documents with {words:,} words as {shard.tokens:,} tokens in {seconds:.1f} s; "
        f"{shard.tokens / seconds:,.0f} tokens/s"
    )


def encoded_chunk(documents: Path, tokenizer: Path, tokenizer_sha256: str, chunk: Lines) -> Chunk:
    """The tokens of some lines of `documents`."""
    loaded, encoder = _encoder(tokenizer, tokenizer_sha256)
    texts = list(document_texts(chunk.lines, documents, chunk.first))
    encoded = [encoder.encoded(text) for text in texts]
    sizes = np.array([len(tokens) for tokens in encoded], dtype=np.int32)
    tokens, sizes = with_end_of_text(np.concatenate(encoded), sizes, loaded)
    return Chunk(
        tokens,
        sizes,
        words=sum(len(text.split()) for text in texts),
        bytes=sum(len(text.encode()) for text in texts),
        read=sum(map(len, chunk.lines)),
    )


@functools.lru_cache(maxsize=1)
def _encoder(tokenizer: Path, sha256: str) -> tuple[int, Encoder]:
    loaded = load_tokenizer(tokenizer)
    if loaded.sha256 != sha256:
        raise RelmError(f"{tokenizer}: changed while documents were encoded; run this step again")
    return loaded.end_of_text_id, Encoder(loaded.tokenizer)


def _checked_documents(documents: Path) -> tuple[str, bool]:
    """The file's sha256, and whether its sidecar says that it has no documents, as a shard of one document may."""
    if not documents.exists():
        raise RelmError(f"{documents}: no such file; run the step that extracts the documents")
    if sidecar_of(documents).exists():
        sidecar = checked_sidecar(documents)
        return sidecar["sha256"], sidecar.get("documents") == 0
    return sha256_of(documents), False


def _chunks(file: IO[bytes]) -> Iterator[Lines]:
    first = 1
    while lines := file.readlines(CHUNK):
        yield Lines(first, lines)
        first += len(lines)
