import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from relm.artifact import read_sidecar, write_sidecar
from relm.errors import RelmError
from relm.examples import masked as module
from relm.examples.contract import IGNORED
from relm.examples.manifest import write_manifest
from relm.examples.masked import MaskedExamples, pregenerate_masked
from relm.examples.sharded_tables import ExampleTables
from relm.examples.table import ExampleTable
from relm.examples.tokenization.tokenizer_files import SpecialIds
from relm.recipes.objectives import Objective

LETTERS = "abcdefghijklm"
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
PAD, CLS, SEP, MASK = 0, 2, 3, 4
LENGTH = 32


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """Write a WordPiece with a token for each letter, so that a word of three letters has three tokens."""
    return write_tokenizer(tmp_path / "wordpiece.json", TOKENS[:5])


def write_tokenizer(path: Path, special: list[str]) -> Path:
    made = Tokenizer(models.WordPiece({token: number for number, token in enumerate(TOKENS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(special)
    path.write_text(made.to_str())
    return path


def write_texts(path: Path, texts: list[str]) -> Path:
    documents = [{"id": str(i), "title": f"T{i}", "text": text} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    write_sidecar(path, documents=len(texts))
    return path


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Write 120 documents of one to twenty lines, each a sentence of short words."""
    return write_texts(tmp_path / "a.jsonl", some_texts(120, 7))


def some_texts(count: int, seed: int) -> list[str]:
    generator = np.random.default_rng(seed)

    def sentence() -> str:
        sizes = generator.integers(1, 5, generator.integers(1, 6))
        return " ".join("".join(generator.choice(list(LETTERS), size)) for size in sizes) + " ."

    return ["\n".join(sentence() for _ in range(generator.integers(1, 21))) for _ in range(count)]


def objective(**masked: Any) -> Objective:
    settings = {"sentences": "lines", **masked}
    return Objective.model_validate({"objective": "masked", "sequence_length": LENGTH, "masked": settings})


def built(documents: Path, tokenizer: Path, output: Path, workers: int = 1, **masked: Any) -> ExampleTable:
    pregenerate_masked(documents, tokenizer, output, objective(**masked), "en", workers)
    return ExampleTable(output)


def column(table: ExampleTable, name: str) -> np.ndarray:
    return table.rows(name, np.arange(len(table)))


def examples_of(tmp_path: Path, shards: list[Path], seed: int = 0, **masked: Any) -> MaskedExamples:
    manifest = tmp_path / "manifest.json"
    write_manifest({"train": shards}, manifest)
    tables = ExampleTables(manifest, "train")
    facts = tables.manifest.tokenizer
    return MaskedExamples(tables, objective(**masked), seed, SpecialIds(**facts.special), facts.vocabulary_size)


def decoded(ids: np.ndarray) -> str:
    return " ".join(TOKENS[token] for token in ids)


def test_a_few_documents_become_the_sequences_one_expects(tmp_path: Path, tokenizer: Path) -> None:
    two = write_texts(tmp_path / "two.jsonl", ["ab c .\nd .\n\nefg .", "h .\ni j k l m ."])
    table = built(two, tokenizer, tmp_path / "full.arrow")
    ids = column(table, "input_ids")
    assert [decoded(row[row != PAD]) for row in ids] == [
        "[CLS] a ##b c . d . e ##f ##g . [SEP] h . i j k l m . [SEP]",
    ]
    starts = column(table, "word_starts")[0]
    assert [TOKENS[token] for token in ids[0][~starts & (ids[0] != PAD)]] == ["##b", "##f", "##g"]
    assert not starts[21:].any()
    assert [int(column(table, name)[0]) for name in ("length", "second_start", "next_sentence_label")] == [21, 21, -1]
    table = built(two, tokenizer, tmp_path / "documents.arrow", packing="document_sentences")
    assert [decoded(row[row != PAD]) for row in column(table, "input_ids")] == [
        "[CLS] a ##b c . d . e ##f ##g . [SEP]",
        "[CLS] h . i j k l m . [SEP]",
    ]


def test_the_sidecar_describes_the_table(tmp_path: Path, tokenizer: Path, documents: Path) -> None:
    """Count documents, tokens and pairs of a table; `test_pregenerate.py` lists every key of a sidecar."""
    options = {"packing": "sentence_pairs", "duplication_factor": 2, "short_sequence_probability": 0.1}
    message = pregenerate_masked(documents, tokenizer, tmp_path / "a.arrow", objective(**options), "en", 1)
    facts, table = read_sidecar(tmp_path / "a.arrow"), ExampleTable(tmp_path / "a.arrow")
    length, label = column(table, "length").astype(int), column(table, "next_sentence_label")
    texts = [json.loads(line)["text"] for line in documents.read_text().splitlines()]
    words = sum(len(text.split()) for text in texts)
    second = column(table, "second_start").astype(int)
    used = (second - 2).sum() + (length - second - 1)[label == 0].sum()
    by_length = [np.count_nonzero((length > bound // 2) & (length <= bound)) for bound in (16, 32)]
    expected = {
        "documents": 120,
        "words": words,
        "bytes": sum(map(len, texts)),
        "settings": objective(**options).stored_keys(),
        "tokens": length.sum(),
        "examples": len(table),
        "length_histogram": [[16, by_length[0]], [32, by_length[1]]],
        "utilisation": length.sum() / (len(table) * LENGTH),
        "pairs_that_follow": (label == 0).sum(),
        "random_pairs": (label == 1).sum(),
        "truncated_tokens": 2 * sum(len("".join(text.split())) for text in texts) - used,  # a letter is a token
    }
    assert {name: facts[name] for name in expected} == expected
    assert facts["truncated_tokens"] > 0
    counted = f"{words:,} words into {len(table):,} sequences of {length.sum():,} tokens, "
    assert message.startswith(f"packed 120 documents with {counted}")
    assert f"{facts['random_pairs']:,} are random, {facts['truncated_tokens']:,} tokens were cut off; " in message


@pytest.mark.parametrize(
    "options", [{"packing": "sentence_pairs", "masks": "static", "duplication_factor": 2}, {"packing": "full_sentences"}]
)
def test_any_number_of_workers_and_any_blocks_write_the_same_bytes(
    tmp_path: Path, tokenizer: Path, documents: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = {read_bytes(built(documents, tokenizer, tmp_path / "whole.arrow", 1, **options))}
    monkeypatch.setattr("relm.examples.documents.CHUNK", 4096)
    monkeypatch.setattr(module, "BLOCK", 5 * LENGTH)
    for workers in (1, 2):
        hashes.add(read_bytes(built(documents, tokenizer, tmp_path / f"{workers}.arrow", workers, **options)))
    assert len(hashes) == 1


def read_bytes(table: ExampleTable) -> bytes:
    facts = read_sidecar(table.path)
    return table.path.read_bytes() + str({**facts, "file": ""}).encode()


def test_repetitions_and_shards_are_packed_and_masked_otherwise(tmp_path: Path, tokenizer: Path) -> None:
    texts = some_texts(30, 1)
    first, second = write_texts(tmp_path / "1.jsonl", texts), write_texts(tmp_path / "2.jsonl", [*texts, "a ."])
    options = {"packing": "sentence_pairs", "masks": "static"}
    twice = built(first, tokenizer, tmp_path / "twice.arrow", duplication_factor=2, **options)
    once = built(first, tokenizer, tmp_path / "once.arrow", **options)
    other = built(second, tokenizer, tmp_path / "other.arrow", **options)
    assert len(twice) > 1.8 * len(once)
    rows, count = column(twice, "input_ids"), len(once)
    assert np.array_equal(rows[:count], column(once, "input_ids"))
    seconds = column(twice, "second_start")
    assert not np.array_equal(seconds[count : count + 20], seconds[:20])
    assert (column(other, "masked_positions")[:20] != column(once, "masked_positions")[:20]).any(axis=1).sum() > 15


def test_static_masks_are_stored_and_read_unchanged(tmp_path: Path, tokenizer: Path, documents: Path) -> None:
    options = {"packing": "document_sentences", "masks": "static", "whole_words": True}
    plain = built(documents, tokenizer, tmp_path / "plain.arrow", packing="document_sentences")
    table = built(documents, tokenizer, tmp_path / "a.arrow", **options)
    ids, before, count = column(table, "input_ids"), column(plain, "input_ids"), column(table, "masked_count")
    positions, labels = column(table, "masked_positions"), column(table, "masked_labels")
    for row in range(len(table)):
        hidden = positions[row, : count[row]]
        assert np.array_equal(before[row, hidden], labels[row, : count[row]])
        assert np.array_equal(np.delete(ids[row], hidden), np.delete(before[row], hidden))
    examples = examples_of(tmp_path, [tmp_path / "a.arrow"], seed=5, **options)
    batches = [examples.batch(np.array([7, 3]), np.array(epochs)) for epochs in ([0, 0], [1, 9])]
    assert all(np.array_equal(batches[0][name], batches[1][name]) for name in batches[0])
    assert np.array_equal(batches[0]["input_ids"], ids[[7, 3]])
    assert batches[0]["masked_labels"][0].tolist() == [*labels[7, : count[7]].tolist(), *[IGNORED] * (5 - count[7])]


def test_a_batch_has_the_arrays_of_the_contract(tmp_path: Path, tokenizer: Path, documents: Path) -> None:
    options = {"packing": "sentence_pairs", "short_sequence_probability": 0.3}
    table = built(documents, tokenizer, tmp_path / "a.arrow", **options)
    examples = examples_of(tmp_path, [tmp_path / "a.arrow"], **options)
    assert len(examples) == len(table)
    rows = np.arange(len(table))
    batch = examples.batch(rows, rows % 3)
    integers = {name: (array.dtype, array.shape[1:]) for name, array in batch.items()}
    assert integers == {
        "input_ids": (np.int64, (LENGTH,)),
        "attention_mask": (np.bool_, (LENGTH,)),
        "token_type_ids": (np.int64, (LENGTH,)),
        "masked_positions": (np.int64, (5,)),
        "masked_labels": (np.int64, (5,)),
        "next_sentence_labels": (np.int64, ()),
    }
    length, second = column(table, "length").astype(int), column(table, "second_start").astype(int)
    assert np.array_equal(batch["attention_mask"].sum(axis=1), length)
    assert np.array_equal(batch["token_type_ids"].sum(axis=1), length - second)
    assert np.array_equal(batch["next_sentence_labels"], column(table, "next_sentence_label"))
    scored = batch["masked_labels"] != IGNORED
    assert np.array_equal(scored.sum(axis=1), np.maximum(1, np.rint(0.15 * length)))
    assert (scored[:, :-1] >= scored[:, 1:]).all()
    assert not batch["masked_positions"][~scored].any()
    whole = column(table, "input_ids")
    put_back = batch["input_ids"].copy()
    np.put_along_axis(put_back, batch["masked_positions"], np.where(scored, batch["masked_labels"], whole[:, :1]), axis=1)
    assert np.array_equal(put_back, whole)
    assert (batch["input_ids"] == MASK).any()
    with pytest.raises(IndexError, match="examples are 0 to 547, requested 548 to 548"):
        examples.batch(np.array([len(table)]), np.array([0]))


def test_whole_words_are_masked_at_reading_time(tmp_path: Path, tokenizer: Path, documents: Path) -> None:
    table = built(documents, tokenizer, tmp_path / "a.arrow")
    rows = np.arange(len(table))
    whole = {}
    for whole_words in (True, False):
        examples = examples_of(tmp_path, [tmp_path / "a.arrow"], whole_words=whole_words)
        batch = examples.batch(rows, rows * 0)
        scored = batch["masked_labels"] != IGNORED
        hidden = np.zeros((len(rows), LENGTH), bool)
        hidden[np.nonzero(scored)[0], batch["masked_positions"][scored]] = True
        words = np.cumsum(column(table, "word_starts"))
        of_word = np.bincount(words, hidden.ravel())
        whole[whole_words] = ((of_word == 0) | (of_word == np.bincount(words)))[words[hidden.ravel()]].mean()
    assert whole[True] == 1
    assert whole[False] < 0.8


def test_sequences_without_pairs_have_no_label(tmp_path: Path, tokenizer: Path, documents: Path) -> None:
    built(documents, tokenizer, tmp_path / "a.arrow")
    batch = examples_of(tmp_path, [tmp_path / "a.arrow"]).batch(np.arange(5), np.zeros(5, np.int64))
    assert "next_sentence_labels" not in batch
    assert not batch["token_type_ids"].any()


def test_each_epoch_and_each_seed_masks_other_tokens(tmp_path: Path, tokenizer: Path, documents: Path) -> None:
    built(documents, tokenizer, tmp_path / "a.arrow")
    examples = examples_of(tmp_path, [tmp_path / "a.arrow"])
    rows, epoch = np.arange(40), np.zeros(40, np.int64)
    first = examples.batch(rows, epoch)["masked_positions"]
    assert np.array_equal(first, examples.batch(rows, epoch)["masked_positions"])
    others = [
        examples.batch(rows, epoch + 1),
        examples_of(tmp_path, [tmp_path / "a.arrow"], seed=1).batch(rows, epoch),
    ]
    for other in others:
        assert (other["masked_positions"] != first).any(axis=1).mean() > 0.9


def test_a_file_without_text_is_refused_unless_its_sidecar_records_no_documents(tmp_path: Path, tokenizer: Path) -> None:
    blank = write_texts(tmp_path / "blank.jsonl", ["", " \n "])
    with pytest.raises(RelmError, match=r"blank\.jsonl: holds no text; extract"):
        built(blank, tokenizer, tmp_path / "a.arrow")
    assert not (tmp_path / "a.arrow").exists()
    empty = write_texts(tmp_path / "empty.jsonl", [])
    assert len(built(empty, tokenizer, tmp_path / "a.arrow")) == 0
    assert read_sidecar(tmp_path / "a.arrow")["utilisation"] == 0


def test_a_tokenizer_that_lacks_special_tokens_is_refused(tmp_path: Path, documents: Path) -> None:
    lacking = write_tokenizer(tmp_path / "lacking.json", ["[PAD]", "[SEP]"])
    with pytest.raises(RelmError, match=r"lacking\.json: lacks the special tokens \[CLS\] or <s>, \[MASK\] or <mask>, which"):
        built(documents, lacking, tmp_path / "a.arrow")
    assert not (tmp_path / "a.arrow").exists()


def test_settings_that_do_not_fit_are_refused(tmp_path: Path, tokenizer: Path, documents: Path) -> None:
    short = objective().model_copy(update={"sequence_length": 2})
    with pytest.raises(RelmError, match="sequence_length: 2 leaves no room"):
        pregenerate_masked(documents, tokenizer, tmp_path / "a.arrow", short, "en", 1)
    one = write_texts(tmp_path / "one.jsonl", ["a .\nb ."])
    with pytest.raises(RelmError, match="found one document; give each file at least two"):
        built(one, tokenizer, tmp_path / "a.arrow", packing="sentence_pairs")
    built(documents, tokenizer, tmp_path / "a.arrow")
    examples = examples_of(tmp_path, [tmp_path / "a.arrow"])
    longer = objective().model_copy(update={"sequence_length": 64})
    with pytest.raises(RelmError, match="sequence_length: 64, but the examples were packed to 32"):
        MaskedExamples(examples.tables, longer, 0, examples.special, examples.vocabulary_size)
