"""Cut a dump into pieces that many processes can decompress and read, and put together the pages that lie in two pieces.

A piece of a bzip2 file is a few of its blocks, which the process that reads the piece decompresses; a piece of another file is
XML. A page ends at ``</page>``, so a piece has three parts: the rest of a page that began before it, whole pages, and the
beginning of a page that ends after it. The first and the last part go back to the process that cut the file; its `DumpParser`
gets the end of one piece and the beginning of the next.
"""

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from tqdm import tqdm

from relm.corpus.bzip2_blocks import Block, DamagedBlock, decompress_block, find_blocks
from relm.corpus.decompression import find_compression, read_decompressed, reading_bar, refuse_damage
from relm.corpus.documents import Skipped
from relm.corpus.wikipedia import PAGE_BEGIN, PAGE_END, DumpParser, Page, PartStart, Wiki
from relm.errors import RelmError

Made = TypeVar("Made")

# Blocks of bzip2 in a piece, some 900 kB of XML each. A file of many streams has two in most of them.
BLOCKS = 2


class DumpPiece(NamedTuple):
    """A part of a dump that lies at one place in its file."""

    path: Path
    wiki: Wiki
    content: bytes | tuple[Block, ...]
    """XML, or the blocks that have it."""


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
        xml = _read_xml(piece)
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


def _read_xml(piece: DumpPiece) -> bytes:
    if isinstance(piece.content, bytes):
        return piece.content
    with open(piece.path, "rb") as file:
        return b"".join(decompress_block(file, block) for block in piece.content)


# --- in the process that cuts the file -------------------------------------------------------------------------------------


class PiecedDump(Generic[Made]):
    """A dump that is cut into pieces, and put together again from what was made of them.

    Args:
        make: returns what becomes of a page; also called here, for pages that lie in two pieces.
        ends_mid_page: the file is the beginning of a longer one.
        skip_damaged_blocks: blocks of bzip2 that cannot be decompressed are skipped, with the pages that are partly in them.
    """

    def __init__(
        self,
        path: Path,
        make: Callable[[Page | Skipped, Wiki], Made],
        ends_mid_page: bool = False,
        skip_damaged_blocks: bool = False,
    ) -> None:
        self.path = path
        self._make = make
        self._ends_mid_page = ends_mid_page
        self._skip_damaged_blocks = skip_damaged_blocks
        self._parser = DumpParser(path, ends_mid_page)
        self._first: list[Page | Skipped] = []
        self._first_fault: RelmError | None = None
        self._pending = b""
        self._is_lost = False
        self._byte = self._line = 0

    def cut(self) -> Iterator[DumpPiece]:
        """Yield the pieces in order, at least one. What comes before the first page, and this page, is read here.

        Raises:
            RelmError: the file is no dump, is truncated or is damaged. All pieces before the fault have been yielded by then.
        """
        contents = self._read_contents()
        for content in contents:
            xml = self._read_first(content)
            begin = xml.find(PAGE_END) + len(PAGE_END)
            head = xml if begin < len(PAGE_END) else xml[:begin]
            self._byte, self._line = self._byte + len(head), self._line + head.count(b"\n")
            pages, fault = self._parser.feed(head)
            self._first += pages
            self._first_fault = fault
            if fault or begin >= len(PAGE_END):
                yield DumpPiece(self.path, self._parser.wiki, xml[len(head) :])
                break
        else:
            yield DumpPiece(self.path, self._parser.wiki, b"")
        if self._first_fault:
            return
        yield from (DumpPiece(self.path, self._parser.wiki, content) for content in contents)

    def join(self, read: PieceRead[Made]) -> Iterator[Made]:
        """Yield what becomes of the pages up to the end of the last in a piece; the pieces come in their order.

        Raises:
            RelmError: the XML is not well-formed, or a block is damaged.
        """
        yield from self._take_first()
        if read.damaged:
            yield from self._join_damaged(read.piece)
            return
        before = self._find_page(read.before) if self._is_lost else read.before
        self._pending, xml = b"", self._pending + before
        yield from self._feed(xml)
        if len(read.before) < read.size:
            if self._is_lost or (self._parser.is_between_pages and self._parser.wiki == read.piece.wiki):
                yield from read.pages
                self._begin_after(read)
            else:
                # What looks like pages is inside something else, such as a comment.
                yield from self._feed(_read_xml(read.piece)[len(read.before) :])
        self._byte, self._line = self._byte + read.size, self._line + read.lines

    def finish(self) -> Iterator[Made]:
        """Yield what the end of the file means.

        Raises:
            RelmError: the file is no dump, or ends too early.
        """
        yield from self._take_first()
        yield from self._feed(self._pending)
        if not self._is_lost:
            yield from self._make_all(self._parser.finish())

    # --- parts of these ----------------------------------------------------------------------------------------------------

    def _read_contents(self) -> Iterator[bytes | tuple[Block, ...]]:
        with refuse_damage(self.path):
            with open(self.path, "rb") as file:
                compression = find_compression(file.read(8))
            if compression != "bzip2":
                yield from read_decompressed(self.path)
                return
            blocks = find_blocks(self.path)
            with reading_bar(self.path) as bar:
                # The first block alone, since the header is read from it before anything else.
                for size in itertools.chain([1], itertools.repeat(BLOCKS)):
                    content = tuple(itertools.islice(blocks, size))
                    if not content:
                        return
                    bar.update(content[-1].end // 8 - bar.n)
                    yield content

    def _read_first(self, content: bytes | tuple[Block, ...]) -> bytes:
        try:
            return _read_xml(DumpPiece(self.path, self._parser.wiki, content))
        except DamagedBlock as damage:
            raise self._refuse(damage) from None

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
        self._is_lost = False

    # --- damaged blocks ----------------------------------------------------------------------------------------------------

    def _join_damaged(self, piece: DumpPiece) -> Iterator[Made]:
        """Join the blocks of a piece one by one, and skip those that cannot be decompressed."""
        for block in piece.content:
            assert isinstance(block, Block)
            single = piece._replace(content=(block,))
            try:
                xml = _read_xml(single)
            except DamagedBlock as damage:
                if not self._skip_damaged_blocks:
                    raise self._refuse(damage) from None
                tqdm.write(f"warning: {self.path}: {damage}; skipped, with the pages that are partly in it", file=sys.stderr)
                yield self._make(Skipped("damaged_blocks"), piece.wiki)
                self._pending, self._is_lost = b"", True
            else:
                yield from self.join(read_piece(single._replace(content=xml), self._make))

    def _find_page(self, xml: bytes) -> bytes:
        """Return what comes after the rest of a page that is lost, from the next page on."""
        begin = xml.find(PAGE_BEGIN)
        if begin < 0:
            return b""
        line = self._line + xml.count(b"\n", 0, begin)
        self._parser = DumpParser(self.path, self._ends_mid_page, PartStart(self._byte + begin, line, self._parser.wiki))
        self._is_lost = False
        return xml[begin:]

    def _refuse(self, damage: DamagedBlock) -> RelmError:
        return RelmError(
            f"{self.path}: the compressed file is damaged: {damage}; download it again, or set "
            "`skip_damaged_blocks: true` to do without its pages"
        )
