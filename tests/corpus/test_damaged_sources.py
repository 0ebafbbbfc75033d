"""Archives and pages with bytes changed or cut off: the right content, or a fault of the source, and no other exception."""

import io
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
from small_archives import COMPRESS, tar_of, zip_of

from relm.corpus.archive import read_content
from relm.corpus.download import sources
from relm.corpus.download.source_faults import SourceFault
from relm.recipes.files.remote_files import Source

SEED = random.SystemRandom().randrange(1 << 32)
PLACES = 120  # that are damaged in each kind of archive or page
THING = random.Random(1).randbytes(700) + bytes(700)


def damage(content: bytes, chance: random.Random) -> bytes:
    """Return content that is cut somewhere, or has a few other bytes in one place, a repetition or a gap."""
    at, kind = chance.randrange(len(content)), chance.randrange(5)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]
    if kind == 2:
        return content[:at] + chance.choice([b"\xff", b"\0", b"\x7f", b"-", b"9"]) * 8 + content[at + 8 :]
    if kind == 3:
        return content[:at] + content[max(0, at - 100) :]
    return content[:at] + content[at + chance.randrange(1, 20) :]


def damages(content: bytes) -> Iterator[bytes]:
    """Yield damaged copies of a content; the seed is in the report of a failure."""
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    for _ in range(PLACES):
        yield damage(content, chance)


def named_tar(kind: int, name: str) -> bytes:
    """Return a tar archive with a long name before the member, which takes a separate header."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=kind) as file:
        for member in (name, "pack/thing"):
            entry = tarfile.TarInfo(member)
            entry.size = len(THING)
            file.addfile(entry, io.BytesIO(THING))
    return archive.getvalue()


def sparse_tar() -> bytes:
    """Return a tar archive that has a sparse member with a map in pax headers, as GNU tar writes it."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as file:
        entry = tarfile.TarInfo("sparse")
        entry.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1000"}
        content = b"1\n0\n5\n".ljust(512, b"\0") + b"dense"
        entry.size = len(content)
        file.addfile(entry, io.BytesIO(content))
        entry = tarfile.TarInfo("pack/thing")
        entry.size = len(THING)
        file.addfile(entry, io.BytesIO(THING))
    return archive.getvalue()


MEMBERS = {"other": b"other", "pack/thing": THING}
ARCHIVES: dict[str, Callable[[], bytes]] = {
    "zip": lambda: zip_of(MEMBERS),
    "tar": lambda: tar_of(MEMBERS, "w"),
    "tar.gz": lambda: tar_of(MEMBERS, "w:gz"),
    "tar.bz2": lambda: tar_of(MEMBERS, "w:bz2"),
    "tar.xz": lambda: tar_of(MEMBERS, "w:xz"),
    "pax": lambda: named_tar(tarfile.PAX_FORMAT, "\u0103" * 300),
    "gnu": lambda: named_tar(tarfile.GNU_FORMAT, "x" * 300),
    "sparse": sparse_tar,
    **{kind: (lambda kind=kind: COMPRESS[kind](THING) + COMPRESS[kind](b"")) for kind in COMPRESS},
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_a_damaged_archive_gives_the_right_bytes_or_a_fault(kind: str, tmp_path: Path) -> None:
    archive = ARCHIVES[kind]()
    source = (None, kind) if kind in COMPRESS else ("pack/thing", None)

    def read(content: bytes) -> bytes:
        (tmp_path / "archive").write_bytes(content)
        return b"".join(read_content(tmp_path / "archive", *source, largest=len(THING)))

    assert read(archive) == THING
    faults = 0
    for content in damages(archive):
        try:
            read(content)  # the hash of the recipe refuses what is wrong
        except SourceFault:
            faults += 1
    assert faults


WHEEL = "set-1.0-py3-none-any.whl"
HTML = f'<!DOCTYPE html><a href="../{WHEEL}#sha256={"5" * 64}" data-requires-python="&gt;=3.9">a</a><!-- c --><![CDATA[x]]>'
# Pages that a chance change does not make.
FAULTY_PAGES = ["", "[" * 200_000, "null", "<![X[", "<![" * 1000, '<a href="http://[#sha256=5">', "<a " * 100_000]


def test_a_damaged_page_is_read_or_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def locate(content: str) -> None:
        monkeypatch.setattr(sources, "_fetch_page", lambda *_: ("https://index.example/simple/set/", content))
        with requests.Session() as session:
            sources.locate_source(Source(pypi="set==1.0", file=WHEEL, member="x"), session)

    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    locate(HTML)
    faults = 0
    for content in (*FAULTY_PAGES, *(damaged.decode(errors="replace") for damaged in damages(HTML.encode()))):
        try:
            locate(content)
        except SourceFault:
            faults += 1
    assert faults > len(FAULTY_PAGES)
