import functools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relm.artifact import read_sidecar, sha256_of, sidecar_of
from relm.errors import RelmError
from relm.examples import documents as documents_module
from relm.examples import pregenerate as module
from relm.examples.chunks import Chunk, encode_chunk
from relm.examples.documents import Lines, chunks_of, counts_of
from relm.examples.pregenerate import check_in_background, pregenerate_stream
from relm.examples.tokenization.byte_level import ByteLevel
from relm.examples.tokenization.encoder import Disagreement
from relm.examples.tokenization.tokenizer_files import load_tokenizer, train_tokenizer
from relm.recipes.objectives import Objective

CAUSAL = Objective(objective="causal", sequence_length=64)


def pregenerate(documents: Path, tokenizer: Path, output: Path, workers: int | None = None) -> str:
    return pregenerate_stream(documents, tokenizer, output, CAUSAL, "en", workers)


def with_small_chunks(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(documents_module, "CHUNK", size)


def files_of(shard: Path) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in (shard, shard.with_suffix(".idx")))


def test_without_an_end_of_text_a_shard_is_its_documents_one_after_the_other(tmp_path, write_documents) -> None:
    documents = write_documents("a.train.jsonl", ["ab", "", "ca"])
    train_tokenizer("characters", [documents], None, 10**9, tmp_path / "t.json", special_tokens=False)
    pregenerate(documents, tmp_path / "t.json", tmp_path / "a.train.bin")
    assert np.fromfile(tmp_path / "a.train.bin", "<u2").tolist() == [0, 1, 2, 0]
    sidecar = read_sidecar(tmp_path / "a.train.bin")
    assert (sidecar["tokens"], sidecar["documents"], sidecar["special"]["end_of_text"]) == (4, 3, None)


def test_a_shard_holds_every_document_and_its_end(tmp_path, tokenizer, prose, write_documents) -> None:
    documents = write_documents("a.train.jsonl", [*prose[:20], ""])
    message = pregenerate(documents, tokenizer, tmp_path / "a.train.bin")
    loaded = load_tokenizer(tokenizer)
    expected: list[int] = []
    for text in [*prose[:20], ""]:
        expected += [*loaded.tokenizer.encode(text).ids, loaded.special.end_of_text]
    assert np.fromfile(tmp_path / "a.train.bin", "<u2").tolist() == expected
    words = sum(len(text.split()) for text in prose[:20])
    assert message.startswith(f"encoded 21 documents with {words:,} words as {len(expected):,} tokens")
    lengths = [len(loaded.tokenizer.encode(text).ids) + 1 for text in [*prose[:20], ""]]
    bounds = [2**power for power in range(12)]
    counts = [sum(bound // 2 < length <= bound for length in lengths) for bound in bounds]
    histogram = [[bound, count] for bound, count in zip(bounds, counts, strict=True) if count]
    assert read_sidecar(tmp_path / "a.train.bin") == {
        "file": "a.train.bin",
        "sha256": sha256_of(tmp_path / "a.train.bin"),
        "size": 2 * len(expected),
        "objective": "causal",
        "layout": "tokens",
        "dtype": "uint16",
        "tokens": len(expected),
        "documents": 21,
        "words": words,
        "bytes": sum(len(text.encode()) for text in prose[:20]),
        "tokenizer_sha256": loaded.sha256,
        "vocabulary_size": 400,
        "special": {"end_of_text": 0, "pad": None, "unk": None, "cls": None, "sep": None, "mask": None},
        "settings": {},
        "length_histogram": histogram,
        "idx_sha256": sha256_of(tmp_path / "a.train.idx"),
        "source": sha256_of(documents),
    }


def test_any_number_of_workers_writes_the_same_bytes(tmp_path, tokenizer, prose, write_documents, monkeypatch) -> None:
    documents = write_documents("a.jsonl", prose)
    pregenerate(documents, tokenizer, tmp_path / "whole.bin", 1)
    with_small_chunks(monkeypatch, 4096)  # many, so that all workers have some
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
    with_small_chunks(monkeypatch, 4096)
    with pytest.raises(RelmError, match=message):
        pregenerate(documents, tokenizer, tmp_path / "a.bin", 1 if line else 2)
    assert not list(tmp_path.glob("*.bin*")) + list(tmp_path.glob(".*.partial"))


@pytest.mark.parametrize("ending", [b"\n", b""])
def test_chunks_are_the_same_whether_their_lines_are_numbered_or_not(tmp_path, monkeypatch, ending: bytes) -> None:
    monkeypatch.setattr(documents_module, "CHUNK_END", 7)
    path = tmp_path / "a.jsonl"
    generator = np.random.default_rng(3)
    path.write_bytes(b"\n".join(b"x" * size for size in generator.zipf(1.5, 60) % 500) + ending)
    for size in (2, 10, 64, 1000, 2**20):
        monkeypatch.setattr(documents_module, "CHUNK", size)
        with open(path, "rb") as file:
            numbered, others = list(chunks_of(file)), list(chunks_of(file, numbered=False))
        assert others == [chunk._replace(first=0) for chunk in numbered]
        assert [documents_module._line_at(path, chunk.start) for chunk in others] == [chunk.first for chunk in numbered]
    path.write_bytes(b"")
    with open(path, "rb") as file:
        assert not list(chunks_of(file, numbered=False))


def chunk(lines: Lines, tokenizer: Path, sha256: str) -> Chunk:
    return encode_chunk(lines, tokenizer=tokenizer, tokenizer_sha256=sha256, dtype="uint16", end_of_text_id=None)


def killed_at(victim: int, lines: Lines, **options: Any) -> Chunk:
    """Run `encode_chunk` in a worker that the system kills at an offset."""
    if lines.start >= victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return encode_chunk(lines, **options)


def test_a_killed_worker_is_an_error_and_leaves_nothing(tmp_path, tokenizer, prose, write_documents, monkeypatch) -> None:
    documents = write_documents("a.jsonl", prose)
    with_small_chunks(monkeypatch, 4096)
    with monkeypatch.context() as patched:
        patched.setattr(module, "encode_chunk", functools.partial(killed_at, 20_000))
        with pytest.raises(RelmError, match=r"encoding .*a\.jsonl: worker process \d+ was killed by SIGKILL"):
            pregenerate(documents, tokenizer, tmp_path / "a.bin", 2)
    assert not list(tmp_path.glob("*.bin*")) + list(tmp_path.glob(".*.partial"))
    pregenerate(documents, tokenizer, tmp_path / "a.bin", 2)
    pregenerate(documents, tokenizer, tmp_path / "b.bin", 1)
    assert files_of(tmp_path / "a.bin") == files_of(tmp_path / "b.bin")


def test_no_documents_are_an_error_unless_the_sidecar_records_none(tmp_path, tokenizer, write_documents) -> None:
    documents = write_documents("a.jsonl", [])
    pregenerate(documents, tokenizer, tmp_path / "a.bin")
    assert read_sidecar(tmp_path / "a.bin")["tokens"] == 0
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


def test_a_tokenizer_that_changes_midway_is_refused(tmp_path, tokenizer, write_documents) -> None:
    documents = write_documents("a.jsonl", ["one"])
    with pytest.raises(RelmError, match=r"tokenizer\.json: changed while documents were encoded"):
        chunk(Lines(documents, 1, 0, documents.stat().st_size), tokenizer, "0" * 64)


def test_making_a_shard_again_never_leaves_the_old_sidecar_with_new_bytes(
    tmp_path, tokenizer, write_documents, monkeypatch
) -> None:
    pregenerate(write_documents("a.jsonl", ["one"]), tokenizer, tmp_path / "a.bin")

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_hashed_sidecar", stop)
    with pytest.raises(KeyboardInterrupt):
        pregenerate(write_documents("b.jsonl", ["another"]), tokenizer, tmp_path / "a.bin")
    assert not sidecar_of(tmp_path / "a.bin").exists()


@pytest.mark.parametrize("number", [400, 65_536, -1])
def test_ids_beyond_the_vocabulary_are_refused(tmp_path, tokenizer, prose, write_documents, monkeypatch, number) -> None:
    def strange(lines: Lines, **options: Any) -> Chunk:
        chunk = encode_chunk(lines, **options)
        return chunk._replace(tokens=np.full(len(chunk.tokens), number, dtype=np.int32))

    monkeypatch.setattr(module, "encode_chunk", strange)
    documents = write_documents("a.jsonl", [" ".join(prose[:40])])
    with pytest.raises(RelmError, match=rf"token ids {number} to {number}, but the vocabulary has 0 to 399"):
        pregenerate(documents, tokenizer, tmp_path / "a.bin", 1)
    assert not list(tmp_path.glob("a.bin*"))


# --- full disks -----------------------------------------------------------------------------------------

ON_A_SMALL_DISK = """
import resource, sys
from pathlib import Path
from typing import Any
from relm.errors import RelmError
from relm.examples.pregenerate import check_in_background, pregenerate_stream
from relm.recipes.objectives import Objective
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
try:
    objective = Objective(objective="causal", sequence_length=64)
    print(pregenerate_stream(*map(Path, sys.argv[1:4]), objective, "en", 1))
except RelmError as error:
    print(error)
"""


def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path, tokenizer, prose, write_documents) -> None:
    documents = write_documents("a.jsonl", prose)
    pregenerate(documents, tokenizer, tmp_path / "whole.bin")
    size = (tmp_path / "whole.bin").stat().st_size
    output = tmp_path / "out" / "a.bin"
    for limit in (1000, size // 2, size):
        command = [sys.executable, "-c", ON_A_SMALL_DISK, *map(str, (documents, tokenizer, output, limit))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        if limit < size:
            assert "cannot be written: " in done.stdout
            assert not list(output.parent.iterdir())
    assert files_of(output) == files_of(tmp_path / "whole.bin")


def test_words_and_bytes_are_counted_as_python_counts_them() -> None:
    spaces = [chr(code) for code in range(0x110000) if chr(code).isspace()]
    others = [*"aé中🙂\x00\x1b\x7f—\u200b\u180e\ufeff"]
    generator = np.random.default_rng(3)
    for _ in range(300):
        texts = ["".join(generator.choice([*spaces, *others], size)) for size in generator.integers(0, 12, 3)]
        assert counts_of(texts) == (sum(len(t.split()) for t in texts), sum(len(t.encode()) for t in texts))
    assert counts_of([]) == counts_of([""]) == (0, 0)


# --- the check of the documents meanwhile ---------------------------------------------------------------------------------


def test_a_changed_file_is_reported_as_such_even_if_the_block_finds_another_fault(tmp_path, write_documents) -> None:
    documents = write_documents("a.jsonl", ["one"])
    with pytest.raises(RelmError, match="line 1: not JSON"), check_in_background(documents):
        raise RelmError("line 1: not JSON")
    documents.write_bytes(documents.read_bytes().replace(b"one", b'o"e'))
    with pytest.raises(RelmError, match="changed since it was made"), check_in_background(documents):
        raise RelmError("line 1: not JSON")
    with pytest.raises(RelmError, match="changed since it was made"), check_in_background(documents) as checked:
        checked()
    sidecar_of(documents).unlink()
    with check_in_background(documents) as checked:
        assert checked() == (sha256_of(documents), False)


def test_a_sample_is_compared_in_every_fourth_mib(tmp_path, tokenizer, prose, write_documents, monkeypatch) -> None:
    line = write_documents("a.jsonl", prose[:1]).read_bytes()
    monkeypatch.setattr(ByteLevel, "encoded", lambda self, texts: [np.zeros(1, dtype=np.int32)])
    sha256 = load_tokenizer(tokenizer).sha256
    found = []
    for mib in range(9):
        with open(tmp_path / "holes.jsonl", "wb") as file:
            file.seek(mib * 2**20)
            file.write(line)
        try:
            chunk(Lines(tmp_path / "holes.jsonl", 1, mib * 2**20, len(line)), tokenizer, sha256)
        except Disagreement:
            found.append(mib)
    assert found == [0, 4, 8]
