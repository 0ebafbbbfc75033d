import functools
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from original_records import make_plain_records, make_remasked_records
from prose_sample import blocks_of, save_wordpiece, words_of
from published_phases import published_objective

from relm.artifact import checked_sidecar
from relm.errors import RelmError
from relm.examples.as_published.graphcore_bert import (
    GraphcoreBertOptions,
    GraphcoreBertVocabulary,
    make_instances,
    pregenerate_graphcore_bert,
    read_vocabulary,
    remask,
)
from relm.examples.as_published.instances import pack_instances, split_columns
from relm.examples.table import ExampleTable
from relm.examples.tokenization.tokenizer_files import load_tokenizer

# Settings, seed -> records, and the sha256 of them as lines of JSON, plain and remasked. Facts, computed by running the
# original's own create_training_instances and write_instance_to_example_files (graphcore/examples v3.0.0, instead of TensorFlow
# a few lines that keep each record's features) on tests/data/prose-sample.txt with prose-vocabulary.txt.
PUBLISHED = [
    (
        GraphcoreBertOptions(128, 20, duplication_factor=5), 1984, 104,
        "3812d2e74b5683f77e2edf91e2daf947c7e9ae7d0cf4a5a49d6856016df410e0",
        "a76aa1fb3501666d7b30f3e7fce64d919b800286e9f0d07f265f61a221c7a04f",
    ),
    (
        GraphcoreBertOptions(384, 58, duplication_factor=5), 1984, 73,
        "274e4fbf109629b46bc59516fb34fbf35f7052b0cfd8c8e4ff2d3524f8134b31",
        "0f0d4a4c9224d61bf6e66ae538e3e1c03fcc8e1455447505394ea3c8ca0da711",
    ),
    (
        GraphcoreBertOptions(128, 20, duplication_factor=1), 7, 25,
        "e98995a5ec7235183eabbf7c55eb1424d6fe8ac84cd2d3bd29c4316929064723",
        "6392f7b54984fbf7747a5e1421eb612436ff8364b94e355ebd8a615f940974d4",
    ),
    (
        GraphcoreBertOptions(64, 30, 0.3, 0.9, 3), 0, 93,
        "692fc062468b5183b803829925da01b18f4af9bfa566c28e0b600a05c8be6201",
        "4c716f38bb8956b233201e9a705b8a224ebff4f36288c601c03e5977e84a2868",
    ),
    (
        GraphcoreBertOptions(512, 80, 0.15, 0.0, 2), 42, 25,
        "a17236be60ffb4faf132c3b1c810b710730e31a4a1fc30f9f71594ae335573be",
        "587edc4ed56187ab0e87300eb103212aed2ca7c995f35210c22cc88240680af8",
    ),
]  # fmt: skip


def records_of(columns: dict[str, Any], is_remasked: bool, pad_position: int = 384) -> Iterator[dict[str, list[float]]]:
    """Yield the features of each record as lists, in the original's order."""
    predictions = columns["masked_positions"].shape[1]
    made = make_remasked_records(remask(columns, predictions, pad_position)) if is_remasked else make_plain_records(columns)
    for record in made:
        yield {name: (values * 1).tolist() for name, values in record.items()}


def digest_of(records: list[dict[str, list[float]]]) -> str:
    return hashlib.sha256("".join(json.dumps(record) + "\n" for record in records).encode()).hexdigest()


def shuffled_columns(corpus, settings: GraphcoreBertOptions, vocabulary: GraphcoreBertVocabulary, seed: int) -> dict[str, Any]:
    """Return the instances that the original holds in memory before it writes."""
    draws = random.Random(seed)
    made = list(make_instances(corpus, settings, vocabulary, draws))
    draws.shuffle(made)
    rows = pack_instances(made, settings.sequence_length, settings.max_predictions, pairs=True)
    return split_columns(rows, settings.sequence_length, settings.max_predictions)


@pytest.fixture
def corpus(blocks, write_documents, make_corpus, wordpiece):
    return make_corpus(write_documents("all.jsonl", blocks), wordpiece)


@pytest.fixture
def vocabulary(wordpiece) -> GraphcoreBertVocabulary:
    return read_vocabulary(load_tokenizer(wordpiece))


@pytest.mark.parametrize(("settings", "seed", "count", "plain", "moved"), PUBLISHED)
def test_records_are_those_of_the_original(settings, seed, count, plain, moved, corpus, vocabulary) -> None:
    columns = shuffled_columns(corpus, settings, vocabulary, seed)
    assert len(columns["length"]) == count
    assert digest_of(list(records_of(columns, is_remasked=False))) == plain
    assert digest_of(list(records_of(columns, is_remasked=True))) == moved


def test_several_output_files_get_every_so_many_th_record(corpus, vocabulary) -> None:
    columns = shuffled_columns(corpus, GraphcoreBertOptions(128, 20, duplication_factor=5), vocabulary, 1984)
    records = list(records_of(columns, is_remasked=True, pad_position=512))
    # The same original with --output-file o0,o1,o2 --pad-position-value 512 --remask, its files one after the other.
    published = "144eba80a92f7c19938b9dcbaa63bb4ad0ed5f790b0915b30b5f104dc325c688"
    assert digest_of(records[0::3] + records[1::3] + records[2::3]) == published


def test_goldens_are_matched_bit_for_bit(goldens, tmp_path, write_documents, make_corpus) -> None:
    tokenizer = save_wordpiece(words_of(goldens / "vocab.txt"), tmp_path / "golden" / "tokenizer.json")
    texts = blocks_of((goldens / "sample.txt").read_text(encoding="utf-8"))
    corpus = make_corpus(write_documents("golden.jsonl", texts), tokenizer)
    vocabulary = read_vocabulary(load_tokenizer(tokenizer))
    columns = shuffled_columns(corpus, GraphcoreBertOptions(128, 20, duplication_factor=5), vocabulary, 1984)
    for name, is_remasked in (("", False), ("_remask", True)):
        lines = "".join(json.dumps(record) + "\n" for record in records_of(columns, is_remasked))
        assert lines == (goldens / f"bert_seq128_mask20_dup5_seed1984{name}.jsonl").read_text(encoding="utf-8")


def test_remasking_moves_masked_tokens_first_and_drops_tokens_with_id_zero() -> None:
    plain = {
        "input_ids": np.array([[2, 9, 0, 4, 3, 7, 3, 0, 0]]),  # the token at 2 was hidden, and [PAD] drawn for it
        "length": np.array([7]),
        "second_start": np.array([5]),
        "next_sentence_label": np.array([1]),
        "masked_positions": np.array([[2, 3, 5, 0]]),
        "masked_labels": np.array([[21, 22, 23, 0]]),
        "masked_count": np.array([3]),
    }
    fields = {name: values[0].tolist() for name, values in remask(plain, 4, pad_position=99).items()}
    assert fields == {
        "input_ids": [4, 7, 0, 0, 2, 9, 3, 3, 0],
        "input_position": [3, 5, 99, 99, 0, 1, 4, 6, 99],
        "segment_ids": [0, 1, 0, 0, 0, 0, 0, 1, 0],
        "mask_padding_index": 2,
        "seq_padding_index": 8,
        "masked_lm_positions": [2, 3, 5, 0],
        "masked_labels": [22, 23, 0, 0],
        "masked_lm_ids": [21, 22, 23, 0],
        "masked_lm_weights": [1.0, 1.0, 1.0, 0.0],
        "next_sentence_labels": 1,
    }


objective = functools.partial(published_objective, "graphcore_bert", 1984, 5)


def test_the_table_has_the_records_in_the_order_of_the_original(blocks, write_documents, wordpiece, tmp_path: Path) -> None:
    documents, output = write_documents("all.jsonl", blocks), tmp_path / "shard.arrow"
    message = pregenerate_graphcore_bert(documents, wordpiece, output, objective(), "en", 1)
    assert message.startswith("made 104 examples as graphcore_bert does")
    table = ExampleTable(output)
    columns = {name: table.rows(name, np.arange(104)) for name in table.columns}
    assert digest_of(list(records_of(columns, is_remasked=False))) == PUBLISHED[0][3]
    assert checked_sidecar(output)["tokens"] == int(columns["length"].sum())


def test_workers_and_a_second_attempt_change_no_byte(blocks, write_documents, wordpiece, tmp_path) -> None:
    documents = write_documents("all.jsonl", blocks)
    output = tmp_path / "shard.arrow"
    contents = []
    for workers in (1, 2, 1):
        pregenerate_graphcore_bert(documents, wordpiece, output, objective(), "en", workers)
        contents.append((output.read_bytes(), output.with_name("shard.arrow.json").read_bytes()))
    assert contents[0] == contents[1] == contents[2]


def test_a_shard_without_documents_gives_an_empty_table(write_documents, wordpiece, tmp_path) -> None:
    output = tmp_path / "new" / "x.arrow"
    pregenerate_graphcore_bert(write_documents("none.jsonl", []), wordpiece, output, objective(), "en", 1)
    assert len(ExampleTable(output)) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"packing": "document_sentences"}, "graphcore_bert has no option for document_sentences; set it to sentence_pairs"),
        ({"whole_words": True}, "masked.whole_words: graphcore_bert has no option for true; set it to false"),
        ({"seed": 5}, "masked.seed: graphcore_bert has no option for 5; set it to 0"),
        ({"max_predictions": 126}, "masked.max_predictions: 126, but in a sequence of 128 at most 125 can be masked"),
        ({"max_predictions": None}, "masked.max_predictions: graphcore_bert always has a limit"),
    ],
)
def test_options_that_the_original_lacks_are_refused(change, message, blocks, write_documents, wordpiece, tmp_path) -> None:
    documents = write_documents("all.jsonl", blocks)
    with pytest.raises(RelmError, match=message):
        pregenerate_graphcore_bert(documents, wordpiece, tmp_path / "x.arrow", objective(**change), "en", 1)


def test_a_tokenizer_without_the_tokens_of_bert_is_refused(blocks, write_documents, byte_level, tmp_path) -> None:
    documents = write_documents("all.jsonl", blocks)
    with pytest.raises(RelmError, match=r"has no token \[CLS\]; graphcore_bert knows BERT's vocabularies only"):
        pregenerate_graphcore_bert(documents, byte_level, tmp_path / "x.arrow", objective(), "en", 1)
