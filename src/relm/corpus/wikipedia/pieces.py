"""Cut a dump into pieces that many processes can decompress and read, and put together the pages that lie in two pieces.

A piece of a bzip2 file is a few of its blocks, which the process that reads the piece decompresses; a piece of another file is
XML. A page ends at ``</page>``, so a piece has three parts: the rest of a page that began before it, whole pages, and the
beginning of a page that ends after it. The first and the last part go back to the process that cut the file; its `DumpParser`
gets the end of one piece and the beginning of the next.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from tqdm import tqdm

from relm.corpus.documents import Skipped
from relm.corpus.wikipedia.bzip2_blocks import DamagedBlock
from relm.corpus.wikipedia.dump import PAGE_BEGIN, PAGE_END, DumpParser, Page, PartStart, Wiki
from relm.corpus.wikipedia.dump_files import Content, read_contents, read_xml
from relm.errors import RelmError

Made = TypeVar("Made")


class DumpPiece(NamedTuple):
    """A part of a dump that lies at one place in its file."""

    path: Path
    wiki: Wiki
    content: Content


class PieceRead(NamedTuple, Generic[Made]):
    """The result of reading a piece."""

    piece: DumpPiece
    before: bytes
    """XML up to the end of the first page that ends in the piece."""
    pages: list[Made]
    """Results for the whole pages."""
    after: bytes
    """XML after the last page that ends in the piece."""
    size: int
    """Bytes of the XML."""
    lines: int
    """Line breaks of the XML."""
    damaged: bool = False
    """A block of it cannot be decompressed; then there is no XML."""


# --- in any process --------------------------------------------------------------------------------------------------------


def read_piece(piece: DumpPiece, make: Callable[[Page | Skipped, Wiki], Made]) -> PieceRead[Made]:
    """Return what a function makes of the whole pages of a piece, and the XML around them.

    If the whole pages are not well-formed by themselves, all is returned as XML ``before``: what it means depends on the XML
    before the piece, as inside a comment.
    """
    try:
        xml = read_xml(piece.path, piece.content)
    except DamagedBlock:
        return PieceRead(piece, b"", [], b"", 0, 0, damaged=True)
    begin = xml.find(PAGE_END) + len(PAGE_END)
    end = xml.rfind(PAGE_END) + len(PAGE_END)
    made: list[Made] = []
    if len(PAGE_END) <= begin < end:
        parser = DumpParser(piece.path, start=PartStart(0, 0, piece.wiki))
        pages, fault = parser.feed(xml[begin:end])
        if fault or not parser.is_between_pages:
            begin = end = len(xml)
        else:
            made = [make(page, piece.wiki) for page in pages]
        parser.close()
    elif begin < len(PAGE_END):
        begin = end = len(xml)
    return PieceRead(piece, xml[:begin], made, xml[end:], len(xml), xml.count(b"\n"))


# --- in the process that cuts the file -------------------------------------------------------------------------------------


class PiecedDump(Generic[Made]):
    """A dump that is cut into pieces, and put together again from what ``make`` made of their pages.

    ``ends_mid_page``: the file is the beginning of a longer one. ``skip_damaged_blocks``: blocks of bzip2 that cannot be
    decompressed are skipped, with the pages that are partly in them.
    """

    def __init__(
        self,
        path: Path,
        make: Callable[[Page | Skipped, Wiki], Made],
        ends_mid_page: bool = False,
        skip_damaged_blocks: bool = False,
        language: str = "und",
    ) -> None:
        self.path = path
        self._make = make
        self._ends_mid_page = ends_mid_page
        self._skip_damaged_blocks = skip_damaged_blocks
        self._parser = DumpParser(path, ends_mid_page, language=language)
        self._first: list[Page | Skipped] = []
        self._first_fault: RelmError | None = None
        self._pending = b""
        self._is_seeking = False
        self._passed = b""
        self._byte = self._line = 0

    def cut(self) -> Iterator[DumpPiece]:
        """Yield the pieces in order, at least one. What comes before the first page, and this page, is read here."""
        contents = read_contents(self.path)
        yield self._read_beginning(contents)
        if not self._first_fault:
            yield from (DumpPiece(self.path, self._parser.wiki, content) for content in contents)

    def join(self, read: PieceRead[Made]) -> Iterator[Made]:
        """Yield what becomes of the pages up to the end of the last in a piece; the pieces come in their order."""
        yield from self._take_first()
        if read.damaged:
            yield from self._join_damaged(read.piece)
            return
        before = self._seek(read.before)
        self._pending, xml = b"", self._pending + before
        yield from self._feed(xml)
        if len(read.before) < read.size:
            if self._is_seeking or (self._parser.is_between_pages and self._parser.wiki == read.piece.wiki):
                yield from read.pages
                self._begin_after(read)
            else:
                # What looks like pages is inside something else, such as a comment.
                yield from self._feed(read_xml(self.path, read.piece.content)[len(read.before) :])
        self._byte, self._line = self._byte + read.size, self._line + read.lines

    def finish(self) -> Iterator[Made]:
        """Yield what the end of the file means."""
        yield from self._take_first()
        yield from self._feed(self._pending)
        if not self._is_seeking:
            yield from self._make_all(self._parser.finish())

    # --- parts of these ----------------------------------------------------------------------------------------------------

    def _read_beginning(self, contents: Iterator[Content]) -> DumpPiece:
        """Read up to the end of the first page, and return the rest of the content that has it.

        Content with a damaged block is returned whole if the header is before it.
        """
        has_header = False
        for content in contents:
            try:
                xml = read_xml(self.path, content)
            except DamagedBlock as damage:
                if has_header:
                    return DumpPiece(self.path, self._parser.wiki, content)
                raise self._refuse_header(damage) from None
            has_header = has_header or PAGE_BEGIN in xml
            begin = xml.find(PAGE_END) + len(PAGE_END)
            head = xml if begin < len(PAGE_END) else xml[:begin]
            self._byte, self._line = self._byte + len(head), self._line + head.count(b"\n")
            pages, self._first_fault = self._parser.feed(head)
            self._first += pages
            if self._first_fault or begin >= len(PAGE_END):
                return DumpPiece(self.path, self._parser.wiki, xml[len(head) :])
        return DumpPiece(self.path, self._parser.wiki, b"")

    def _seek(self, xml: bytes) -> bytes:
        """Return XML from the next page on, for a new parser; all of it unless pages were skipped before."""
        if not self._is_seeking:
            return xml
        before, xml = len(self._passed), self._passed + xml  # the beginning of a page may lie in two pieces
        begin = xml.find(PAGE_BEGIN)
        if begin < 0:
            self._passed = xml[1 - len(PAGE_BEGIN) :]
            return b""
        self._begin_at(self._byte + begin - before, self._line + xml.count(b"\n", before, begin), self._parser.wiki)
        return xml[begin:]

    def _begin_at(self, byte: int, line: int, wiki: Wiki) -> None:
        self._parser.close()
        self._parser = DumpParser(self.path, self._ends_mid_page, PartStart(byte, line, wiki))
        self._is_seeking, self._passed = False, b""

    def _take_first(self) -> Iterator[Made]:
        pages, self._first = self._first, []
        yield from self._make_all(pages)
        if self._first_fault:
            raise self._first_fault

    def _feed(self, xml: bytes) -> Iterator[Made]:
        pages, fault = self._parser.feed(xml)
        yield from self._make_all(pages)
        if fault:
            raise fault

    def _make_all(self, pages: Iterable[Page | Skipped]) -> Iterator[Made]:
        return (self._make(page, self._parser.wiki) for page in pages)

    def _begin_after(self, read: PieceRead[Made]) -> None:
        """Let a new parser begin after the last page of a piece."""
        byte = self._byte + read.size - len(read.after)
        self._begin_at(byte, self._line + read.lines - read.after.count(b"\n"), read.piece.wiki)
        self._pending = read.after

    # --- damaged blocks ----------------------------------------------------------------------------------------------------

    def _join_damaged(self, piece: DumpPiece) -> Iterator[Made]:
        """Join the blocks of a piece one by one, and skip those that cannot be decompressed."""
        assert not isinstance(piece.content, bytes)
        for block in piece.content:
            try:
                xml = read_xml(self.path, (block,))
            except DamagedBlock as damage:
                if not self._skip_damaged_blocks:
                    raise self._refuse(damage) from None
                tqdm.write(f"warning: {self.path}: {damage}; skipped, with the pages that are partly in it", file=sys.stderr)
                yield self._make(Skipped("damaged_blocks"), piece.wiki)
                self._pending, self._is_seeking, self._passed = b"", True, b""
            else:
                yield from self.join(read_piece(piece._replace(content=xml), self._make))

    def _refuse_header(self, damage: DamagedBlock) -> RelmError:
        return RelmError(
            f"{self.path}: the compressed file is damaged before its first page: {damage}; download it again, since the "
            "header there is needed to read the pages"
        )

    def _refuse(self, damage: DamagedBlock) -> RelmError:
        return RelmError(
            f"{self.path}: the compressed file is damaged: {damage}; download it again, or set "
            "`skip_damaged_blocks: true` to do without its pages"
        )
