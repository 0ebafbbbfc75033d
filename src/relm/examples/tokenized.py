"""Encode a file of documents sentence by sentence, for the builders of masked examples.

The arrays are memory-maps of unnamed temporary files, so memory does not grow with the documents.
"""

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from relm.corpus.sentences import split_sentences
from relm.errors import RelmError
from relm.examples.documents import Lines, checked_documents, counts_of
from relm.examples.mapped_documents import map_documents
from relm.examples.storage import DTYPES, dtype_of
from relm.examples.tokenization.encoder import load_encoder
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer

Sentences = Literal["split", "lines"]


class TokenizedDocuments(NamedTuple):
    """The concatenated documents of a file."""

    tokens: npt.NDArray[np.integer]
    """(n,), uint16 or int32."""
    word_starts: npt.NDArray[np.bool_]
    """(n,), True for a token that begins a word."""
    sentence_starts: npt.NDArray[np.int64]
    """(sentences + 1,), start of each sentence in `tokens`, and their end."""
    document_starts: npt.NDArray[np.int64]
    """(documents + 1,), start of each document in `sentence_starts`, and their end."""
    words: int
    """Whitespace-separated words of the source text."""
    bytes: int
    """Bytes of the source text in UTF-8."""
    source_sha256: str
    """sha256 of the file."""
    loaded: LoadedTokenizer


class Part(NamedTuple):
    """The documents of some lines."""

    tokens: npt.NDArray[np.int32]
    word_starts: npt.NDArray[np.bool_]
    sentence_sizes: npt.NDArray[np.int32]
    document_sizes: npt.NDArray[np.int32]
    """Count of sentences in each document."""
    words: int
    bytes: int


@contextlib.contextmanager
def tokenize_documents(
    documents: Path,
    tokenizer: Path,
    sentences: Sentences,
    language: str,
    workers: int | None = None,
    stripped_lines: bool = False,
    folder: Path | None = None,
) -> Iterator[TokenizedDocuments]:
    """Encode all documents of a file, sentence by sentence; the arrays live as long as the block.

    Sentences and documents without a token are left out. If `sentences` is split, a splitter divides each line by the rules of
    the language and loses no character; if it is lines, a line is a sentence. The number of workers (None: one per core)
    changes no byte. Temporary files are in `folder`, by default that of the documents.
    """
    loaded = load_tokenizer(tokenizer)
    source, _ = checked_documents(documents)
    encode = functools.partial(
        encode_part,
        tokenizer=loaded.path,
        tokenizer_sha256=loaded.sha256,
        split=functools.partial(list_sentences, sentences=sentences, language=language, stripped_lines=stripped_lines),
    )
    with _Spool(documents, folder or documents.parent, loaded.vocabulary_size) as spool:
        spool.fill(encode, workers)
        tokens, word_starts, sentence_starts, document_starts = spool.arrays()
        yield TokenizedDocuments(
            tokens, word_starts, sentence_starts, document_starts, spool.words, spool.bytes, source, loaded
        )


def encode_part(lines: Lines, *, tokenizer: Path, tokenizer_sha256: str, split: Callable[[str], list[str]]) -> Part:
    """Encode the documents of some lines of a documents file; `split` returns the sentences of one."""
    texts = lines.texts()
    sentences = list(map(split, texts))
    encoder = load_encoder(tokenizer, tokenizer_sha256)
    ragged, word_starts = encoder.with_word_starts(list(chain.from_iterable(sentences)))
    words, text_bytes = counts_of(texts)
    document_sizes = _kept_of_each(sentences, ragged.sizes)
    return Part(ragged.tokens, word_starts, ragged.sizes[ragged.sizes > 0], document_sizes, words, text_bytes)


def list_sentences(text: str, sentences: Sentences, language: str, stripped_lines: bool) -> list[str]:
    """Return the sentences of a document that are not blank, in order."""
    lines = text.split("\n")
    if stripped_lines:
        lines = [line.strip() for line in lines]
    lines = [line for line in lines if line and not line.isspace()]
    if sentences == "lines":
        return lines
    return list(chain.from_iterable(split_sentences(line, language) for line in lines))


def _kept_of_each(sentences: Sequence[Sequence[str]], sizes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return how many sentences with tokens each document has, without those that have none."""
    counts = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
    document = np.repeat(np.arange(len(sentences)), counts)
    kept = np.bincount(document[sizes > 0], minlength=len(sentences)).astype(np.int32)
    return kept[kept > 0]


class _Spool:
    """The arrays of `TokenizedDocuments`, written part by part to unnamed files."""

    def __init__(self, documents: Path, folder: Path, vocabulary_size: int) -> None:
        self.documents, self.folder = documents, folder
        self.vocabulary_size = vocabulary_size
        self.types = (DTYPES[dtype_of(vocabulary_size)][0], "?", "<i8", "<i8")
        self.files: list[IO[bytes]] = []
        self.words = self.bytes = 0
        self._ends = [0, 0]

    def __enter__(self) -> "_Spool":
        with self._report_disk_errors():
            for _ in self.types:
                self.files.append(tempfile.TemporaryFile(dir=self.folder))
            for file in self.files[2:]:
                file.write(bytes(8))
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files:
            with contextlib.suppress(OSError):  # a full disk may leave data in a buffer
                file.close()

    def fill(self, encode: Callable[[Lines], Part], workers: int | None) -> None:
        """Encode and write all documents."""
        task = f"encoding {self.documents}"
        with contextlib.closing(map_documents(encode, [self.documents], workers, task, numbered=False)) as parts:
            for _, part in parts:
                with self._report_disk_errors():
                    self._append(part)

    def arrays(self) -> Iterator[npt.NDArray[Any]]:
        """Yield memory-maps of the written files."""
        with self._report_disk_errors():
            for file, dtype in zip(self.files, self.types, strict=True):
                file.flush()
                yield np.memmap(file, dtype=dtype, mode="r") if file.tell() else np.empty(0, dtype)

    def _append(self, part: Part) -> None:
        if len(part.tokens) and not 0 <= int(part.tokens.min()) <= int(part.tokens.max()) < self.vocabulary_size:
            raise RelmError(
                f"{self.documents}: token ids {part.tokens.min()} to {part.tokens.max()}, but the vocabulary has 0 to "
                f"{self.vocabulary_size - 1}: the tokenizer is inconsistent; make it again"
            )
        self.files[0].write(part.tokens.astype(self.types[0]).data)
        self.files[1].write(part.word_starts.data)
        self._append_starts(0, part.sentence_sizes)
        self._append_starts(1, part.document_sizes)
        self.words += part.words
        self.bytes += part.bytes

    def _append_starts(self, level: int, sizes: npt.NDArray[np.int32]) -> None:
        if len(sizes):
            starts = self._ends[level] + np.cumsum(sizes, dtype="<i8")
            self.files[2 + level].write(starts.data)
            self._ends[level] = int(starts[-1])

    @contextlib.contextmanager
    def _report_disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RelmError(
                f"{self.folder}: cannot hold a temporary file with the tokens of {self.documents}: {error.strerror or error}; "
                "nothing was changed"
            ) from None
