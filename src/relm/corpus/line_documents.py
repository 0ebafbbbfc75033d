"""Read documents in line-based files: one document per line, one sentence per line, or the articles of WikiText."""

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from relm.corpus.documents import LONGEST, Document, Encoded, Skipped, encode_document
from relm.corpus.lines import LineBlock, read_line_blocks, read_lines, split_lines
from relm.errors import RelmError
from relm.formatting import format_bytes
from relm.recipes.datasets import Dataset

# Characters in one batch for a worker.
BATCH = 1 << 20

# A heading of the first level, such as " = Robert Boulter = "; one of the second begins with " = = ".
_HEADING = re.compile(r" = (?!= )(\S(?:.*\S)?) = ?")

# (number of its first line, title, text)
NumberedText = tuple[int, str, str]


# --- one document a line ---------------------------------------------------------------------------------------------------


def batch_lines(dataset: Dataset, path: Path) -> Iterator[LineBlock]:
    """Return the lines of a file, in blocks."""
    return read_line_blocks(path)


def extract_lines(dataset: Dataset, file: str, block: LineBlock) -> Iterator[Encoded | Skipped]:
    """Yield a document for each line that is not blank, named FILE:LINE; its text decides the split."""
    for number, line in split_lines(block):
        if line.strip():
            name = f"{file}:{number}"
            yield encode_document(Document(name, name, line), decided_by=line)
        else:
            yield Skipped("empty")


# --- one sentence a line ---------------------------------------------------------------------------------------------------


def batch_sentences(dataset: Dataset, path: Path) -> Iterator[list[NumberedText]]:
    """Yield the documents of a file with one sentence per line and blank lines between documents, in batches."""
    return _batch(_read_sentence_documents(path))


def _read_sentence_documents(path: Path) -> Iterator[NumberedText]:
    lines: list[tuple[int, str]] = []
    length = 0
    for number, line in itertools.chain(read_lines(path), [(0, "")]):
        if line.strip():
            lines.append((number, line))
            length += len(line) + 1
        elif lines:
            yield _concatenate(lines)
            lines, length = [], 0
        if length > LONGEST:
            raise _too_long(path, lines[0][0], "put blank lines between documents, or read it with format: text_lines")


def extract_sentences(dataset: Dataset, file: str, batch: list[NumberedText]) -> Iterator[Encoded]:
    """Yield each document, still with one sentence per line, named FILE:LINE; its text decides the split."""
    for number, _, text in batch:
        name = f"{file}:{number}"
        yield encode_document(Document(name, name, text), decided_by=text)


# --- articles of WikiText --------------------------------------------------------------------------------------------------


def batch_articles(dataset: Dataset, path: Path) -> Iterator[list[NumberedText]]:
    """Yield the articles of a WikiText file, raw or processed, in batches: https://arxiv.org/abs/1609.07843.

    An article begins at a heading of the first level between two blank lines; elsewhere in a text, formulas and legends of
    tables may look like headings. Text before the first heading belongs to the first article. The texts, concatenated with line
    ends, are all lines of the file.
    """
    return _batch(_read_articles(path))


def _read_articles(path: Path) -> Iterator[NumberedText]:
    title = None
    lines: list[tuple[int, str]] = []
    length, follows_blank = 0, True
    # Reads one line ahead: a heading has a blank line after it.
    for (number, line), (_, following) in itertools.pairwise(itertools.chain(read_lines(path), [(0, "")])):
        heading = _HEADING.fullmatch(line) if follows_blank and not following.strip() else None
        if heading and title is not None:
            yield _concatenate(lines, title)
            lines, length = [], 0
        title = heading[1] if heading else title
        lines.append((number, line))
        length += len(line) + 1
        follows_blank = not line.strip()
        if length > LONGEST:
            raise _too_long(path, lines[0][0], "is this a WikiText file?")
    if title is not None:
        yield _concatenate(lines, title)
    elif lines:
        raise RelmError(
            f"{path}: expected headings of the first level, such as ' = Robert Boulter = ' between blank lines; "
            "read text without them with format: text_lines or text_sentences"
        )


def extract_articles(dataset: Dataset, file: str, batch: list[NumberedText]) -> Iterator[Encoded]:
    """Yield each article with its heading and blank lines, named FILE:LINE; its title decides the split."""
    for number, title, text in batch:
        yield encode_document(Document(f"{file}:{number}", title, text))


# --- batches and errors ----------------------------------------------------------------------------------------------------


def _concatenate(lines: list[tuple[int, str]], title: str = "") -> NumberedText:
    return lines[0][0], title, "\n".join(line for _, line in lines)


def _too_long(path: Path, line: int, hint: str) -> RelmError:
    return RelmError(f"{path}, line {line}: the document that begins here exceeds {format_bytes(LONGEST)}; {hint}")


def _batch(texts: Iterable[NumberedText]) -> Iterator[list[NumberedText]]:
    batch: list[NumberedText] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text[2])
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
