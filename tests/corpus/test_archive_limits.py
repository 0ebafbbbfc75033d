"""Archives that state more than they should: small to send, large to unpack. Memory stays small, and the reason is named."""

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from small_archives import tar_of, zip_of

from relm.corpus import archive, tar_members
from relm.corpus.download.source_faults import SourceFault

LARGE = 20_000_000
MEMORY = 10_000_000  # bytes that Python may hold at once for any archive: half of what these unpack to
LARGEST = 1000


def header(kind: bytes, size: int, name: str = "x", **more: str) -> bytes:
    """Return the header block of a tar member or of an extension of one."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = kind, size
    entry.pax_headers = more
    return entry.tobuf(tarfile.PAX_FORMAT if more else tarfile.GNU_FORMAT)


def sparse_blocks(count: int) -> bytes:
    """Return a member with a map of holes, as GNU tar wrote it once, whose blocks each announce another one."""
    block = bytearray(header(tarfile.GNUTYPE_SPARSE, 0))
    block[482] = 1
    block[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(block))[0]
    more = (b"%011o\0" % 0) * 42
    return bytes(block) + (more + b"\1" + bytes(7)) * count


def sparse_map() -> bytes:
    """Return a member with a map of holes in its content, as GNU tar writes it, which goes on for ever."""
    marks = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1"}
    return header(tarfile.REGTYPE, LARGE, **marks) + b"999999999\n" + (b"1" * 99 + b"\n") * (LARGE // 100)


def zip_with_directory(size: int) -> bytes:
    """Return a zip archive whose directory has `size` bytes."""
    return b"PK\x03\x04" + bytes(size) + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, size, 4, 0)


LARGE_ARCHIVES: dict[str, tuple[Callable[[], bytes], str]] = {
    "pax header": (lambda: gzip.compress(header(tarfile.XHDTYPE, LARGE) + bytes(LARGE), 1), "a header of more than"),
    "global header": (lambda: gzip.compress(header(tarfile.XGLTYPE, LARGE) + bytes(LARGE), 1), "a header of more than"),
    "long name": (
        lambda: gzip.compress(header(tarfile.GNUTYPE_LONGNAME, LARGE) + b"x" * LARGE, 1),
        "a header of more than",
    ),
    "long link": (lambda: bz2.compress(header(tarfile.GNUTYPE_LONGLINK, LARGE) + bytes(LARGE)), "a header of more than"),
    "sparse blocks": (lambda: gzip.compress(sparse_blocks(LARGE // 512), 1), "a header of more than"),
    "sparse map": (lambda: gzip.compress(sparse_map(), 1), "a header of more than"),
    "zip directory": (lambda: zip_with_directory(LARGE), f"a directory of {LARGE:,} bytes"),
}


def read(content: bytes, folder: Path, member: str | None = "pack/thing", compression: str | None = None) -> bytes:
    path = folder / "archive"
    path.write_bytes(content)
    return b"".join(archive.read_content(path, member, compression, largest=LARGEST))


def fault_of(content: bytes, folder: Path, **more: str) -> str:
    with pytest.raises(SourceFault) as caught:
        read(content, folder, **more)
    return str(caught.value)


@pytest.mark.parametrize("kind", LARGE_ARCHIVES)
def test_a_large_header_is_not_taken_into_memory(kind: str, tmp_path: Path) -> None:
    make, reason = LARGE_ARCHIVES[kind]
    content = make()
    tracemalloc.start()
    try:
        message = fault_of(content, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY
    assert reason in message


def test_headers_of_all_members_are_limited_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_members, "LARGEST_TAR_HEADER", 5000)
    content = io.BytesIO()
    for number in range(9):
        record = f"comment{number}=" + "x" * 980
        record = f"{len(record) + 6} {record}\n"
        content.write(header(tarfile.XGLTYPE, len(record)) + record.encode().ljust(1024, b"\0") + header(tarfile.REGTYPE, 0))
    assert "global headers of more than 5,000 bytes" in fault_of(content.getvalue(), tmp_path)


def test_members_before_the_wanted_one_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {str(number): b"" for number in range(30)} | {"pack/thing": b"right"}
    monkeypatch.setattr(tar_members, "MOST_MEMBERS", 31)
    assert read(tar_of(members), tmp_path) == b"right"
    monkeypatch.setattr(tar_members, "MOST_MEMBERS", 30)
    assert "more than 30 members before pack/thing" in fault_of(tar_of(members), tmp_path)


def test_a_member_that_ends_far_behind_the_archive_is_not_searched_for(tmp_path: Path) -> None:
    holes = {"GNU.sparse.map": f"-{1 << 61},{1 << 61},0,9", "GNU.sparse.size": "100"}
    contents = {
        "out of proportion": header(tarfile.REGTYPE, 1 << 60) + b"content",
        "longer than the archive": header(tarfile.REGTYPE, 512, "pack/thing", **holes) + bytes(512),
    }
    for reason, content in contents.items():
        assert reason in fault_of(content, tmp_path)


def test_what_is_unpacked_before_the_wanted_member_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_members, "RATIO_ALLOWANCE", 1_000_000)
    content = tar_of({"other": bytes(5_000_000), "pack/thing": b"right"})
    assert "out of proportion to its size" in fault_of(content, tmp_path)
    monkeypatch.setattr(tar_members, "RATIO_ALLOWANCE", 5_100_000)
    assert read(content, tmp_path) == b"right"


def test_an_xz_file_does_not_choose_the_memory(tmp_path: Path) -> None:
    chosen = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
    content = bytearray(lzma.compress(b"right", filters=chosen))
    assert read(bytes(content), tmp_path, member=None, compression="xz") == b"right"
    at = content.index(b"\x21\x01", 12) + 2  # LZMA2, one byte of properties: the size of the dictionary
    content[at] = 39  # 3 GiB
    size = (content[12] + 1) * 4
    content[12 + size - 4 : 12 + size] = zlib.crc32(content[12 : 12 + size - 4]).to_bytes(4, "little")
    assert "Memory usage limit exceeded" in fault_of(bytes(content), tmp_path, member=None, compression="xz")


def test_an_xz_file_of_several_streams_is_read_to_its_end(tmp_path: Path) -> None:
    content = lzma.compress(b"ri") + bytes(8) + lzma.compress(b"ght") + bytes(4)
    assert read(content, tmp_path, member=None, compression="xz") == b"right"


def zip_of_kind(change: Callable[[zipfile.ZipFile], None], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as file:
        file.writestr("pack/thing", b"right")
        change(file)
    return content.getvalue()


def far_away(file: zipfile.ZipFile) -> None:
    file.filelist[0].header_offset = (1 << 64) - 1


def encrypted(file: zipfile.ZipFile) -> None:
    file.filelist[0].flag_bits |= 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (zip_of_kind(far_away), "damaged or truncated"),
        (zip_of_kind(encrypted), "is encrypted"),
        (zip_of_kind(lambda file: None, zipfile.ZIP_BZIP2), "compressed by zip's method 12, expected 0 or 8"),
        (zip_of_kind(lambda file: None, zipfile.ZIP_LZMA), "compressed by zip's method 14, expected 0 or 8"),
    ],
    ids=["offset", "encrypted", "bzip2", "lzma"],
)
def test_a_zip_archive_that_cannot_be_read_is_a_fault(content: bytes, reason: str, tmp_path: Path) -> None:
    assert reason in fault_of(content, tmp_path)


def test_many_long_names_stay_out_of_the_message(tmp_path: Path) -> None:
    names = {f"{number}-" + "x" * 60_000: b"" for number in range(20)}
    assert len(fault_of(zip_of(names), tmp_path)) < 1000
    assert len(fault_of(tar_of(names), tmp_path)) < 1000
