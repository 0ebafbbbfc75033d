"""Files are whole or absent, and sidecars describe them correctly."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relm import artifact
from relm.artifact import (
    SEAL,
    HashingWriter,
    atomic_file,
    canonical_json,
    checked_sidecar,
    companions,
    read_json,
    read_sealed,
    seal,
    sha256_of,
    sidecar_of,
    write_json,
    write_sidecar,
)
from relm.errors import RelmError
from relm.steps.job_spec import read_job


def test_a_file_appears_only_when_its_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    with atomic_file(path) as file:
        file.write(b"half")
        assert not path.exists()
    assert path.read_bytes() == b"half"


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ValueError, match="unreadable"), atomic_file(path, "w") as file:  # noqa: PT012
        file.write("new")
        raise ValueError("unreadable")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("file", "old")]


def test_sigkill_while_writing_leaves_the_old_file_and_the_next_attempt_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    code = (
        "import os, pathlib; from relm.artifact import atomic_file\n"
        f"with atomic_file(pathlib.Path({str(path)!r}), 'w') as file:\n"
        "    file.write('x' * 100_000); file.flush(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    with atomic_file(path, "w") as file:
        file.write("new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_an_error_that_names_the_file_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    code = (
        "import pathlib, resource, signal; from relm.artifact import atomic_file; from relm.errors import RelmError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        f"    with atomic_file(pathlib.Path({str(path)!r})) as file: file.write(b'x' * 5000)\n"
        "except RelmError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"{path}: cannot be written: File too large; nothing was changed" in done.stdout, done.stderr
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_sidecar_is_the_same_whenever_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    facts = write_sidecar(path, tokens=3)
    first = sidecar_of(path).read_bytes()
    os.utime(path, (1, 1))
    write_sidecar(path, tokens=3)
    assert sidecar_of(path).read_bytes() == first
    assert facts["sha256"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" == sha256_of(path)
    assert (facts["size"], facts["tokens"]) == (3, 3)


@pytest.mark.parametrize(("content", "message"), [(b"abcd", "has 4 bytes, its sidecar says 3"), (b"abd", "sha256 is")])
def test_a_file_that_is_not_its_sidecars_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    write_sidecar(path)
    assert checked_sidecar(path)["size"] == 3
    path.write_bytes(content)
    with pytest.raises(RelmError, match=message):
        checked_sidecar(path)
    path.unlink()
    with pytest.raises(RelmError, match="no such file, although"):
        checked_sidecar(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"defg", r"config: has 4 bytes, file\.json says 3; put back"),
        (b"deg", r"config: sha256 is \w{64}, file\.json says cb8379\w*; put back the config that belongs to file, or delete"),
        (None, r"config: no such file, although file\.json names it; put back"),
    ],
)
def test_a_companion_that_is_not_its_sidecars_is_refused_by_name(tmp_path: Path, content: bytes | None, message: str) -> None:
    path, companion = tmp_path / "file", tmp_path / "config"
    path.write_bytes(b"abc")
    companion.write_bytes(b"def")
    (tmp_path / "another").write_bytes(b"")
    files = companions([companion, tmp_path / "another"])
    assert list(files) == ["another", "config"]
    write_sidecar(path, files=files)
    assert checked_sidecar(path)["files"]["config"] == {"sha256": sha256_of(companion), "size": 3}
    companion.unlink()
    if content is not None:
        companion.write_bytes(content)
    with pytest.raises(RelmError, match=message):
        checked_sidecar(path)


def test_json_is_read_back_and_faults_name_the_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"ț": [1, 2.5]})
    assert read_json(tmp_path / "a.json") == {"ț": [1, 2.5]}
    (tmp_path / "b.json").write_text('{"a": ')
    with pytest.raises(RelmError, match=r"b\.json: not valid JSON"):
        read_json(tmp_path / "b.json")
    with pytest.raises(RelmError, match=r"c\.json: no such file"):
        read_json(tmp_path / "c.json")


def test_canonical_json_does_not_depend_on_the_order_of_keys_and_refuses_nan() -> None:
    assert (
        canonical_json({"b": 1, "a": [True, None]}) == '{"a":[true,null],"b":1}' == canonical_json({"a": [True, None], "b": 1})
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))


@pytest.mark.parametrize("content", ["[" * 100_000, "9" * 5000, '"\\ud800', "", "{"])
def test_json_that_cannot_be_read_is_refused_with_its_path(tmp_path: Path, content: str) -> None:
    (tmp_path / "facts.json").write_text(content)
    with pytest.raises(RelmError, match=r"facts\.json: not valid JSON"):
        read_json(tmp_path / "facts.json")


def test_a_job_on_the_command_line_that_is_no_json_is_refused() -> None:
    for text in ("[" * 100_000, "{"):
        with pytest.raises(RelmError, match="--job: not valid JSON"):
            read_job(text)


@pytest.mark.parametrize(
    ("folder", "advice"), [("work", "Delete it and model.json"), ("own", "use the right file, or correct")]
)
def test_only_a_file_of_the_work_folder_is_advised_to_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, advice: str
) -> None:
    monkeypatch.setenv("RELM_WORK", str(tmp_path / "work"))
    path = tmp_path / folder / "model"
    path.parent.mkdir()
    path.write_bytes(b"x")
    write_sidecar(path)
    with pytest.raises(RelmError, match=advice):
        checked_sidecar(path, "0" * 64)


def test_a_pipe_or_a_device_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        for use in (sha256_of, read_json, lambda path: write_json(path, {})):
            with pytest.raises(RelmError, match=f"^{path}: is a named pipe, a socket or a device; expected a file"):
                use(path)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_temporary_name_that_is_taken_by_no_file_is_refused(tmp_path: Path) -> None:
    precious, partial = tmp_path / "precious", tmp_path / ".file.partial"
    precious.write_text("precious")
    puts = {"a symbolic link": lambda: partial.symlink_to(precious), "a named pipe": lambda: os.mkfifo(partial)}
    for found, put in {**puts, "a folder": partial.mkdir}.items():
        put()
        with pytest.raises(RelmError, match=f"^{partial}: is {found}; expected no file, or the file that an interrupted"):
            write_json(tmp_path / "file", {})
        assert precious.read_text() == "precious"
        partial.rmdir() if partial.is_dir() else partial.unlink()


def test_a_temporary_file_that_was_left_is_replaced_and_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    os.link(tmp_path / "precious", tmp_path / ".file.partial")  # two names of one file, as a copy by hard links has
    write_json(tmp_path / "file", {})
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / ".file.partial").exists()


def test_no_byte_of_a_sealed_file_changes_its_content_without_an_error(tmp_path: Path) -> None:
    facts = {"file": "a.bin", "size": 5, "words": 1.5, "text": "a \u00e4 \ud800", "files": {"b": {"size": 3}}}
    path = tmp_path / "a.bin.json"
    write_json(path, seal({**facts, "text": "a \u00e4"}))
    whole = path.read_bytes()
    assert read_sealed(path, "delete it") == {**facts, "text": "a \u00e4"}
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RelmError, match=r"a\.bin\.json: (changed since it was made|not valid JSON)"):
            read_sealed(path, "delete it")
    assert seal(facts)[SEAL] == seal(seal(facts))[SEAL], "of a surrogate, too"


def test_a_file_of_an_earlier_version_has_no_seal_and_is_read(tmp_path: Path) -> None:
    for content in ({}, [], {"sha256": "0" * 64}, {"size": 1, "files": {}}):
        write_json(tmp_path / "a.json", content)
        assert read_sealed(tmp_path / "a.json", "delete it") == content


@pytest.mark.parametrize("fails", [False, True], ids=["finished", "failed"])
def test_of_two_writers_of_one_file_the_first_is_told_and_harms_nothing(tmp_path: Path, fails: bool) -> None:
    path = tmp_path / "file"
    other = contextlib.ExitStack()

    def write_while_another_begins() -> None:
        with atomic_file(path) as file:
            file.write(b"first")
            other.enter_context(atomic_file(path)).write(b"second")
            if fails:
                raise ValueError("no reason")

    message = "no reason" if fails else f"^{path}: another process is writing it; wait for that one, and run again$"
    with pytest.raises(ValueError if fails else RelmError, match=message):
        write_while_another_begins()
    assert not path.exists()
    other.close()
    assert path.read_bytes() == b"second"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_bytes_that_are_written_back_early_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advice: list[tuple[int, int]] = []
    monkeypatch.setattr(artifact, "WRITTEN_BACK", 1000)
    advise = os.posix_fadvise

    def noting(descriptor: int, offset: int, size: int, kind: int) -> None:
        advice.append((offset, size))
        advise(descriptor, offset, size, kind)

    monkeypatch.setattr(os, "posix_fadvise", noting)
    pieces = [os.urandom(size) for size in (1, 999, 0, 10, 5000, 900)]
    with open(tmp_path / "a", "wb") as file:
        writer = HashingWriter(file)
        for piece in pieces:
            writer.write(memoryview(piece))
    assert (tmp_path / "a").read_bytes() == b"".join(pieces)
    assert writer.sha256 == sha256_of(tmp_path / "a")
    assert advice == [(0, 1000), (1000, 5010)]
