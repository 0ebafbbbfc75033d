import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from relm.artifact import read_sidecar, sha256_of, write_sidecar
from relm.errors import RelmError
from relm.examples.inspection import inspect
from relm.examples.manifest import length_histogram, write_manifest
from relm.examples.storage import shard_writer
from relm.examples.table import Column, table_writer
from relm.examples.token_text import TokenTexts
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer
from small_tokenizers import save_wordpieces

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "cat", "sat", "mat", "##s", "un", "##believ", "##able", "dog", "ran"]


@pytest.fixture
def wordpiece(tmp_path: Path) -> Path:
    return save_wordpieces(tmp_path / "wordpiece.json", SPECIAL, WORDS)


@pytest.fixture
def loaded(wordpiece: Path) -> LoadedTokenizer:
    return load_tokenizer(wordpiece)


def facts_of(loaded: LoadedTokenizer, objective: str, lengths: list[int], **more: Any) -> dict[str, Any]:
    return {
        "objective": objective,
        "dtype": "uint16",
        "tokens": sum(lengths),
        "documents": 2,
        "words": 7,
        "bytes": 30,
        "tokenizer_sha256": loaded.sha256,
        "vocabulary_size": loaded.vocabulary_size,
        "special": asdict(loaded.special),
        "length_histogram": length_histogram(np.array(lengths)),
        **more,
    }


def table(path: Path, loaded: LoadedTokenizer, columns: list[Column], rows: dict[str, Any], objective: str = "masked") -> Path:
    lengths = rows["length"] if "length" in rows else (np.array(rows["source"][1]) + rows["target"][1]).tolist()
    width = {"sequence_length": 8, "masked": {"masks": "static"}} if "length" in rows else {}
    facts = facts_of(loaded, objective, lengths, layout="table", settings={"objective": objective, **width})
    with table_writer(path, columns, facts) as writer:
        writer.append(rows)
    write_sidecar(path, **facts, examples=len(lengths))
    return path


def static_table(path: Path, loaded: LoadedTokenizer) -> Path:
    """[CLS] the [MASK] unbeliev·able [SEP], `cat` hidden and `##believ` replaced by dog; [CLS] cat [SEP] the ran [SEP]."""
    columns = [
        Column("input_ids", "uint16", 8),
        Column("length", "uint16"),
        Column("second_start", "uint16"),
        Column("next_sentence_label", "int8"),
        Column("masked_positions", "uint16", 2),
        Column("masked_labels", "uint16", 2),
        Column("masked_count", "uint16"),
    ]
    rows = {
        "input_ids": [[2, 5, 4, 10, 13, 12, 3, 0], [2, 6, 3, 13, 14, 3, 0, 0]],
        "length": [7, 6],
        "second_start": [7, 3],
        "next_sentence_label": [-1, 1],
        "masked_positions": [[2, 4], [3, 4]],
        "masked_labels": [[6, 11], [5, 14]],
        "masked_count": [2, 2],
    }
    return table(path, loaded, columns, rows)


def stream(path: Path, loaded: LoadedTokenizer, documents: list[list[int]]) -> Path:
    sizes = [len(document) for document in documents]
    with shard_writer(path, loaded.vocabulary_size) as writer:
        writer.append(np.concatenate(documents), np.array(sizes))
    write_sidecar(path, **facts_of(loaded, "causal", sizes, layout="tokens", settings={}, documents=len(sizes)))
    return path


def test_a_manifest_of_masked_examples_fits_a_terminal(tmp_path, wordpiece, loaded) -> None:
    shards = [static_table(tmp_path / f"{number}.arrow", loaded) for number in range(2)]
    write_manifest({"train": shards, "held_out": shards[:1]}, tmp_path / "manifest.json")
    output = inspect(tmp_path / "manifest.json", wordpiece, 2)
    assert output.splitlines() == [
        str(tmp_path / "manifest.json"),
        "  masked examples, kept as a table",
        f"  tokenizer  wordpiece, 15 tokens, sha256 {loaded.sha256[:12]}…",
        "  special    pad 0, unk 1, cls 2, sep 3, mask 4",
        "  settings   objective masked, sequence_length 8, masked.masks static",
        "",
        "  train      2 shards, 4 examples, 26 tokens, 81.2% utilisation, 4 documents,",
        "             14 words, 60 bytes",
        "  tokens",
        "  5 to 8  4 ████████████████████████████████████",
        "",
        "  held_out   1 shard, 2 examples, 13 tokens, 81.2% utilisation, 2 documents,",
        "             7 words, 30 bytes",
        "  tokens",
        "  5 to 8  2 ████████████████████████████████████",
        "",
        "example 0",
        "  [CLS] the [MASK→cat] un·[dog→believ]·able [SEP]",
        "  (7 tokens, 2 masked)",
        "",
        "example 1",
        "  [CLS] cat [SEP]",
        "  [dog→the] [ran→ran] [SEP]",
        "  (6 tokens, 2 masked; the second part is random)",
    ]


def test_a_table_without_a_manifest_is_described_as_in_one(tmp_path, wordpiece, loaded) -> None:
    shard = static_table(tmp_path / "a.arrow", loaded)
    write_manifest({"all": [shard]}, tmp_path / "manifest.json")
    alone, listed = (inspect(path, wordpiece, 9).splitlines() for path in (shard, tmp_path / "manifest.json"))
    assert alone[0] == str(shard)
    assert alone[1:] == listed[1:]


def test_without_a_tokenizer_ids_are_shown(tmp_path, loaded) -> None:
    output = inspect(static_table(tmp_path / "a.arrow", loaded), None, 1)
    assert "  2 5 [4→6] 10 [13→11] 12 3\n" in output


def test_dynamic_masks_show_the_words_that_are_stored(tmp_path, wordpiece, loaded) -> None:
    columns = [
        Column("input_ids", "uint16", 4),
        Column("length", "uint16"),
        Column("second_start", "uint16"),
        Column("next_sentence_label", "int8"),
        Column("word_starts", "bool", 4),
    ]
    starts = [[True, True, True, False]]
    rows = {
        "input_ids": [[5, 6, 10, 12]],
        "length": [4],
        "second_start": [4],
        "next_sentence_label": [-1],
        "word_starts": starts,
    }
    assert "\n  the cat un·able\n  (4 tokens, masks are drawn at reading time)" in inspect(
        table(tmp_path / "a.arrow", loaded, columns, rows), wordpiece, 1
    )


def test_pairs_of_texts_are_both_shown(tmp_path, wordpiece, loaded) -> None:
    columns = [Column("source", "uint16", "ragged"), Column("target", "uint16", "ragged")]
    rows = {"source": ([5, 6, 3, 13, 3], [3, 2]), "target": ([13, 14, 3, 3], [3, 1])}
    output = inspect(table(tmp_path / "a.arrow", loaded, columns, rows, "seq2seq"), wordpiece, 2)
    assert "  all        1 shard, 2 examples, 9 tokens" in output
    assert output.endswith(
        "example 0\n  source: the cat [SEP]\n  target: dog ran [SEP]\n\nexample 1\n  source: dog [SEP]\n  target: [SEP]"
    )


def test_a_stream_shows_the_beginning_of_documents(tmp_path, wordpiece, loaded) -> None:
    path = stream(tmp_path / "a.bin", loaded, [[5, 6, 7] * 60, [8, 9], [13]])
    for given in (path, path.with_suffix(".idx")):
        output = inspect(given, wordpiece, 2)
        assert "  causal examples, kept as a stream of tokens\n" in output
        assert "  all        1 shard, 183 tokens, 3 documents" in output
        assert "\n           1  1 █" in output
        assert "\n  129 to 256  1 █" in output
        assert output.endswith("the … 20 more tokens\n\ndocument 1\n  mat·s")
    write_manifest({"train": [path]}, tmp_path / "manifest.json")
    assert "mat·s" in inspect(tmp_path / "manifest.json", wordpiece, 2)


def test_the_lines_of_a_document_are_shown_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.train.jsonl"
    path.write_text(json.dumps({"id": "1", "title": "T", "text": f"first\n\n{'word ' * 20}\nlast\x1b[2J"}) + "\n")
    write_sidecar(path, documents=1, words=22, bytes=100, skipped={})
    heading, *lines = inspect(path, None, 1).splitlines()[-6:]
    assert heading == "document 0: T"
    assert lines == ["  first", "", f"  {'word ' * 15}".rstrip(), f"  {'word ' * 5}".rstrip(), r"  last\x1b[2J"]


def test_nothing_is_wider_than_a_terminal(tmp_path, wordpiece, loaded) -> None:
    path = stream(tmp_path / "a.bin", loaded, [[13, 14] * 200] * 30 + [[7]] * 9)
    lines = inspect(path, wordpiece, 5).splitlines()
    assert max(map(len, lines[1:])) <= 80
    assert sum(line.startswith("document") for line in lines) == 5


def test_byte_level_tokens_are_shown_as_text() -> None:
    tokenizer = Tokenizer(models.BPE({"Ġ": 0, "a": 1, "Ċ": 2, "Ã": 3, "Ġdog": 4, "Ã©": 5}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = TokenTexts(_loaded(tokenizer))
    assert [texts.shown(token) for token in range(6)] == [
        ("␣", True),
        ("a", False),
        ("⏎", True),
        ("\\xc3", False),
        ("dog", True),
        ("é", False),
    ]
    assert texts.line([1, 4, 5, 2]) == "a dog·é ⏎"


def test_sentencepiece_tokens_are_shown_as_text() -> None:
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁the", -1.0), ("s", -1.0), ("▁", -1.0)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    texts = TokenTexts(_loaded(tokenizer))
    assert [texts.shown(token) for token in (1, 2, 3)] == [("the", True), ("s", False), ("␣", True)]


def _loaded(tokenizer: Tokenizer) -> LoadedTokenizer:
    kind = "sentencepiece" if isinstance(tokenizer.model, models.Unigram) else "byte_level_bpe"
    return LoadedTokenizer(tokenizer, tokenizer.get_vocab_size(), special=None, sha256="", kind=kind)


def test_a_file_that_cannot_be_shown_is_refused(tmp_path, wordpiece, loaded) -> None:
    with pytest.raises(RelmError, match=r"a\.bin: no such file"):
        inspect(tmp_path / "a.bin", None, 1)
    for name, message in (
        ("a.tfrecord", r"expected one of \.json, .*found a file that ends in \.tfrecord"),
        ("a.json", "objective: Field required"),
        ("a.arrow", "no such file"),
    ):
        (tmp_path / name).write_text("{}" if name == "a.json" else "something else entirely")
        with pytest.raises(RelmError, match=rf"{name}.*: .*{message}"):
            inspect(tmp_path / name, None, 1)
    path = static_table(tmp_path / "b.arrow", loaded)
    wordpiece.write_text(wordpiece.read_text().replace('"ran"', '"runs"'))
    with pytest.raises(RelmError, match=r"wordpiece\.json: sha256 is .*b\.arrow was made with a tokenizer of sha256"):
        inspect(path, wordpiece, 1)


def test_files_that_are_not_the_recorded_ones_are_refused_by_name(tmp_path, loaded) -> None:
    """Each change leaves a file and an index that fit each other."""
    path, index = stream(tmp_path / "a.bin", loaded, [[5, 6, 7], [8, 9], [13]]), tmp_path / "a.idx"
    write_sidecar(path, **{**read_sidecar(path), "idx_sha256": sha256_of(index)})
    good = index.read_bytes(), path.read_bytes()
    stream(tmp_path / "b.bin", loaded, [[5, 6], [7, 8, 9], [13]])
    index.write_bytes((tmp_path / "b.idx").read_bytes())
    with pytest.raises(RelmError, match=r"a\.idx: not the index that .*a\.bin\.json lists"):
        inspect(path, None, 1)
    index.write_bytes(good[0])
    path.write_bytes(good[1][::-1])
    with pytest.raises(RelmError, match=r"a\.bin: changed: sha256 is .*, but .*a\.bin\.json says"):
        inspect(path, None, 1)
    path.with_name("a.bin.json").unlink()
    with pytest.raises(RelmError, match=r"a\.bin\.json: no such file"):
        inspect(path, None, 1)
