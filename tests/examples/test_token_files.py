"""Files of tokens are imported whole or not at all: documents end at the end of text, and faults are named."""

import struct
from pathlib import Path

import numpy as np
import pytest

from relm.artifact import read_json, sidecar_of
from relm.errors import RelmError
from relm.examples import token_files
from relm.examples.manifest import read_manifest, write_manifest
from relm.examples.storage import TokenStream
from relm.examples.token_files import import_tokens
from small_tokenizers import save_words

TOKENS = [0, 5, 6, 7, 0, 8, 0, 0, 9, 1, 2]
DOCUMENTS = [[0], [5, 6, 7, 0], [8, 0], [0], [9, 1, 2]]


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """Return a tokenizer of ten words whose end of text is 0."""
    texts = ["<|endoftext|>", *(f"w{number}" for number in range(9))]
    return save_words(tmp_path / "tokenizer.json", texts, ["<|endoftext|>"], "w0")


def llm_c(path: Path, tokens: list[int], magic: int = 20240520, version: int = 1, count: int | None = None) -> Path:
    header = struct.pack("<256i", magic, version, len(tokens) if count is None else count, *[0] * 253)
    path.write_bytes(header + np.array(tokens, "<u2").tobytes())
    return path


def nanogpt(path: Path, tokens: list[int]) -> Path:
    path.write_bytes(np.array(tokens, "<u2").tobytes())
    return path


def read_shard(shard: Path) -> tuple[list[int], dict[str, object]]:
    write_manifest({"train": [shard]}, shard.with_name("manifest.json"))
    manifest = read_manifest(shard.with_name("manifest.json"))
    stream = TokenStream(shard.with_name("manifest.json"), manifest.splits["train"].shards)
    return stream.tokens(0, len(stream)).tolist(), read_json(sidecar_of(shard))


@pytest.mark.parametrize("format", ["llm_c", "nanogpt"])
def test_tokens_documents_and_words_are_those_of_the_file(tmp_path: Path, words: Path, format: str) -> None:
    source = {"llm_c": llm_c, "nanogpt": nanogpt}[format](tmp_path / "source.bin", TOKENS)
    sentence = import_tokens(format, [source], words, tmp_path / "a.train.bin")
    tokens, facts = read_shard(tmp_path / "a.train.bin")
    assert tokens == TOKENS
    assert (facts["tokens"], facts["documents"], facts["words"]) == (11, 5, 7)
    assert facts["imported_from"] == format
    assert "read 11 tokens of 5 documents" in sentence
    assert "1 of them do not end with the end-of-text token" in sentence


@pytest.mark.parametrize("block", [1, 2, 3, 5, 100])
def test_documents_are_the_same_whatever_the_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(token_files, "BLOCK", block)
    file = token_files.open_llm_c_shard(llm_c(tmp_path / "source.bin", TOKENS))
    pieces: list[list[int]] = []
    for first, tokens, sizes in token_files.cut_documents(file, 0):
        assert first == len(pieces)
        pieces += [piece.tolist() for piece in np.split(tokens, np.cumsum(sizes)[:-1])]
    assert pieces == DOCUMENTS


def test_only_the_first_tokens_are_read_of_each_file(tmp_path: Path, words: Path) -> None:
    files = [llm_c(tmp_path / f"{name}.bin", TOKENS) for name in "ab"]
    import_tokens("llm_c", files, words, tmp_path / "c.train.bin", first_tokens=3)
    assert read_shard(tmp_path / "c.train.bin")[0] == [0, 5, 6, 0, 5, 6]


def test_the_whole_file_is_never_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_files, "BLOCK", 4)
    monkeypatch.setattr(token_files, "LONGEST", 8)
    file = token_files.open_nanogpt_file(nanogpt(tmp_path / "source.bin", [1, 2, 0] * 40))
    assert max(len(tokens) for _, tokens, _ in token_files.cut_documents(file, 0)) <= 8
    with pytest.raises(RelmError, match="more than 8 tokens without the tokenizer's end of text"):
        list(token_files.cut_documents(file, None))


FAULTS = {
    "magic": ({"magic": 20240801}, "which begins with 20240520; the file begins with 20240801"),
    "version": ({"version": 7}, "version 7, expected 1"),
    "too many": ({"count": 12}, r"has 1,046 bytes, but the 12 tokens in its header need 1,048: truncated"),
    "too few": ({"count": 3}, "but the 3 tokens in its header need"),
    "negative": ({"count": -1}, "but the -1 tokens in its header need"),
}


@pytest.mark.parametrize(("keys", "message"), FAULTS.values(), ids=FAULTS)
def test_a_shard_whose_header_is_wrong_is_refused(tmp_path: Path, words: Path, keys: dict[str, int], message: str) -> None:
    source = llm_c(tmp_path / "source.bin", TOKENS, **keys)
    with pytest.raises(RelmError, match=message):
        import_tokens("llm_c", [source], words, tmp_path / "a.train.bin")
    assert not (tmp_path / "a.train.bin").exists()


def test_empty_and_uneven_files_are_refused(tmp_path: Path, words: Path) -> None:
    for content in (b"", b"\1\0\2"):
        (tmp_path / "source.bin").write_bytes(content)
        with pytest.raises(RelmError, match=r"source\.bin: has \d bytes, expected two per token"):
            import_tokens("nanogpt", [tmp_path / "source.bin"], words, tmp_path / "a.train.bin")
    with pytest.raises(RelmError, match="begins with 20240520; the file has 3 bytes"):
        import_tokens("llm_c", [tmp_path / "source.bin"], words, tmp_path / "a.train.bin")


def test_a_source_is_never_overwritten(tmp_path: Path, words: Path) -> None:
    source = llm_c(tmp_path / "source.bin", TOKENS)
    (tmp_path / "link.bin").symlink_to(source)
    content = source.read_bytes()
    for given in (source, tmp_path / "link.bin"):
        with pytest.raises(RelmError, match=r"source\.bin: --output would overwrite the imported file .*; give another path"):
            import_tokens("llm_c", [given], words, source)
    assert source.read_bytes() == content


def test_the_two_formats_are_not_taken_for_each_other(tmp_path: Path, words: Path) -> None:
    with pytest.raises(RelmError, match="use the format llm_c"):
        import_tokens("nanogpt", [llm_c(tmp_path / "a.bin", TOKENS)], words, tmp_path / "a.train.bin")
    with pytest.raises(RelmError, match="have the format nanogpt"):
        import_tokens("llm_c", [nanogpt(tmp_path / "b.bin", TOKENS * 60)], words, tmp_path / "a.train.bin")


def test_a_token_outside_the_vocabulary_is_refused_with_its_document(tmp_path: Path, words: Path) -> None:
    source = llm_c(tmp_path / "source.bin", [1, 0, 2, 10])
    with pytest.raises(RelmError, match=r"source\.bin, document 1: token id 10, but .* has 0 to 9"):
        import_tokens("llm_c", [source], words, tmp_path / "a.train.bin")


def test_only_a_stream_is_written(tmp_path: Path, words: Path) -> None:
    with pytest.raises(RelmError, match=r"b\.arrow: expected a \.bin file for a stream of tokens"):
        import_tokens("llm_c", [llm_c(tmp_path / "a.bin", TOKENS)], words, tmp_path / "b.arrow")
