import functools
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from relm.artifact import read_json, sha256_of, sidecar_of
from relm.errors import RelmError
from relm.examples import pregenerate as module
from relm.examples.pregenerate import Lines, encoded_chunk, pregenerate
from relm.examples.tokenizers import load_tokenizer


def files_of(shard: Path) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in (shard, shard.with_suffix(".idx")))


def test_a_shard_holds_every_document_and_its_end(tmp_path, tokenizer, prose, write_documents) -> None:
    documents = write_documents("a.train.jsonl", [*prose[:20], ""])
    said = pregenerate(documents, tokenizer, tmp_path / "a.train.bin")
    loaded = load_tokenizer(tokenizer)
    expected: list[int] = []
    for text in [*prose[:20], ""]:
        expected += [*loaded.tokenizer.encode(text).ids, loaded.end_of_text_id]
    assert np.fromfile(tmp_path / "a.train.bin", "<u2").tolist() == expected
    words = sum(len(text.split()) for text in prose[:20])
    assert said.startswith(f"encoded 21 documents with {words:,} words as {len(expected):,} tokens")
    assert read_json(sidecar_of(tmp_path / "a.train.bin")) == {
        "file": "a.train.bin",
        "sha256": sha256_of(tmp_path / "a.train.bin"),
        "size": 2 * len(expected),
        "objective": "causal",
        "dtype": "uint16",
        "tokens": len(expected),
        "documents": 21,
        "words": words,
        "bytes": sum(len(text.encode()) for text in prose[:20]),
        "tokenizer_sha256": loaded.sha256,
        "vocabulary_size": 400,
        "end_of_text_id": 0,
        "idx_sha256": sha256_of(tmp_path / "a.train.idx"),
        "source": sha256_of(documents),
    }


def test_any_number_of_workers_writes_the_same_bytes(tmp_path, tokenizer, prose, write_documents, monkeypatch) -> None:
    documents = write_documents("a.jsonl", prose)
    pregenerate(documents, tokenizer, tmp_path / "whole.bin", 1)
    monkeypatch.setattr(module, "CHUNK", 4096)  # many chunks, so that all workers have some
    for workers in (1, 2, 3):
        pregenerate(documents, tokenizer, tmp_path / f"{workers}.bin", workers)
        assert files_of(tmp_path / f"{workers}.bin") == files_of(tmp_path / "whole.bin")


def test_end_of_text_written_in_a_document_does_not_end_it(tmp_path, tokenizer, write_documents) -> None:
    pregenerate(write_documents("a.jsonl", ["a<|endoftext|>b", "c"]), tokenizer, tmp_path / "a.bin")
    tokens = np.fromfile(tmp_path / "a.bin", "<u2")
    assert (tokens == 0).sum() == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"id": "1", "title": "t", "text": "cut of',
            r"a\.jsonl, line 151: not valid JSON in UTF-8 \(Invalid control character at: line 1 column 42",
        ),
        ('{"id": "1", "title": "t"}', r"a\.jsonl, line 151: expected the keys id, title and text, found id, title"),
        ('{"id": "1", "title": "t", "text": 3}', r"a\.jsonl, line 151: text: expected a string, found 3"),
        ("[]", r"a\.jsonl, line 151: expected the keys id, title and text, found list"),
        ('{"text": "\\ud800"}', r"a\.jsonl, line 151: not valid JSON in UTF-8 \(.*surrogates"),
        ("", r"a\.jsonl, line 151: not valid JSON"),
        (b'{"text": "\xff"}', r"a\.jsonl, line 151: not valid JSON in UTF-8 \(.*invalid start byte"),
    ],
)
def test_a_broken_line_is_named(tmp_path, tokenizer, prose, write_documents, monkeypatch, line, message) -> None:
    documents = write_documents("a.jsonl", prose)
    sidecar_of(documents).unlink()
    lines = documents.read_bytes().splitlines()
    lines[150] = line if isinstance(line, bytes) else line.encode()
    documents.write_bytes(b"\n".join(lines) + b"\n")
    monkeypatch.setattr(module, "CHUNK", 4096)
    with pytest.raises(RelmError, match=message):
        pregenerate(documents, tokenizer, tmp_path / "a.bin", 1 if line else 2)
    assert not list(tmp_path.glob("*.bin*")) + list(tmp_path.glob(".*.partial"))


def killed_at(victim: int, documents: Path, tokenizer: Path, sha256: str, chunk: Lines) -> module.Chunk:
    """`encoded_chunk` in a worker that the system kills at one line."""
    if chunk.first >= victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return encoded_chunk(documents, tokenizer, sha256, chunk)


def test_a_killed_worker_is_an_error_and_leaves_nothing(tmp_path, tokenizer, prose, write_documents, monkeypatch) -> None:
    documents = write_documents("a.jsonl", prose)
    monkeypatch.setattr(module, "CHUNK", 4096)
    monkeypatch.setattr(module, "encoded_chunk", functools.partial(killed_at, 100))
    with pytest.raises(RelmError, match=r"encoding .*a\.jsonl: worker process \d+ was killed by SIGKILL"):
        pregenerate(documents, tokenizer, tmp_path / "a.bin", 2)
    assert not list(tmp_path.glob("*.bin*")) + list(tmp_path.glob(".*.partial"))


def test_no_documents_are_an_error_unless_the_extraction_says_so(tmp_path, tokenizer, write_documents) -> None:
    documents = write_documents("a.jsonl", [])
    pregenerate(documents, tokenizer, tmp_path / "a.bin")
    assert read_json(sidecar_of(tmp_path / "a.bin"))["tokens"] == 0
    assert len((tmp_path / "a.idx").read_bytes()) == 34 + 8
    sidecar_of(documents).unlink()
    with pytest.raises(RelmError, match=r"a\.jsonl: holds no documents"):
        pregenerate(documents, tokenizer, tmp_path / "b.bin")
    assert not (tmp_path / "b.bin").exists()


def test_inputs_that_are_absent_or_changed_are_refused(tmp_path, tokenizer, write_documents) -> None:
    with pytest.raises(RelmError, match=r"absent\.jsonl: no such file"):
        pregenerate(tmp_path / "absent.jsonl", tokenizer, tmp_path / "a.bin")
    documents = write_documents("a.jsonl", ["one two"])
    documents.write_bytes(documents.read_bytes().replace(b"two", b"2wo"))
    with pytest.raises(RelmError, match="changed since it was made"):
        pregenerate(documents, tokenizer, tmp_path / "a.bin")
    with pytest.raises(RelmError, match=r"no\.json: no such file"):
        pregenerate(write_documents("b.jsonl", ["one"]), tmp_path / "no.json", tmp_path / "a.bin")


def test_a_tokenizer_that_changes_midway_is_noticed(tmp_path, tokenizer, write_documents) -> None:
    documents = write_documents("a.jsonl", ["one"])
    with pytest.raises(RelmError, match=r"tokenizer\.json: changed while documents were encoded"):
        encoded_chunk(documents, tokenizer, "0" * 64, Lines(1, documents.read_bytes().splitlines()))


def test_making_a_shard_again_never_leaves_the_old_sidecar_beside_new_bytes(
    tmp_path, tokenizer, write_documents, monkeypatch
) -> None:
    pregenerate(write_documents("a.jsonl", ["one"]), tokenizer, tmp_path / "a.bin")

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_sidecar", stop)
    with pytest.raises(KeyboardInterrupt):
        pregenerate(write_documents("b.jsonl", ["another"]), tokenizer, tmp_path / "a.bin")
    assert not sidecar_of(tmp_path / "a.bin").exists()
