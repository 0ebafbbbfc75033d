"""Masked examples leave in the originals' formats; the tests of `as_published` compare records and lines with the goldens."""

import json
import resource
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tfrecord.reader import tfrecord_loader

from relm.artifact import checked_sidecar, sidecar_of, write_sidecar
from relm.errors import RelmError
from relm.examples.as_published.instances import table_columns
from relm.examples.columns import Column
from relm.examples.formats import exports
from relm.examples.formats.exports import export_examples, format_lines
from relm.examples.manifest import length_histogram, write_manifest
from relm.examples.storage import shard_writer
from relm.examples.table import table_writer
from relm.examples.tokenization.tokenizer_files import LoadedTokenizer, load_tokenizer
from small_tokenizers import save_wordpieces

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "</s>"]
WORDS = ["the", "cat", "sat", "on", "a", "mat", "##s", "dog", "ran", "far", ".", "é", "off", "it", "was", "not", "##ing", "he"]
# [CLS] the cat [MASK] [SEP] a dog ran [SEP], with `on` for `mat`; and [CLS] cat [SEP], all in one segment.
PAIR: dict[str, Any] = {
    "input_ids": [2, 6, 7, 4, 3, 10, 13, 9, 3, 0],
    "length": 9,
    "second_start": 5,
    "next_sentence_label": 1,
    "masked_positions": [3, 7, 0],
    "masked_labels": [8, 11, 0],
    "masked_count": 2,
}
SINGLE: dict[str, Any] = {
    "input_ids": [2, 4, 3, 0, 0, 0, 0, 0, 0, 0],
    "length": 3,
    "second_start": 3,
    "next_sentence_label": 0,
    "masked_positions": [1, 0, 0],
    "masked_labels": [7, 0, 0],
    "masked_count": 1,
}


def facts_of(loaded: LoadedTokenizer, lengths: list[int], **more: Any) -> dict[str, Any]:
    """Return a shard's facts but for those of its layout."""
    return {
        "dtype": "uint16",
        "tokens": sum(lengths),
        "documents": len(lengths),
        "words": sum(lengths),
        "bytes": sum(lengths),
        "tokenizer_sha256": loaded.sha256,
        "vocabulary_size": loaded.vocabulary_size,
        "special": asdict(loaded.special),
        "source": "00" * 32,
        "length_histogram": length_histogram(np.array(lengths)),
        **more,
    }


@pytest.fixture
def wordpiece(tmp_path: Path) -> Path:
    """`tokenizer.json`; `[PAD]` is 0, `[MASK]` is 4, `the` is 6."""
    return save_wordpieces(tmp_path / "tokenizer.json", SPECIAL, WORDS)


@pytest.fixture
def loaded(wordpiece: Path) -> LoadedTokenizer:
    """The same, loaded."""
    return load_tokenizer(wordpiece)


@pytest.fixture
def make_table(tmp_path: Path, loaded: LoadedTokenizer) -> Callable[..., Path]:
    """Writes rows with static masks as shards of a manifest, whose path it returns."""

    def make(*shards: list[dict[str, Any]], settings: dict[str, Any] | None = None) -> Path:
        width, capacity = (len(shards[0][0][name]) for name in ("input_ids", "masked_positions"))
        paths = []
        for number, rows in enumerate(shards):
            path = tmp_path / "examples" / f"{number}.train.arrow"
            more = {"objective": "masked", "layout": "table", "settings": {"sequence_length": width, **(settings or {})}}
            facts = facts_of(loaded, [row["length"] for row in rows], **more)
            with table_writer(path, table_columns(width, capacity, loaded.vocabulary_size), facts) as writer:
                writer.append({name: np.array([row[name] for row in rows]) for name in rows[0]})
            write_sidecar(path, **facts, examples=len(rows))
            paths.append(path)
        write_manifest({"train": paths}, tmp_path / "examples" / "manifest.json")
        return tmp_path / "examples" / "manifest.json"

    return make


def records_in(path: Path) -> list[dict[str, list[float]]]:
    return [{name: values.tolist() for name, values in sorted(r.items())} for r in tfrecord_loader(str(path), None)]


def test_masked_examples_become_records_of_bert(make_table, wordpiece, tmp_path) -> None:
    message = export_examples(make_table([PAIR, SINGLE]), "train", "tfrecord", tmp_path / "a.tfrecord", wordpiece)
    assert message == f"wrote 2 records: {tmp_path / 'a.tfrecord'}"
    first, second = records_in(tmp_path / "a.tfrecord")
    assert first == {
        "input_ids": [2, 6, 7, 4, 3, 10, 13, 9, 3, 0],
        "input_mask": [1] * 9 + [0],
        "segment_ids": [0] * 5 + [1] * 4 + [0],
        "masked_lm_positions": [3, 7, 0],
        "masked_lm_ids": [8, 11, 0],
        "masked_lm_weights": [1.0, 1.0, 0.0],
        "next_sentence_labels": [1],
    }
    assert second["segment_ids"] == [0] * 10
    assert second["next_sentence_labels"] == [0]
    checked_sidecar(tmp_path / "a.tfrecord")


def test_masked_tokens_come_first_in_the_remasked_layout(make_table, wordpiece, tmp_path) -> None:
    export_examples(make_table([PAIR]), "train", "tfrecord_remasked", tmp_path / "a.tfrecord", wordpiece)
    assert records_in(tmp_path / "a.tfrecord") == [
        {
            "input_ids": [4, 9, 0, 2, 6, 7, 3, 10, 13, 3],
            "input_position": [3, 7, 384, 0, 1, 2, 4, 5, 6, 8],
            "segment_ids": [0, 1, 0, 0, 0, 0, 0, 1, 1, 1],
            "mask_padding_index": [2],
            "seq_padding_index": [10],
            "masked_lm_positions": [3, 7],
            "masked_labels": [8, 11, 0],
            "masked_lm_ids": [8, 11, 0],
            "masked_lm_weights": [1.0, 1.0, 0.0],
            "next_sentence_labels": [1],
        }
    ]


def test_what_the_remasked_layout_cannot_hold_is_reported(make_table, wordpiece, tmp_path) -> None:
    zero = {**PAIR, "input_ids": [2, 6, 7, 0, 3, 10, 13, 9, 3, 0]}
    message = export_examples(make_table([zero]), "train", "tfrecord_remasked", tmp_path / "a.tfrecord", wordpiece)
    assert message.endswith("; 1 tokens with id 0 were left out, which is padding in this layout")
    assert records_in(tmp_path / "a.tfrecord")[0]["mask_padding_index"] == [1]
    full = {**PAIR, "length": 10, "input_ids": [2, 6, 7, 4, 3, 10, 13, 9, 6, 3]}
    with pytest.raises(RelmError, match=r"an example has 8 tokens that are not masked, but .* has 7 positions for them"):
        export_examples(make_table([full]), "train", "tfrecord_remasked", tmp_path / "b.tfrecord", wordpiece)
    assert not (tmp_path / "b.tfrecord").exists()


def test_examples_without_pairs_have_no_label(make_table, wordpiece, tmp_path) -> None:
    alone = {**SINGLE, "next_sentence_label": -1}
    export_examples(make_table([alone]), "train", "tfrecord", tmp_path / "a.tfrecord", wordpiece)
    assert "next_sentence_labels" not in records_in(tmp_path / "a.tfrecord")[0]


def test_lines_are_those_of_tpu_pretrain(make_table, wordpiece, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(exports, "ROWS_AT_ONCE", 2)
    output = tmp_path / "epoch_0.json"
    message = export_examples(make_table([PAIR, SINGLE], [PAIR]), "train", "tpu_pretrain", output, wordpiece)
    assert message == f"wrote 3 examples: {output}, epoch_0_metrics.json"
    pair = (
        '{"tokens": ["[CLS]", "the", "cat", "[MASK]", "[SEP]", "a", "dog", "on", "[SEP]"], '
        '"segment_ids": [0, 0, 0, 0, 0, 1, 1, 1, 1], "is_random_next": true, "masked_lm_positions": [3, 7], '
        '"masked_lm_labels": ["sat", "mat"]}\n'
    )
    first, second, third = output.read_text().splitlines(keepends=True)
    assert (first, third) == (pair, pair)
    assert json.loads(second)["segment_ids"] == [0, 0, 0]
    assert json.loads(second)["is_random_next"] is False
    assert (tmp_path / "epoch_0_metrics.json").read_text() == '{"num_training_examples": 3, "max_seq_len": 10}'
    checked_sidecar(output)


def test_a_line_is_ascii() -> None:
    row = {**SINGLE, "masked_labels": [1, 0, 0], "input_ids": [0, 1, 0]}
    line = next(format_lines({name: np.array([value]) for name, value in row.items()}, ["[CLS]", "café"]))
    assert line.startswith('{"tokens": ["[CLS]", "caf\\u00e9", "[CLS]"]')


@pytest.mark.parametrize(
    ("objective", "columns", "row"),
    [
        ("masked", [Column("word_starts", "bool", 2)], {"word_starts": [[True, False]]}),
        ("seq2seq", [Column("source", "uint16", "ragged")], {"source": ([6, 5], [2])}),
        ("causal", None, None),
    ],
)
def test_examples_without_stored_masks_are_not_exported(wordpiece, loaded, tmp_path, objective, columns, row) -> None:
    shard, manifest = tmp_path / ("a.arrow" if columns else "a.bin"), tmp_path / "manifest.json"
    facts = facts_of(loaded, [2], objective=objective, layout="table" if columns else "tokens", settings={})
    if columns:
        with table_writer(shard, columns, facts) as writer:
            writer.append(row)
        facts["examples"] = 1
    else:
        with shard_writer(shard, loaded.vocabulary_size) as writer:
            writer.append(np.array([6, 5]), np.array([2]))
    write_sidecar(shard, **facts)
    write_manifest({"train": [shard]}, manifest)
    with pytest.raises(RelmError, match=rf"holds {objective} examples without stored masks; make .*masked\.masks: static"):
        export_examples(manifest, "train", "tfrecord", tmp_path / "b.tfrecord", wordpiece)
    with pytest.raises(RelmError, match=r"b\.jsonl: a file of format tpu_pretrain ends in \.json"):
        export_examples(manifest, "train", "tpu_pretrain", tmp_path / "b.jsonl", wordpiece)


def test_another_tokenizer_or_split_is_refused(make_table, wordpiece, tmp_path) -> None:
    manifest = make_table([PAIR])
    with pytest.raises(RelmError, match=r"manifest\.json: unknown split 'held_out'; it has train"):
        export_examples(manifest, "held_out", "tfrecord", tmp_path / "a.tfrecord", wordpiece)
    wordpiece.write_text(wordpiece.read_text().replace('"far"', '"fur"'))
    with pytest.raises(RelmError, match=r"tokenizer\.json: sha256 is .*give that tokenizer"):
        export_examples(manifest, "train", "tfrecord", tmp_path / "a.tfrecord", wordpiece)


@pytest.mark.parametrize(("format", "name"), [("tfrecord", "o.tfrecord"), ("tpu_pretrain", "o.json")])
def test_a_full_disk_leaves_no_half_of_a_pair_of_files(make_table, wordpiece, tmp_path, format, name) -> None:
    manifest = make_table([PAIR] * 300)
    folder = tmp_path / "out"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    try:
        with pytest.raises(RelmError, match=r"out/o[^/]*: cannot be written: File too large"):
            export_examples(manifest, "train", format, folder / name, wordpiece)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(folder.iterdir()) == []
    assert not sidecar_of(folder / name).exists()
