import threading
from pathlib import Path

import pytest

from relm.artifact import sha256_of, sidecar_of
from relm.errors import RelmError
from relm.examples import concurrent_check as module
from relm.examples.concurrent_check import checked_meanwhile


def test_the_block_runs_while_the_file_is_hashed(tmp_path, write_documents, monkeypatch) -> None:
    documents = write_documents("a.jsonl", ["one"])
    goes_on = threading.Event()
    check = module.checked_documents

    def slow(path: Path) -> tuple[str, bool]:
        assert goes_on.wait(60)
        return check(path)

    monkeypatch.setattr(module, "checked_documents", slow)
    with checked_meanwhile(documents) as checked:
        goes_on.set()  # reached although the check waits
        assert checked() == (sha256_of(documents), False)


def test_a_changed_file_is_reported_as_such_even_if_the_block_finds_another_fault(tmp_path, write_documents) -> None:
    documents = write_documents("a.jsonl", ["one"])
    with pytest.raises(RelmError, match="line 1: not JSON"), checked_meanwhile(documents):
        raise RelmError("line 1: not JSON")
    documents.write_bytes(documents.read_bytes().replace(b"one", b'o"e'))
    with pytest.raises(RelmError, match="changed since it was made"), checked_meanwhile(documents):
        raise RelmError("line 1: not JSON")
    with pytest.raises(RelmError, match="changed since it was made"), checked_meanwhile(documents) as checked:
        checked()
    sidecar_of(documents).unlink()
    with checked_meanwhile(documents) as checked:
        assert checked() == (sha256_of(documents), False)


def test_an_absent_file_is_refused_before_the_block(tmp_path) -> None:
    with pytest.raises(RelmError, match=r"absent\.jsonl: no such file"), checked_meanwhile(tmp_path / "absent.jsonl"):
        raise AssertionError("the block ran")
