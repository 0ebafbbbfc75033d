"""The step from documents to a stream of tokens on disk, with the same bytes for any count of worker processes."""

import contextlib
import functools
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np

from relm.artifact import write_hashed_sidecar
from relm.corpus.workers import ordered_map
from relm.errors import RelmError
from relm.examples.chunks import Chunk, ChunkEncoding, encoded_chunk
from relm.examples.concurrent_check import checked_meanwhile
from relm.examples.documents import BEFORE_SPACE, CHUNK, chunks_of
from relm.examples.manifest import length_histogram, summed
from relm.examples.storage import ShardWriter, dtype_of, index_of, shard_writer
from relm.examples.tokenization.encoder import Disagreement
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer
from relm.limits import usable_cores
from relm.progress import ProgressBar
from relm.recipes.objectives import Objective


@dataclass
class ShardCounts:
    """Sums over the documents of a file."""

    words: int = 0
    bytes: int = 0
    length_histogram: list[list[int]] = field(default_factory=list)
    """[longest, count] of documents with their ends of text."""

    def add(self, chunk: Chunk) -> None:
        """Add a chunk to the sums."""
        self.words += chunk.words
        self.bytes += chunk.bytes
        self.length_histogram = summed([self.length_histogram, length_histogram(chunk.sizes)])


def pregenerate_stream(
    documents: Path, tokenizer: Path, output: Path, objective: Objective, language: str, workers: int | None = None
) -> str:
    """Encode a file of documents as one shard of a token stream: `output` (.bin), its .idx, and the sidecar of `output`.

    An end of text follows each document, where the tokenizer has one. The stream is the same for all objectives that read one.
    If the fast encoder and the `tokenizers` library disagree on a sample of the text, the library encodes all of it.

    Args:
        documents: JSON lines; compared with its sidecar if it has one.
        tokenizer: `tokenizer.json`.
        output: the .bin file; the manifest is built from its sidecar.
        objective: an objective that reads a stream of tokens.
        language: language of the text, unused here.
        workers: processes; None: one for each core. The count changes no byte.
    """
    started = perf_counter()
    loaded = load_tokenizer(tokenizer)
    note = ""
    with checked_meanwhile(documents) as checked:
        try:
            shard, counts = _written(documents, loaded, output, workers, checked, fast=True)
        except Disagreement as disagreement:
            note = f"; by the tokenizers library alone, since {disagreement}"
            shard, counts = _written(documents, loaded, output, workers, checked, fast=False)
        source, may_be_empty = checked()
    if not shard.documents and not may_be_empty:
        output.unlink()
        index_of(output).unlink()
        raise RelmError(f"{documents}: holds no documents; run the step that extracts them again")
    write_hashed_sidecar(
        output,
        shard.sha256,
        objective="causal",
        layout=objective.layout,
        dtype=shard.dtype,
        tokens=shard.tokens,
        documents=shard.documents,
        tokenizer_sha256=loaded.sha256,
        vocabulary_size=loaded.vocabulary_size,
        special=asdict(loaded.special),
        settings=objective.stored_keys(),
        idx_sha256=shard.index_sha256,
        source=source,
        **asdict(counts),
    )
    seconds = perf_counter() - started
    return (
        f"encoded {shard.documents:,} documents with {counts.words:,} words as {shard.tokens:,} tokens in {seconds:.1f} s; "
        f"{shard.tokens / seconds:,.0f} tokens/s{note}"
    )


def _written(
    documents: Path, loaded: LoadedTokenizer, output: Path, workers: int | None, checked: Callable[[], object], fast: bool
) -> tuple[ShardWriter, ShardCounts]:
    """Write the shard and its index, which appear once the documents are checked."""
    counts = ShardCounts()
    with (
        shard_writer(output, loaded.vocabulary_size) as shard,
        contextlib.closing(
            encoded_documents(documents, loaded, workers, end_of_text_id=loaded.special.end_of_text, fast=fast)
        ) as chunks,
    ):
        for chunk in chunks:
            shard.append(chunk.tokens, chunk.sizes)
            counts.add(chunk)
        checked()
    return shard, counts


def encoded_documents(
    documents: Path, loaded: LoadedTokenizer, workers: int | None, *, end_of_text_id: int | None, fast: bool = True
) -> Generator[Chunk, None, None]:
    """Encode a file of documents, and yield some of them at a time, in order and whole, while a bar shows the progress.

    Args:
        documents: JSON lines.
        loaded: the tokenizer.
        workers: processes; None: one for each core.
        end_of_text_id: the token after each document; None: no token.
        fast: faster encoders than the `tokenizers` library are allowed.
    """
    size = documents.stat().st_size
    wanted = min(usable_cores() if workers is None else workers, 1 + size // CHUNK)
    dtype = dtype_of(loaded.vocabulary_size)
    encode = functools.partial(encoded_chunk, ChunkEncoding(loaded.path, loaded.sha256, dtype, fast), end_of_text_id)
    parting = None if loaded.kind == "other" else BEFORE_SPACE
    started, tokens = perf_counter(), 0
    with (
        open(documents, "rb") as file,
        contextlib.closing(
            ordered_map(encode, chunks_of(file, parting, numbered=False), wanted, f"encoding {documents}")
        ) as chunks,
        ProgressBar(total=size, unit="B", unit_scale=True, desc=documents.name, disable=None) as bar,
    ):
        for chunk in whole_documents(chunks, dtype):
            yield chunk
            tokens += len(chunk.tokens)
            bar.update(chunk.read)
            bar.set_postfix_str(f"{tokens / (perf_counter() - started):,.0f} tokens/s")


def whole_documents(chunks: Iterable[Chunk], dtype: str) -> Iterator[Chunk]:
    """Yield the chunks, with the parts of each very long document concatenated; `dtype` is that of stored tokens."""
    document, words, text_bytes, read = bytearray(), 0, 0, 0
    for chunk in chunks:
        if chunk.begins and chunk.ends:
            yield chunk
            continue
        if chunk.tokens.dtype != dtype:  # an id outside the vocabulary, for which the shard's writer raises
            yield chunk._replace(sizes=np.array([len(chunk.tokens)], dtype=np.int32))
        document += chunk.tokens.data
        words, text_bytes, read = words + chunk.words, text_bytes + chunk.bytes, read + chunk.read
        if chunk.ends:
            tokens = np.frombuffer(document, dtype=dtype)
            yield Chunk(tokens, np.array([len(tokens)], dtype=np.int32), words, text_bytes, read)
            document, words, text_bytes, read = bytearray(), 0, 0, 0
