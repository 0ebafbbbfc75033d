import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from prose_sample import save_byte_level
from tokenizers import Tokenizer, processors

from relm.artifact import checked_sidecar
from relm.errors import RelmError
from relm.examples.as_published.run_mlm import cut_blocks, pregenerate_run_mlm, split_rows
from relm.examples.table import ExampleTable
from relm.recipes.as_published import AsPublished
from relm.recipes.objectives import Objective


def objective(**changes: object) -> Objective:
    masked = {"masks": "dynamic", "selection": "bernoulli"}
    published = {"builder": "run_mlm"}
    given = {"objective": "masked", "sequence_length": 64, "masked": masked, "as_published": published}
    for key, value in changes.items():
        section = published if key in AsPublished.model_fields else given if key in given else masked
        section[key] = value
    return Objective.model_validate(given)


@pytest.fixture
def articles(blocks) -> list[str]:
    """Some thousand rows in the form of WikiText: a heading between blank lines, then lines that begin and end with a space."""
    texts = []
    for number, text in itertools.islice(enumerate(itertools.cycle(blocks)), 400):
        lines = [f" {line.strip()} " for line in text.split("\n")]
        texts.append("\n".join([" ", f" = Article {number} = ", " ", *lines[: 1 + number % len(lines)], " "]))
    return texts


@pytest.fixture
def published(articles, wordpiece, tmp_path, monkeypatch) -> Iterator[list[list[int]]]:
    """The blocks that `datasets` and the script's two functions give for these rows as a file."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    tokenizer = Tokenizer.from_file(str(wordpiece))
    cls, sep = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls))

    def tokenized(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {"input_ids": [encoding.ids for encoding in tokenizer.encode_batch(batch["text"])]}

    def grouped(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = list(itertools.chain.from_iterable(batch["input_ids"]))
        return {"input_ids": [joined[at : at + 64] for at in range(0, len(joined) // 64 * 64, 64)]}

    path = tmp_path / "wiki.train.raw"
    path.write_text("".join(f"{text}\n" for text in articles), encoding="utf-8")
    with open(path, encoding="utf-8") as file:
        rows = [row if row.strip() else "" for row in file]
    data = datasets.Dataset.from_dict({"text": rows})
    options = {"batched": True, "load_from_cache_file": False, "keep_in_memory": True}
    mapped = data.map(tokenized, remove_columns=["text"], **options).map(grouped, **options)
    return mapped["input_ids"][:]


def test_blocks_are_those_that_datasets_makes(published, articles, write_documents, wordpiece, tmp_path) -> None:
    documents, output = write_documents("wiki.jsonl", articles), tmp_path / "shard.arrow"
    pregenerate_run_mlm(documents, wordpiece, output, objective(), "en", 1)
    table, facts = ExampleTable(output), checked_sidecar(output)
    assert table.rows("input_ids", np.arange(len(table))).tolist() == published
    assert (facts["examples"], facts["tokens"]) == (len(published), 64 * len(published))
    rows = sum(text.count("\n") + 1 for text in articles)
    encoded = Tokenizer.from_file(str(wordpiece)).encode_batch("\n".join(articles).split("\n"))
    assert sum(len(row.ids) + 2 for row in encoded) == facts["tokens"] + facts["dropped_tokens"]
    assert (facts["rows"], facts["documents"]) == (rows, 400)
    assert rows > 2000  # several batches, so that each drops its remainder


def test_rows_say_where_words_begin_and_have_no_masks(articles, write_documents, wordpiece, words, tmp_path) -> None:
    output = tmp_path / "shard.arrow"
    pregenerate_run_mlm(write_documents("wiki.jsonl", articles), wordpiece, output, objective(), "en", 1)
    table = ExampleTable(output)
    numbers = np.arange(len(table))
    continues = np.array([word.startswith("##") for word in words])
    ids, starts = table.rows("input_ids", numbers), table.rows("word_starts", numbers)
    assert (starts == ~continues[ids]).all()
    assert set(table.columns) == {"input_ids", "length", "second_start", "next_sentence_label", "word_starts"}
    assert set(table.rows("length", numbers).tolist()) == set(table.rows("second_start", numbers).tolist()) == {64}


def test_workers_change_no_byte(articles, write_documents, wordpiece, tmp_path) -> None:
    documents = write_documents("wiki.jsonl", articles)
    for workers in (1, 2):
        pregenerate_run_mlm(documents, wordpiece, tmp_path / f"{workers}.arrow", objective(), "en", workers)
    assert (tmp_path / "1.arrow").read_bytes() == (tmp_path / "2.arrow").read_bytes()


def test_a_batch_shorter_than_a_block_gives_none(write_documents, wordpiece, tmp_path) -> None:
    pregenerate_run_mlm(write_documents("wiki.jsonl", [" \n = A = \n "]), wordpiece, tmp_path / "x.arrow", objective(), "en", 1)
    assert len(ExampleTable(tmp_path / "x.arrow")) == 0


def test_every_row_gets_its_own_special_tokens_and_the_rest_is_dropped() -> None:
    tokens, starts = np.arange(10, 15, dtype=np.int32), np.array([True, False, True, True, False])
    made = cut_blocks(tokens, np.array([2, 0, 3], dtype=np.int32), starts, 1, 2, 4)
    assert made.input_ids.tolist() == [[1, 10, 11, 2], [1, 2, 1, 12]]
    assert made.word_starts.tolist() == [[True, True, False, True], [True, True, True, True]]
    assert made.dropped == 3


def test_blank_lines_are_empty_rows_and_others_keep_their_ends() -> None:
    assert split_rows("a\n \n\u00a0\nb\r\nc\rd") == ["a\n", "", "", "b\n", "c\n", "d\n"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"masks": "static"}, "masked.masks: run_mlm has no option for static; set it to dynamic"),
        ({"selection": "exact"}, "masked.selection: run_mlm has no option for exact; set it to bernoulli"),
        ({"max_predictions": 80}, "masked.max_predictions: run_mlm has no option for 80; set it to null"),
        ({"duplication_factor": 2}, "masked.duplication_factor: run_mlm has no option for 2"),
        ({"packing": "sentence_pairs"}, "masked.packing: run_mlm has no option for sentence_pairs"),
    ],
)
def test_options_that_the_original_lacks_are_refused(change, message, articles, write_documents, wordpiece, tmp_path) -> None:
    documents = write_documents("wiki.jsonl", articles)
    with pytest.raises(RelmError, match=message):
        pregenerate_run_mlm(documents, wordpiece, tmp_path / "x.arrow", objective(**change), "en", 1)


def test_a_tokenizer_without_special_tokens_is_refused(articles, write_documents, tmp_path: Path) -> None:
    tokenizer = save_byte_level(tmp_path / "tokenizer.json", special=["<unk>"])
    with pytest.raises(RelmError, match=r"lacks the special token \[CLS\] or <s>"):
        pregenerate_run_mlm(write_documents("w.jsonl", articles), tokenizer, tmp_path / "x.arrow", objective(), "en", 1)
    assert not (tmp_path / "x.arrow").exists()
