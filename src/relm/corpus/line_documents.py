"""Documents in files of lines: one a line, one sentence a line, or the articles of WikiText."""

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from relm.corpus.documents import LONGEST, Document, Encoded, Skipped, encoded
from relm.corpus.lines import LineBlock, line_blocks, lines_in, lines_of
from relm.errors import RelmError
from relm.formatting import format_bytes
from relm.recipes.datasets import Dataset

# Characters of documents that travel to a worker at once.
BATCH = 1 << 20

# A heading of the first level, as in " = Robert Boulter = "; that of the second begins with " = = ".
_HEADING = re.compile(r" = (?!= )(\S(?:.*\S)?) = ?")

# (number of its first line, title, text)
NumberedText = tuple[int, str, str]


# --- one document a line ---------------------------------------------------------------------------------------------------


def batches_of_lines(dataset: Dataset, path: Path) -> Iterator[LineBlock]:
    """The lines of a file, in blocks."""
    return line_blocks(path)


def documents_of_lines(dataset: Dataset, file: str, block: LineBlock) -> Iterator[Encoded | Skipped]:
    """Each line that is not blank, called FILE:LINE; its text decides the split."""
    for number, line in lines_of(block):
        if line.strip():
            name = f"{file}:{number}"
            yield encoded(Document(name, name, line), decided_by=line)
        else:
            yield Skipped("empty")


# --- one sentence a line ---------------------------------------------------------------------------------------------------


def batches_of_sentences(dataset: Dataset, path: Path) -> Iterator[list[NumberedText]]:
    """The documents of a file with one sentence a line and blank lines between documents."""
    return _batches(_sentence_documents(path))


def _sentence_documents(path: Path) -> Iterator[NumberedText]:
    lines: list[tuple[int, str]] = []
    length = 0
    for number, line in itertools.chain(lines_in(path), [(0, "")]):
        if line.strip():
            lines.append((number, line))
            length += len(line) + 1
        elif lines:
            yield _joined(lines)
            lines, length = [], 0
        if length > LONGEST:
            raise _too_long(path, lines[0][0], "put blank lines between documents, or read it with format: text_lines")


def documents_of_sentences(dataset: Dataset, file: str, batch: list[NumberedText]) -> Iterator[Encoded]:
    """Each document, its sentences still one a line, called FILE:LINE; its text decides the split."""
    for number, _, text in batch:
        name = f"{file}:{number}"
        yield encoded(Document(name, name, text), decided_by=text)


# --- articles of WikiText --------------------------------------------------------------------------------------------------


def batches_of_articles(dataset: Dataset, path: Path) -> Iterator[list[NumberedText]]:
    """The articles of a WikiText file, raw or processed: https://arxiv.org/abs/1609.07843.

    An article begins at a heading of the first level between two blank lines; a line in the form of a heading that stands in
    the middle of a text, as formulas and legends of tables do, begins none. What precedes the first heading belongs to the
    first article. The texts, joined by line ends, are all lines of the file.

    Raises:
        RelmError: there is no heading.
    """
    return _batches(_articles(path))


def _articles(path: Path) -> Iterator[NumberedText]:
    title = None
    lines: list[tuple[int, str]] = []
    length, follows_blank = 0, True
    # One line ahead is read: a heading has a blank line after it.
    for (number, line), (_, following) in itertools.pairwise(itertools.chain(lines_in(path), [(0, "")])):
        heading = _HEADING.fullmatch(line) if follows_blank and not following.strip() else None
        if heading and title is not None:
            yield _joined(lines, title)
            lines, length = [], 0
        title = heading[1] if heading else title
        lines.append((number, line))
        length += len(line) + 1
        follows_blank = not line.strip()
        if length > LONGEST:
            raise _too_long(path, lines[0][0], "is this a WikiText file?")
    if title is not None:
        yield _joined(lines, title)
    elif lines:
        raise RelmError(
            f"{path}: no heading of the first level, such as ' = Robert Boulter = ' between blank lines: "
            "is this a WikiText file? text_lines and text_sentences read other texts"
        )


def documents_of_articles(dataset: Dataset, file: str, batch: list[NumberedText]) -> Iterator[Encoded]:
    """Each article with its heading and blank lines, called FILE:LINE; its title decides the split."""
    for number, title, text in batch:
        yield encoded(Document(f"{file}:{number}", title, text))


# --- all of them -----------------------------------------------------------------------------------------------------------


def _joined(lines: list[tuple[int, str]], title: str = "") -> NumberedText:
    return lines[0][0], title, "\n".join(line for _, line in lines)


def _too_long(path: Path, line: int, hint: str) -> RelmError:
    return RelmError(f"{path}, line {line}: the document that begins here exceeds {format_bytes(LONGEST)}; {hint}")


def _batches(texts: Iterable[NumberedText]) -> Iterator[list[NumberedText]]:
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
