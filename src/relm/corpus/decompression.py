"""Decompress a file as a stream, in bounded memory."""

import bz2
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol

from relm.errors import RelmError
from relm.progress import ProgressBar

BLOCK = 1 << 20  # bytes to decompress at once
LARGEST_XZ_MEMORY = 256 << 20  # bytes of the decoder, which an .xz file chooses; `xz -9` takes 65 MiB
SIGNATURES = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x5d\x00\x00\x80": "xz"}


class Readable(Protocol):
    """An open file of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, none at the end."""


def find_compression(head: bytes) -> str | None:
    """Return the compression of a file from its first 8 bytes; None: not compressed."""
    return next((kind for signature, kind in SIGNATURES.items() if head.startswith(signature)), None)


def open_decompressed(raw: IO[bytes], compression: str | None, stack: contextlib.ExitStack) -> Readable:
    """Return the content of a file, plain or compressed by gzip, bzip2 or xz (.lzma too), as a stream that a stack closes."""
    if compression == "gzip":
        return stack.enter_context(gzip.open(raw, "rb"))
    if compression == "bzip2":
        return stack.enter_context(bz2.open(raw, "rb"))
    if compression == "xz":
        return stack.enter_context(io.BufferedReader(_XzReader(raw)))
    return raw


def open_content(raw: IO[bytes], stack: contextlib.ExitStack) -> Readable:
    """Return the content of a file, decompressed as its first bytes require."""
    head = raw.read(8)
    raw.seek(0)
    return open_decompressed(raw, find_compression(head), stack)


def read_decompressed(path: Path) -> Iterator[bytes]:
    """Yield the content of a plain or compressed file in blocks of at most `BLOCK` bytes, with a progress bar."""
    with refuse_damage(path), open(path, "rb") as raw, contextlib.ExitStack() as stack:
        bar = stack.enter_context(reading_bar(path))
        file = open_content(raw, stack)
        while block := file.read(BLOCK):
            bar.update(raw.tell() - bar.n)
            yield block


def reading_bar(path: Path) -> ProgressBar:
    """Return a bar that counts the bytes of a file as they are read."""
    return ProgressBar(total=path.stat().st_size, desc=path.name, unit="B", unit_scale=True, disable=None)


@contextlib.contextmanager
def refuse_damage(path: Path) -> Iterator[None]:
    """Raise RelmError with the file's name if it cannot be read, is truncated or damaged."""
    try:
        yield
    except EOFError:
        size = path.stat().st_size
        raise RelmError(f"{path}: the compressed file is truncated after {size} bytes; download it again") from None
    except (zlib.error, lzma.LZMAError) as error:
        raise RelmError(f"{path}: the compressed file is damaged ({error}); download it again") from None
    except OSError as error:
        hint = "check the path" if error.errno else "the compressed file is damaged, download it again"
        raise RelmError(f"{path}: cannot be read: {error.strerror or error}; {hint}") from None


class _XzReader(io.RawIOBase):
    """The content of an .xz file with any number of streams; `lzma.open` would let the file choose the decoder's memory."""

    def __init__(self, compressed: IO[bytes]) -> None:
        super().__init__()
        self._compressed = compressed
        self._decompressor = lzma.LZMADecompressor(memlimit=LARGEST_XZ_MEMORY)
        self._pending = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)
        block = b""
        while not block and self._has_more():
            block = self._decompress(len(view))
        view[: len(block)] = block
        return len(block)

    def _has_more(self) -> bool:
        """Return whether more content follows; zeros between streams are padding."""
        if not self._decompressor.eof:
            return True
        rest = self._decompressor.unused_data.lstrip(b"\0")
        while not rest and (block := self._compressed.read(io.DEFAULT_BUFFER_SIZE)):
            rest = block.lstrip(b"\0")
        if not rest:
            return False
        self._decompressor = lzma.LZMADecompressor(memlimit=LARGEST_XZ_MEMORY)
        self._pending = rest
        return True

    def _decompress(self, most: int) -> bytes:
        if self._pending:
            compressed, self._pending = self._pending, b""
        elif self._decompressor.needs_input:
            compressed = self._compressed.read(io.DEFAULT_BUFFER_SIZE)
            if not compressed:
                raise EOFError("the compressed file ends before its end-of-stream marker")
        else:
            compressed = b""
        return self._decompressor.decompress(compressed, most)
