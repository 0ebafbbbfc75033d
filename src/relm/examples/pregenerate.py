"""Turn documents into a stream of tokens on disk, with the same bytes for any number of worker processes."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

from relm.artifact import write_hashed_sidecar
from relm.errors import RelmError
from relm.examples.chunks import encode_chunk
from relm.examples.documents import checked_documents, require_documents
from relm.examples.manifest import ExampleCounts
from relm.examples.mapped_documents import map_documents
from relm.examples.storage import dtype_of, index_of, shard_writer
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.recipes.objectives import Objective


def pregenerate_stream(
    documents: Path, tokenizer: Path, output: Path, objective: Objective, language: str, workers: int | None = None
) -> str:
    """Encode a file of documents as one shard of a token stream: `output` (.bin), its .idx, and the sidecar of `output`.

    An end of text follows each document if the tokenizer has one. All objectives that read a stream share it. Arguments are
    those of `relm.examples.builders.pregenerate`; the language has no effect.
    """
    started = perf_counter()
    loaded = load_tokenizer(tokenizer)
    counts, dtype = ExampleCounts(), dtype_of(loaded.vocabulary_size)
    encode = functools.partial(
        encode_chunk,
        tokenizer=loaded.path,
        tokenizer_sha256=loaded.sha256,
        dtype=dtype,
        end_of_text_id=loaded.special.end_of_text,
    )
    task = f"encoding {documents}"
    with check_in_background(documents) as checked:
        with (
            shard_writer(output, loaded.vocabulary_size) as shard,
            contextlib.closing(map_documents(encode, [documents], workers, task, numbered=False)) as chunks,
        ):
            for _, chunk in chunks:
                shard.append(chunk.tokens, chunk.sizes)
                counts.add(len(chunk.tokens), len(chunk.sizes), chunk.words, chunk.bytes, chunk.sizes)
            checked()
        source, may_be_empty = checked()
    if not shard.documents and not may_be_empty:
        output.unlink()
        index_of(output).unlink()
        raise RelmError(f"{documents}: holds no documents; extract them again")
    write_hashed_sidecar(
        output,
        shard.sha256,
        objective="causal",
        layout=objective.layout,
        dtype=shard.dtype,
        tokens=counts.tokens,
        documents=counts.documents,
        tokenizer_sha256=loaded.sha256,
        vocabulary_size=loaded.vocabulary_size,
        special=asdict(loaded.special),
        settings=objective.stored_keys(),
        idx_sha256=shard.index_sha256,
        source=source,
        words=counts.words,
        bytes=counts.bytes,
        length_histogram=counts.length_histogram,
    )
    seconds = perf_counter() - started
    return (
        f"encoded {shard.documents:,} documents with {counts.words:,} words as {shard.tokens:,} tokens in {seconds:.1f} s; "
        f"{shard.tokens / seconds:,.0f} tokens/s"
    )


@contextlib.contextmanager
def check_in_background(documents: Path) -> Iterator[Callable[[], tuple[str, bool]]]:
    """Run `checked_documents` in a thread while the block runs.

    Yields a function that waits for its result, or raises its error; the block calls it before its outputs appear. If the block
    fails and the file has changed, the change is the error that is raised, because it may be the cause.
    """
    require_documents(documents)
    check: Future[tuple[str, bool]] = Future()

    def run() -> None:
        try:
            check.set_result(checked_documents(documents))
        except Exception as error:  # raised where the result is used
            check.set_exception(error)

    threading.Thread(target=run, daemon=True).start()  # Ctrl-C does not wait for it
    try:
        yield check.result
    except RelmError:
        check.result()
        raise
