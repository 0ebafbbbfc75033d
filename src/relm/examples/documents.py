"""The texts of extracted documents, which is all that tokenizers and examples want of them."""

from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

from relm.corpus.documents import parsed_document


def document_texts(lines: Iterable[bytes], path: Path, first_line: int = 1) -> Iterator[str]:
    """The text of each line of `path`; `lines` begin at line `first_line`.

    Raises:
        RelmError: a line is not a document; names the file and line.
    """
    for number, line in zip(count(first_line), lines, strict=False):
        yield parsed_document(line, f"{path}, line {number}").text


def first_texts(documents: list[Path], limit: int) -> Iterator[str]:
    """Texts of several files in order until their UTF-8 fills `limit` bytes; the last one is cut there, between characters."""
    left = limit
    for path in documents:
        with open(path, "rb") as lines:
            for text in document_texts(lines, path):
                encoded = text.encode()
                yield text if len(encoded) <= left else encoded[:left].decode("utf-8", "ignore")
                left -= len(encoded)
                if left <= 0:
                    return
