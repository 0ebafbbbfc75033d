"""Cut a dump into pieces that many processes can decompress and read, and join the pages that are cut.

A piece of a bzip2 file is a few of its blocks, which the reading process decompresses; a piece of another file is XML. A page
ends at ``</page>``, so a piece has three parts: the rest of a page that began before it, whole pages, and the beginning of a
page that ends after it. The first and the last part go back to the process that cut the file; its `DumpParser` gets the end of
one piece and the beginning of the next.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from relm.corpus.documents import Skipped
from relm.corpus.wikipedia.bzip2_blocks import DamagedBlock
from relm.corpus.wikipedia.dump import PAGE_END, DumpParser, Page, PartStart, Wiki
from relm.corpus.wikipedia.dump_files import Content, read_contents, read_xml
from relm.errors import RelmError

Made = TypeVar("Made")


class DumpPiece(NamedTuple):
    """A part of a dump's file."""

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
    damage: str = ""
    """The fault of a block that cannot be decompressed; then the XML is empty."""


# --- in any process --------------------------------------------------------------------------------------------------------


def read_piece(piece: DumpPiece, make: Callable[[Page | Skipped, Wiki], Made]) -> PieceRead[Made]:
    """Return what a function makes of the whole pages of a piece, and the XML around them.

    If the whole pages are not well-formed by themselves, all becomes XML ``before``: its meaning depends on the XML before the
    piece, as inside a comment.
    """
    try:
        xml = read_xml(piece.path, piece.content)
    except DamagedBlock as damage:
        return PieceRead(piece, b"", [], b"", 0, 0, str(damage))
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
    """Cuts a dump into pieces, and joins what ``make`` makes of their pages.

    ``ends_mid_page``: the file is the beginning of a longer one.
    """

    def __init__(
        self,
        path: Path,
        make: Callable[[Page | Skipped, Wiki], Made],
        ends_mid_page: bool = False,
        language: str = "und",
    ) -> None:
        self.path = path
        self._make = make
        self._ends_mid_page = ends_mid_page
        self._parser = DumpParser(path, ends_mid_page, language=language)
        self._first: list[Page | Skipped] = []
        self._first_fault: RelmError | None = None
        self._pending = b""
        self._byte = self._line = 0

    def cut(self) -> Iterator[DumpPiece]:
        """Yield the pieces in order, at least one, after reading up to the end of the first page."""
        contents = read_contents(self.path)
        yield self._read_beginning(contents)
        if not self._first_fault:
            yield from (DumpPiece(self.path, self._parser.wiki, content) for content in contents)

    def join(self, read: PieceRead[Made]) -> Iterator[Made]:
        """Yield the outcomes of the pages up to the last one that ends in a piece; pieces come in order."""
        yield from self._take_first()
        if read.damage:
            raise self._refuse(read.damage)
        self._pending, xml = b"", self._pending + read.before
        yield from self._feed(xml)
        if len(read.before) < read.size:
            if self._parser.is_between_pages and self._parser.wiki == read.piece.wiki:
                yield from read.pages
                self._begin_after(read)
            else:
                # Its pages are inside something else, such as a comment.
                yield from self._feed(read_xml(self.path, read.piece.content)[len(read.before) :])
        self._byte, self._line = self._byte + read.size, self._line + read.lines

    def finish(self) -> Iterator[Made]:
        """Yield the outcomes after the last piece."""
        yield from self._take_first()
        yield from self._feed(self._pending)
        yield from self._make_all(self._parser.finish())

    # --- parts of these ----------------------------------------------------------------------------------------------------

    def _read_beginning(self, contents: Iterator[Content]) -> DumpPiece:
        """Read up to the end of the first page, and return the rest of the content that has it."""
        for content in contents:
            try:
                xml = read_xml(self.path, content)
            except DamagedBlock as damage:
                raise self._refuse(str(damage)) from None
            begin = xml.find(PAGE_END) + len(PAGE_END)
            head = xml if begin < len(PAGE_END) else xml[:begin]
            self._byte, self._line = self._byte + len(head), self._line + head.count(b"\n")
            pages, self._first_fault = self._parser.feed(head)
            self._first += pages
            if self._first_fault or begin >= len(PAGE_END):
                return DumpPiece(self.path, self._parser.wiki, xml[len(head) :])
        return DumpPiece(self.path, self._parser.wiki, b"")

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
        line = self._line + read.lines - read.after.count(b"\n")
        self._parser.close()
        self._parser = DumpParser(self.path, self._ends_mid_page, PartStart(byte, line, read.piece.wiki))
        self._pending = read.after

    def _refuse(self, damage: str) -> RelmError:
        return RelmError(f"{self.path}: the compressed file is damaged: {damage}; download it again")
