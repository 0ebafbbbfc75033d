import functools
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relm.artifact import sha256_of, sidecar_of
from relm.errors import RelmError
from relm.examples import documents as documents_module
from relm.examples import tokenized as module
from relm.examples.tokenization.encoder import TextEncoder
from relm.examples.tokenization.tokenizer_files import load_tokenizer, train_tokenizer
from relm.examples.tokenized import TokenizedDocuments, encode_part, tokenize_documents


def lists_of(found: TokenizedDocuments) -> list[list[list[int]]]:
    """Return documents as lists of sentences, and these as lists of tokens."""
    sentences = [found.tokens[a:b].tolist() for a, b in zip(found.sentence_starts, found.sentence_starts[1:], strict=False)]
    return [sentences[a:b] for a, b in zip(found.document_starts, found.document_starts[1:], strict=False)]


def decoded(found: TokenizedDocuments) -> list[list[str]]:
    return [[found.loaded.tokenizer.decode(ids) for ids in document] for document in lists_of(found)]


def test_documents_are_tokens_of_sentences_of_documents(tmp_path, tokenizer, write_documents) -> None:
    texts = ["Dr. Li left.  He came back? Né\nno\n \n end", "", "\n\n", "One."]
    documents = write_documents("a.jsonl", texts)
    with tokenize_documents(documents, tokenizer, "split", "en", 1) as found:
        assert decoded(found) == [["Dr. Li left.", "  He came back?", " Né", "no", " end"], ["One."]]
        assert (found.tokens.dtype, found.word_starts.dtype) == (np.uint16, np.bool_)
        assert (found.sentence_starts.dtype, found.document_starts.dtype) == (np.int64, np.int64)
        assert found.document_starts.tolist() == [0, 5, 6]
        assert found.sentence_starts[[0, -1]].tolist() == [0, len(found.tokens)]
        assert found.words == sum(len(text.split()) for text in texts)
        assert found.bytes == sum(len(text.encode()) for text in texts)
        assert found.source_sha256 == sha256_of(documents)
        assert found.loaded.vocabulary_size == 400
    with tokenize_documents(documents, tokenizer, "lines", "en", 1) as found:
        assert decoded(found) == [["Dr. Li left.  He came back? Né", "no", " end"], ["One."]]
    with tokenize_documents(documents, tokenizer, "lines", "en", 1, stripped_lines=True) as found:
        assert decoded(found)[0][-1] == "end"
    assert sorted(path.name for path in tmp_path.glob("*.jsonl*")) == [
        "a.jsonl",
        "a.jsonl.json",
        "training.jsonl",
        "training.jsonl.json",
    ]


def test_word_starts_are_the_encoders(tokenizer, write_documents, prose) -> None:
    documents = write_documents("a.jsonl", prose[:5])
    with tokenize_documents(documents, tokenizer, "lines", "en", 1) as found:
        lines = [line for text in prose[:5] for line in text.split("\n") if line.strip()]
        (tokens, sizes), starts = TextEncoder(load_tokenizer(tokenizer).tokenizer, fast=False).with_word_starts(lines)
        assert found.tokens.tolist() == tokens.tolist()
        assert found.word_starts.tolist() == starts.tolist()
        assert np.diff(found.sentence_starts).tolist() == sizes.tolist()


@pytest.fixture
def wordpiece(tmp_path: Path, write_documents: Callable[[str, list[str]], Path], prose: list[str]) -> Path:
    """Train a WordPiece of 300 tokens on the prose."""
    path = tmp_path / "wordpiece" / "tokenizer.json"
    train_tokenizer("wordpiece", [write_documents("words.jsonl", prose)], 300, 10**9, path, lower_case=True)
    return path


def test_sentences_and_documents_that_give_no_tokens_are_left_out(wordpiece, write_documents) -> None:
    # WordPiece drops control characters: such a line has no tokens.
    documents = write_documents("a.jsonl", ["\x00\x01", "ka\n\x02\nro", "\u200b\x7f", "mi"])
    with tokenize_documents(documents, wordpiece, "lines", "en", 1) as found:
        assert decoded(found) == [["ka", "ro"], ["mi"]]
    nothing = write_documents("b.jsonl", ["", "\x00"])
    with tokenize_documents(nothing, wordpiece, "lines", "en", 1) as found:
        assert lists_of(found) == []
        assert [len(array) for array in found[:4]] == [0, 0, 1, 1]


def arrays_of(found: TokenizedDocuments) -> list[object]:
    return [array.tobytes() for array in found[:4]] + list(found[4:7])


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_gives_the_same_arrays(wordpiece, prose, write_documents, monkeypatch, workers) -> None:
    documents = write_documents("a.jsonl", [f"{text}\n{text}" for text in prose])
    with tokenize_documents(documents, wordpiece, "split", "en", 1) as found:
        expected = arrays_of(found)
    monkeypatch.setattr(documents_module, "CHUNK", 8192)
    with tokenize_documents(documents, wordpiece, "split", "en", workers) as found:
        assert arrays_of(found) == expected


def killed(victim: int, lines: documents_module.Lines, **options: Any) -> module.Part:
    """Run `encode_part` in a worker that the system kills at an offset."""
    if lines.start >= victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return encode_part(lines, **options)


def test_a_killed_worker_is_an_error_and_the_next_attempt_gives_the_same(
    tmp_path, wordpiece, prose, write_documents, monkeypatch
) -> None:
    documents = write_documents("a.jsonl", prose)
    monkeypatch.setattr(documents_module, "CHUNK", 4096)
    with tokenize_documents(documents, wordpiece, "lines", "en", 1) as found:
        expected = arrays_of(found)
    before = sorted(tmp_path.rglob("*"))
    with monkeypatch.context() as patched:
        patched.setattr(module, "encode_part", functools.partial(killed, 20_000))
        with (
            pytest.raises(RelmError, match=r"encoding .*a\.jsonl: worker process \d+ was killed by SIGKILL"),
            tokenize_documents(documents, wordpiece, "lines", "en", 2),
        ):
            pass
    assert sorted(tmp_path.rglob("*")) == before
    with tokenize_documents(documents, wordpiece, "lines", "en", 2) as found:
        assert arrays_of(found) == expected


ON_A_SMALL_DISK = """
import resource, sys
from pathlib import Path
from relm.errors import RelmError
from relm.examples.tokenized import tokenize_documents
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    with tokenize_documents(Path(sys.argv[1]), Path(sys.argv[2]), "lines", "en", 1):
        print("enough")
except RelmError as error:
    print(error)
"""


def test_a_full_disk_is_reported(wordpiece, prose, write_documents) -> None:
    documents = write_documents("a.jsonl", prose)
    with tokenize_documents(documents, wordpiece, "lines", "en", 1) as found:
        size = found.tokens.nbytes
    for limit, message in ((size // 2, "cannot hold a temporary file with the tokens of "), (size, "enough")):
        command = [sys.executable, "-c", ON_A_SMALL_DISK, str(documents), str(wordpiece), str(limit)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert message in done.stdout
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_ids_that_are_not_in_the_vocabulary_are_refused(wordpiece, write_documents, monkeypatch) -> None:
    def strange(lines: documents_module.Lines, **options: Any) -> module.Part:
        return encode_part(lines, **options)._replace(tokens=np.array([300], dtype=np.int32))

    monkeypatch.setattr(module, "encode_part", strange)
    documents = write_documents("a.jsonl", ["ka"])
    with (
        pytest.raises(RelmError, match=r"token ids 300 to 300, but the vocabulary has 0 to 299"),
        tokenize_documents(documents, wordpiece, "lines", "en", 1),
    ):
        pass


def test_faulty_inputs_are_refused_by_name(tmp_path, wordpiece, write_documents) -> None:
    documents = write_documents("a.jsonl", ["one two"])
    documents.write_bytes(documents.read_bytes().replace(b"two", b"2wo"))
    with pytest.raises(RelmError, match="changed since it was made"), tokenize_documents(documents, wordpiece, "lines", "en"):
        pass
    sidecar_of(documents).unlink()
    documents.write_bytes(b'{"id":"1","title":"","text":"\xff"}\n')
    with (
        pytest.raises(RelmError, match=r"a\.jsonl, line 1: not valid JSON in UTF-8"),
        tokenize_documents(documents, wordpiece, "lines", "en"),
    ):
        pass
