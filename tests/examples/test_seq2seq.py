import json
from pathlib import Path

import numpy as np
import pytest

from relm.artifact import read_sidecar, sha256_of, sidecar_of
from relm.errors import RelmError
from relm.examples.columns import Ragged
from relm.examples.contract import IGNORED
from relm.examples.diacritics import without_diacritics
from relm.examples.manifest import length_histogram, write_manifest
from relm.examples.seq2seq import Seq2SeqExamples, padded, pregenerate_seq2seq, target_texts
from relm.examples.sharded_tables import ExampleTables
from relm.examples.table import ExampleTable
from relm.examples.tokenization.tokenizer_files import SpecialIds, load_tokenizer
from relm.recipes.objectives import Objective, Seq2Seq
from small_tokenizers import save_words

PAD, END = 0, 1
WORDS = ["<pad>", "</s>", "<unk>", "să", "sa", "și", "si", "ții", "tii", "in", "în", "casă", "casa"]
SPECIAL = SpecialIds(end_of_text=END, pad=PAD, unk=2)


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """Write a tokenizer of thirteen tokens, each a word."""
    return save_words(tmp_path / "words.json", WORDS, special=WORDS[:3], unknown="<unk>")


def objective(sequence_length: int = 8, **options: object) -> Objective:
    return Objective(objective="seq2seq", sequence_length=sequence_length, seq2seq=Seq2Seq(**options))


def pairs_in(table: Path) -> list[tuple[list[int], list[int]]]:
    """Return (source, target) of each row."""
    opened = ExampleTable(table)
    columns = []
    for name in ("source", "target"):
        values, sizes = opened.rows(name, np.arange(len(opened)))
        columns.append([row.tolist() for row in np.split(values, np.cumsum(sizes)[:-1])])
    return list(zip(*columns, strict=True))


def test_a_pair_is_a_line_and_the_line_without_diacritics_each_with_one_end(tmp_path, words, write_documents) -> None:
    documents = write_documents("a.jsonl", ["să ţii\n\n  în casă \n", "", " \n", "şi"])
    message = pregenerate_seq2seq(documents, words, tmp_path / "a.arrow", objective(), "ro", workers=1)
    assert pairs_in(tmp_path / "a.arrow") == [
        ([4, 8, END], [3, 7, END]),
        ([9, 12, END], [10, 11, END]),
        ([6, END], [5, END]),
    ]
    assert message.startswith("encoded 4 documents with 5 words as 3 pairs of 16 tokens in ")


def test_a_pair_can_be_a_whole_document(tmp_path, words, write_documents) -> None:
    documents = write_documents("a.jsonl", ["să ții\nîn casă", "și"])
    pregenerate_seq2seq(documents, words, tmp_path / "a.arrow", objective(texts="documents"), "ro", workers=1)
    assert pairs_in(tmp_path / "a.arrow") == [([4, 8, 9, 12, END], [3, 7, 10, 11, END]), ([6, END], [5, END])]


def test_targets_are_in_standard_letters_of_their_language() -> None:
    assert target_texts("\u00a0ţară \n\t\nşi\u2028", Seq2Seq(), "ro") == ["țară", "și"]
    assert target_texts("şeker\nça", Seq2Seq(texts="documents"), "tr") == ["şeker\nça"]
    assert target_texts(" \n ", Seq2Seq(texts="documents"), "ro") == []


def test_the_name_of_the_end_in_a_text_is_no_end(tmp_path, tokenizer, words, write_documents) -> None:
    documents = write_documents("a.jsonl", ["să<|endoftext|> </s> în"])
    pregenerate_seq2seq(documents, tokenizer, tmp_path / "a.arrow", objective(), "ro", workers=1)
    end = load_tokenizer(tokenizer).special.end_of_text
    assert [side.count(end) for side in pairs_in(tmp_path / "a.arrow")[0]] == [1, 1]
    with pytest.raises(RelmError, match=r"words\.json: encodes ordinary text as the end of text"):
        pregenerate_seq2seq(documents, words, tmp_path / "b.arrow", objective(), "ro", workers=1)


def test_the_sidecar_has_the_facts_of_the_manifest(tmp_path, words, write_documents) -> None:
    documents = write_documents("a.jsonl", ["să ții\nîn casă și si", "şi"])
    output = tmp_path / "a.arrow"
    pregenerate_seq2seq(documents, words, output, objective(target_length=5), "ro", workers=1)
    sidecar = read_sidecar(output)
    expected = {
        "special": {"end_of_text": 1, "pad": 0, "unk": 2, "cls": None, "sep": 1, "mask": None},
        "settings": objective().stored_keys(),
        "source": sha256_of(documents),
        "tokens": 3 + 3 + 5 + 5 + 2 + 2,
        "documents": 2,
        "words": 7,
        "bytes": len("să ții\nîn casă și siși".encode()),
        "examples": 3,
        "length_histogram": [[2, 1], [4, 1], [8, 1]],
    }
    assert {name: sidecar[name] for name in expected} == expected


def test_workers_and_chunks_change_no_byte(tmp_path, tokenizer, prose, write_documents, monkeypatch) -> None:
    documents = write_documents("a.jsonl", prose)
    pregenerate_seq2seq(documents, tokenizer, tmp_path / "one.arrow", objective(), "ro", workers=1)
    monkeypatch.setattr("relm.examples.documents.CHUNK", 5000)
    pregenerate_seq2seq(documents, tokenizer, tmp_path / "two.arrow", objective(), "ro", workers=2)
    assert (tmp_path / "one.arrow").read_bytes() == (tmp_path / "two.arrow").read_bytes()
    facts = [read_sidecar(tmp_path / name) for name in ("one.arrow", "two.arrow")]
    assert {**facts[0], "file": ""} == {**facts[1], "file": ""}


def test_decoded_pairs_are_the_texts(tmp_path, tokenizer, prose, write_documents) -> None:
    loaded = load_tokenizer(tokenizer)
    texts = [*prose, "ĂĂĂ"]  # a letter of two tokens
    pregenerate_seq2seq(write_documents("a.jsonl", texts), tokenizer, tmp_path / "a.arrow", objective(), "ro", workers=1)
    pairs = pairs_in(tmp_path / "a.arrow")
    lines = [line.strip() for text in texts for line in text.split("\n") if line.strip()]
    assert len(pairs) == len(lines) > 200
    assert {np.sign(len(source) - len(target)) for source, target in pairs} == {-1, 0, 1}
    longer = np.array([max(map(len, pair)) for pair in pairs])
    assert read_sidecar(tmp_path / "a.arrow")["length_histogram"] == length_histogram(longer)
    for (source, target), line in zip(pairs, lines, strict=True):
        assert [side.count(loaded.special.end_of_text) for side in (source, target)] == [1, 1]
        assert loaded.tokenizer.decode(target[:-1]) == line
        assert loaded.tokenizer.decode(source[:-1]) == without_diacritics(line)


def test_documents_that_give_no_pair_are_refused_unless_the_shard_is_empty(tmp_path, words, write_documents) -> None:
    with pytest.raises(RelmError, match=r"a\.jsonl: holds no text that gives a pair"):
        pregenerate_seq2seq(write_documents("a.jsonl", [" \n "]), words, tmp_path / "a.arrow", objective(), "ro", workers=1)
    assert not (tmp_path / "a.arrow").exists()
    pregenerate_seq2seq(write_documents("b.jsonl", []), words, tmp_path / "b.arrow", objective(), "ro", workers=1)
    assert len(ExampleTable(tmp_path / "b.arrow")) == 0
    assert read_sidecar(tmp_path / "b.arrow")["examples"] == 0


def test_a_tokenizer_without_an_end_of_text_is_refused(tmp_path, words, write_documents) -> None:
    content = json.loads(words.read_text())
    content["added_tokens"] = content["added_tokens"][::2]
    words.write_text(json.dumps(content))
    with pytest.raises(RelmError, match=r"words\.json: lacks the special token .*</s>"):
        pregenerate_seq2seq(write_documents("a.jsonl", ["să"]), words, tmp_path / "a.arrow", objective(), "ro")


def test_long_rows_are_truncated_and_keep_their_end() -> None:
    rows = Ragged(np.array([5, 6, END, 5, 6, 7, 8, END, END], dtype=np.uint16), np.array([3, 5, 1]))
    assert padded(rows, 4, END, PAD)[0].tolist() == [[5, 6, END, 0], [5, 6, 7, END], [END, 0, 0, 0]]
    assert padded(rows, 3, END, IGNORED)[0].tolist() == [[5, 6, END], [5, 6, END], [END, -100, -100]]
    tokens, present = padded(rows, 2, END, PAD)
    assert tokens.tolist() == [[5, END], [5, END], [END, 0]]
    assert present.tolist() == [[True, True], [True, True], [True, False]]


@pytest.fixture
def tables(tmp_path, words, write_documents) -> ExampleTables:
    """Open five pairs in two shards."""
    shards = []
    for name, texts in {"a": ["să\nsă ții în casă", "în casă"], "b": ["și\nși și"]}.items():
        shards.append(tmp_path / f"{name}.arrow")
        pregenerate_seq2seq(write_documents(f"{name}.jsonl", texts), words, shards[-1], objective(), "ro", workers=1)
    write_manifest({"train": shards}, tmp_path / "manifest.json")
    return ExampleTables(tmp_path / "manifest.json", "train")


def test_a_batch_pads_inputs_with_the_pad_and_labels_with_the_ignored_label(tables) -> None:
    examples = Seq2SeqExamples(tables, objective(4), SPECIAL)
    assert len(examples) == 5
    batch = examples.batch(np.array([4, 1, 0]), np.zeros(3, dtype=np.int64))
    assert {name: (array.dtype.name, array.tolist()) for name, array in batch.items()} == {
        "input_ids": ("int64", [[6, 6, END, PAD], [4, 8, 9, END], [4, END, PAD, PAD]]),
        "attention_mask": ("bool", [[True, True, True, False], [True] * 4, [True, True, False, False]]),
        "labels": ("int64", [[5, 5, END, -100], [3, 7, 10, END], [3, END, -100, -100]]),
    }


def test_the_target_may_have_its_own_length(tables) -> None:
    batch = Seq2SeqExamples(tables, objective(4, target_length=2), SPECIAL).batch(np.array([1]), np.array([0]))
    assert batch["input_ids"].tolist() == [[4, 8, 9, END]]
    assert batch["labels"].tolist() == [[3, END]]


def test_without_a_token_for_padding_the_end_stands_in_behind_the_attention(tables) -> None:
    batch = Seq2SeqExamples(tables, objective(4), SpecialIds(end_of_text=END)).batch(np.array([0]), np.array([0]))
    assert batch["input_ids"].tolist() == [[4, END, END, END]]
    assert batch["attention_mask"].tolist() == [[True, True, False, False]]
    assert batch["labels"].tolist() == [[3, END, -100, -100]]


def test_an_example_that_does_not_exist_is_refused(tables) -> None:
    with pytest.raises(IndexError, match="requested 5"):
        Seq2SeqExamples(tables, objective(), SPECIAL).batch(np.array([5]), np.array([0]))


def test_a_faulty_line_is_named(tmp_path, words, write_documents) -> None:
    documents = write_documents("a.jsonl", ["să"])
    documents.write_text(documents.read_text() + "no document\n")
    sidecar_of(documents).unlink()
    with pytest.raises(RelmError, match=r"a\.jsonl, line 2: not valid JSON"):
        pregenerate_seq2seq(documents, words, tmp_path / "a.arrow", objective(), "ro", workers=1)
