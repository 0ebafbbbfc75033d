"""Text files in archives, and in archives inside archives, as OpenWebText is published."""

import io
import lzma
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from small_archives import COMPRESS, tar_of
from small_sources import content, extracted, files_of, read

from relm.errors import RelmError
from small_dumps import written

FORMAT = {"format": "text_archives"}
TEXTS = {"0000001-aa.txt": b"One page.\r\nA line\rand another\n", "0000002-bb.txt": "Two: caf\u00e9".encode()}


def inner(texts: dict[str, bytes], kind: str = "xz") -> bytes:
    return COMPRESS[kind](tar_of(texts, "w"))


def nested(*archives: dict[str, bytes]) -> dict[str, bytes]:
    return {f"openwebtext/urlsf_subset00-{n}_data.xz": inner(texts) for n, texts in enumerate(archives, 1)}


def archive(folder: Path, members: dict[str, bytes], mode: str = "w:xz") -> Path:
    return written(folder, tar_of(members, mode), "owt.tar.xz")


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_each_text_of_each_inner_archive_is_a_document_that_names_its_place(mode: str, tmp_path: Path) -> None:
    source = archive(tmp_path, nested(TEXTS, {"./0000003-cc.txt": b"Three", "blank.txt": b" \n"}), mode)
    first, second = (f"owt.tar.xz/openwebtext/urlsf_subset00-{n}_data.xz" for n in (1, 2))
    assert read(source, **FORMAT) == [
        (f"{first}/0000001-aa.txt", "0000001-aa", "One page.\nA line\nand another\n"),
        (f"{first}/0000002-bb.txt", "0000002-bb", "Two: caf\u00e9"),
        (f"{second}/0000003-cc.txt", "0000003-cc", "Three"),
        "empty",
    ]


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz"])
def test_texts_next_to_archives_of_any_compression_are_read_and_other_files_counted(kind: str, tmp_path: Path) -> None:
    suffix = {"gzip": ".tar.gz", "bzip2": ".tar.bz2", "xz": ".tar.xz"}[kind]
    members = {
        "books/a.epub.txt": b"\xef\xbb\xbfA book",
        f"more{suffix}": inner(TEXTS, kind),
        "README.md": b"x",
        "._b.txt": b"\0",
    }
    found = read(archive(tmp_path, {**members, "plain.tar": tar_of({"c.txt": b"C"}, "w")}), **FORMAT)
    assert found[0] == ("owt.tar.xz/books/a.epub.txt", "a", "A book")
    assert [one if isinstance(one, str) else one.text for one in found[2:]] == ["Two: caf\u00e9", "other_files", "C"]


def test_of_two_members_of_one_name_the_first_is_read(tmp_path: Path) -> None:
    twice = io.BytesIO()
    with tarfile.open(fileobj=twice, mode="w") as file:
        for text in (b"first", b"second"):
            entry = tarfile.TarInfo("a.txt")
            entry.size = len(text)
            file.addfile(entry, io.BytesIO(text))
    found = read(archive(tmp_path, {"in.xz": lzma.compress(twice.getvalue())}), **FORMAT)
    assert [one if isinstance(one, str) else one.text for one in found] == ["first", "doubled"]


def many(folder: Path) -> Path:
    """Return an archive large enough for three workers: inner archives that are compressed, and some that are not."""
    pages = {n: {f"{n:03}-{i}.txt": f"Page {n} {i}\n".encode() * 250 for i in range(20)} for n in range(12)}
    members = {
        f"{n}.tar" if n % 3 else f"{n}.tar.xz": inner(page) if n % 3 == 0 else tar_of(page, "w") for n, page in pages.items()
    }
    return archive(folder, members, "w")


def test_workers_change_no_byte(tmp_path: Path) -> None:
    source = many(tmp_path)
    outputs = [tmp_path / name for name in ("one", "three")]
    for workers, output in zip((1, 3), outputs, strict=True):
        output.mkdir()
        found = extracted(source, output, workers=workers, **FORMAT, held_out_one_in=10)
        assert len(found.train) + len(found.held_out) == 240
    assert content(outputs[0]) == content(outputs[1])
    assert 5 < len(found.held_out) < 50


def test_a_killed_extraction_leaves_no_file_and_the_next_has_the_same_bytes(tmp_path: Path) -> None:
    source = many(tmp_path)
    description = tmp_path / "data.yaml"
    remote = '{sha256: first_download, at_most: 1, sources: [{url: "https://example.org/owt.tar.xz"}]}'
    description.write_text(
        f"title: t\nlicence: l\nlanguage: en\nformat: text_archives\nheld_out_one_in: 10\nfiles:\n  owt.tar.xz: {remote}\n"
    )
    whole, again = tmp_path / "whole", tmp_path / "again"
    for folder in (whole, again):
        folder.mkdir()
    train, held_out = map(str, files_of(again).values())
    command = ["extract", "--dataset", description, "--source", source, "--train", train, "--held-out", held_out]
    killed = subprocess.Popen([sys.executable, "-m", "relm", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not any(again.iterdir()) and killed.poll() is None:
        time.sleep(0.001)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    assert not any(path.exists() for path in files_of(again).values())
    for folder in (whole, again):
        extracted(source, folder, **FORMAT, held_out_one_in=10)
    assert [path.read_bytes() for path in files_of(whole).values()] == [path.read_bytes() for path in files_of(again).values()]


# --- faults ----------------------------------------------------------------------------------------------------------------

LEAVE_OUT = r"text_archives.left_out` of the dataset's file"


def headed(name: str, **changes: bytes | str) -> bytes:
    """Return an archive of one text under any name, or a link."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as file:
        entry = tarfile.TarInfo(name)
        for key, value in changes.items():
            setattr(entry, key, value)
        entry.size = 1 if entry.isreg() else 0
        file.addfile(entry, io.BytesIO(b"x"))
    return made.getvalue()


def damaged(archive: bytes, at: int) -> bytes:
    return archive[:at] + bytes([archive[at] ^ 0xFF]) + archive[at + 1 :]


LONG = {f"{n}.txt": bytes(str(n), "ascii") * 3000 for n in range(30)}
PLAIN = tar_of(LONG, "w")
FAULTS = {
    "cut xz": (inner(LONG)[:-40], r"in.xz: damaged or truncated near byte [\d,]+ of [\d,]+ \(.*\)"),
    "damaged xz": (damaged(inner(LONG), 200), r"in.xz: damaged or truncated near byte [\d,]+ of [\d,]+ \(.*\)"),
    "cut between members": (
        lzma.compress(PLAIN[: 512 + 3072]),
        r"in.xz: the archive is truncated: it lacks an end marker",
    ),
    "cut in a header": (
        lzma.compress(PLAIN[: 512 + 3072 + 99]),
        r"in.xz: the archive is truncated: it lacks an end marker",
    ),
    "cut in a text": (lzma.compress(PLAIN[:2000]), r"in.xz: damaged or truncated .*unexpected end of data"),
    "damaged header": (
        lzma.compress(damaged(PLAIN, 512 + 3072 + 5)),
        r"in.xz: the archive is damaged: a member's header cannot be",
    ),
    "no archive": (lzma.compress(b"just text" * 100), r"in.xz: not a tar archive"),
    "not compressed": (b"garbage" * 100, r"in.xz: not a tar archive"),
    "path upwards": (lzma.compress(headed("../../etc/x.txt")), r"in.xz: member '../../etc/x.txt' has a path that leads out of"),
    "absolute path": (lzma.compress(headed("/etc/x.txt")), r"in.xz: member '/etc/x.txt' has a path that leads out of the"),
    "link": (
        lzma.compress(headed("x.txt", type=tarfile.SYMTYPE, linkname="/etc/passwd")),
        r"in.xz: x.txt in the archive: expected a regular file, found a link",
    ),
    "not UTF-8": (inner({"a/b.txt": b"caf\xe9!"}), r"in.xz: a/b.txt: byte 3: not valid UTF-8 \(found b'\\xe9'\)"),
    "NUL": (inner({"a.txt": b"ab\0"}), r"in.xz: a.txt: byte 2: a NUL"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_names_archive_member_byte_and_remedy(kind: str, tmp_path: Path) -> None:
    bad, message = FAULTS[kind]
    source = archive(tmp_path, {"good.xz": inner(TEXTS), "in.xz": bad})
    with pytest.raises(RelmError, match=f"owt.tar.xz: {message}.*{LEAVE_OUT}"):
        extracted(source, tmp_path, **FORMAT)
    assert not any(path.exists() for path in files_of(tmp_path).values())
    kept = read(source, **FORMAT, text_archives={"left_out": ["in.xz"]})
    assert [one.title for one in kept if not isinstance(one, str)] == ["0000001-aa", "0000002-bb"]


def test_one_file_of_an_inner_archive_can_be_left_out(tmp_path: Path) -> None:
    source = archive(tmp_path, {"in.xz": inner({**TEXTS, "bad.txt": b"\xff"})})
    assert len(read(source, **FORMAT, text_archives={"left_out": ["in.xz/bad.txt"]})) == 2
    with pytest.raises(RelmError, match=r"in.xz: bad.txt: byte 0: not valid UTF-8"):
        read(source, **FORMAT, text_archives={"left_out": ["bad.txt"]})


def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=r"in.xz: the name of member 'caf\?.txt' is not valid UTF-8"):
        read(archive(tmp_path, {"in.xz": inner({"caf\udce9.txt": b"x"})}), **FORMAT)


@pytest.mark.parametrize("cut", [30, 600, 1024])
def test_an_outer_archive_that_is_cut_is_refused(cut: int, tmp_path: Path) -> None:
    whole = tar_of({"a.txt": b"a" * 512, "b.txt": b"b" * 512}, "w")[:2048]
    source = written(tmp_path, whole[:-cut] if cut != 600 else whole[:-600], "owt.tar.xz")
    with pytest.raises(RelmError, match=r"owt.tar.xz: (the archive is truncated|damaged or truncated near byte)"):
        read(source, **FORMAT)


def test_a_text_or_an_archive_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relm.corpus.text_archives.LONGEST", 10)
    monkeypatch.setattr("relm.corpus.text_archives.LARGEST_INNER", 100)
    with pytest.raises(RelmError, match=r"a.txt has 11 B, expected at most 10 B for one document"):
        read(archive(tmp_path, {"a.txt": b"x" * 11}), **FORMAT)
    with pytest.raises(RelmError, match=r"in.xz has .*, expected at most 100 B for an archive in an archive"):
        read(archive(tmp_path, {"in.xz": b"x" * 101}), **FORMAT)
