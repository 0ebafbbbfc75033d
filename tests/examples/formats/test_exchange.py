import errno
import json
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_rows import PAIR, SINGLE, facts_of
from tfrecord.reader import tfrecord_loader
from tfrecord.writer import TFRecordWriter
from tokenizers import AddedToken, Tokenizer, models

from relm.artifact import checked_sidecar, sidecar_of, write_sidecar
from relm.errors import RelmError
from relm.examples.as_published import instances
from relm.examples.formats import exports
from relm.examples.formats.exchange import export_examples, import_examples
from relm.examples.manifest import read_manifest, write_manifest
from relm.examples.sharded_tables import ExampleTables
from relm.examples.table import Column, ExampleTable, table_writer

SHARED = Path(__file__).parents[3].parent / "shared"
NAMES = tuple(PAIR)
BERT = "bert_seq128_mask20_dup5_seed1984"


@pytest.fixture
def goldens() -> Path:
    """The originals' examples of one text."""
    folder = SHARED / "goldens"
    if not folder.is_dir():
        pytest.skip("the originals' examples of ../shared/goldens are not on this machine")
    return folder


@pytest.fixture
def golden_tokenizer(goldens: Path, tmp_path: Path) -> Path:
    """The vocabulary of the originals' examples."""
    words = (goldens / "vocab.txt").read_text(encoding="utf-8").splitlines()
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    special = [AddedToken(f"[{name}]", special=True) for name in ("PAD", "UNK", "CLS", "SEP", "MASK")]
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(tmp_path / "golden.json"))
    return tmp_path / "golden.json"


def rows_in(path: Path) -> list[dict[str, Any]]:
    table = ExampleTable(path)
    columns = {name: table.rows(name, np.arange(len(table))).tolist() for name in NAMES}
    return [{name: columns[name][row] for name in NAMES} for row in range(len(table))]


def records_in(path: Path) -> list[dict[str, list[float]]]:
    return [{name: values.tolist() for name, values in sorted(r.items())} for r in tfrecord_loader(str(path), None)]


def listed(path: Path) -> Path:
    """Return a manifest of one imported shard."""
    write_manifest({"train": [path]}, path.parent / "imported.json")
    return path.parent / "imported.json"


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


@pytest.mark.parametrize("format", ["tfrecord", "tfrecord_remasked", "tpu_pretrain"])
def test_masked_examples_come_back_as_they_went(make_table, wordpiece, tmp_path, monkeypatch, format) -> None:
    monkeypatch.setattr(exports, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(instances, "BLOCK", 2)
    out = tmp_path / ("a.json" if format == "tpu_pretrain" else "a.tfrecord")
    export_examples(make_table([PAIR, SINGLE], [PAIR]), "train", format, out, wordpiece)
    message = import_examples(format.removesuffix("_remasked"), [out], wordpiece, tmp_path / "a.arrow")
    assert message == f"read 3 examples of 10 positions, 21 tokens: {tmp_path / 'a.arrow'}"
    width = 2 if format == "tpu_pretrain" else 3  # the lines do not say how many could be hidden
    cut = {"masked_positions", "masked_labels"}
    expected = [{name: value[:width] if name in cut else value for name, value in row.items()} for row in (PAIR, SINGLE, PAIR)]
    assert rows_in(tmp_path / "a.arrow") == expected


def test_an_imported_table_says_what_it_holds(make_table, wordpiece, loaded, tmp_path) -> None:
    export_examples(make_table([PAIR, SINGLE]), "train", "tfrecord", tmp_path / "a.tfrecord", wordpiece)
    import_examples("tfrecord", [tmp_path / "a.tfrecord"] * 2, wordpiece, tmp_path / "a.arrow")
    manifest = read_manifest(listed(tmp_path / "a.arrow"))
    split = manifest.splits["train"]
    assert (manifest.objective, manifest.layout, manifest.tokenizer.sha256) == ("masked", "table", loaded.sha256)
    assert manifest.tokenizer.special["mask"] == 4
    assert manifest.settings["sequence_length"] == 10
    assert manifest.settings["masked"] == {"packing": "sentence_pairs", "masks": "static", "max_predictions": 3}
    # "the cat sat a dog mat" and "cat", twice.
    assert (split.examples, split.tokens, split.words, split.bytes) == (4, 24, 14, 2 * (len("the cat sat a dog mat") + 3))
    assert split.length_histogram == [[4, 2], [16, 2]]
    assert len(ExampleTables(tmp_path / "imported.json", "train")) == 4


def test_examples_without_pairs_have_no_label(make_table, wordpiece, tmp_path) -> None:
    alone = {**SINGLE, "next_sentence_label": -1}
    export_examples(make_table([alone]), "train", "tfrecord", tmp_path / "a.tfrecord", wordpiece)
    assert "next_sentence_labels" not in records_in(tmp_path / "a.tfrecord")[0]
    import_examples("tfrecord", [tmp_path / "a.tfrecord"], wordpiece, tmp_path / "a.arrow")
    assert rows_in(tmp_path / "a.arrow") == [alone]
    assert "packing" not in read_manifest(listed(tmp_path / "a.arrow")).settings["masked"]


def test_golden_records_come_back_and_can_be_remasked(goldens, golden_tokenizer, tmp_path) -> None:
    lines = {
        name: [json.loads(line) for line in (goldens / f"{BERT}{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        for name in ("", "_remask")
    }
    writer = TFRecordWriter(str(tmp_path / "golden.tfrecord"))
    for line in lines[""]:
        writer.write({name: (values, "float" if "weights" in name else "int") for name, values in line.items()})
    writer.close()
    import_examples("tfrecord", [tmp_path / "golden.tfrecord"], golden_tokenizer, tmp_path / "a.arrow")
    for format, name in (("tfrecord", ""), ("tfrecord_remasked", "_remask")):
        export_examples(listed(tmp_path / "a.arrow"), "train", format, tmp_path / "b.tfrecord", golden_tokenizer)
        assert records_in(tmp_path / "b.tfrecord") == [dict(sorted(line.items())) for line in lines[name]]
    import_examples("tfrecord", [tmp_path / "b.tfrecord"], golden_tokenizer, tmp_path / "b.arrow")
    assert rows_in(tmp_path / "b.arrow") == rows_in(tmp_path / "a.arrow")


@pytest.mark.parametrize("name", ["epoch_0", "epoch_1", "wwm_epoch_0"])
def test_golden_lines_come_back_byte_for_byte(goldens, golden_tokenizer, tmp_path, name) -> None:
    golden = goldens / f"tpu_pretrain_seed42_{name}.json"
    import_examples("tpu_pretrain", [golden], golden_tokenizer, tmp_path / "a.arrow")
    export_examples(listed(tmp_path / "a.arrow"), "train", "tpu_pretrain", tmp_path / "epoch_0.json", golden_tokenizer)
    assert (tmp_path / "epoch_0.json").read_bytes() == golden.read_bytes()
    counts = json.loads((tmp_path / "epoch_0_metrics.json").read_text())
    assert counts == {"num_training_examples": 9, "max_seq_len": 127}  # the golden's own counts are not kept beside it


def test_megatron_files_are_imported_with_their_counts(make_stream, wordpiece, tmp_path) -> None:
    manifest = make_stream([[6, 7], [8, 5], [10, 13, 14, 5]])
    shard = manifest.parent / "0.train.bin"
    message = import_examples("megatron", [shard.with_suffix(".idx")], wordpiece, tmp_path / "b.bin")
    assert message == f"read 8 tokens of 3 documents: {tmp_path / 'b.bin'}; 1 of them do not end with the end-of-text token"
    assert (tmp_path / "b.bin").read_bytes() == shard.read_bytes()
    assert (tmp_path / "b.idx").read_bytes() == shard.with_suffix(".idx").read_bytes()
    split = read_manifest(listed(tmp_path / "b.bin")).splits["train"]
    # "the cat", "sat" and "a dog ran", the ends of text left out.
    assert (split.words, split.bytes, split.length_histogram) == (6, 19, [[2, 2], [4, 1]])


@pytest.mark.parametrize(
    ("objective", "columns", "row"),
    [
        ("masked", [Column("word_starts", "bool", 2)], {"word_starts": [[True, False]]}),
        ("seq2seq", [Column("source", "uint16", "ragged")], {"source": ([6, 5], [2])}),
        ("causal", None, None),
    ],
)
def test_examples_without_stored_masks_are_not_exported(
    make_stream, wordpiece, loaded, tmp_path, objective, columns, row
) -> None:
    manifest = make_stream([[6]])
    if columns is not None:
        facts = facts_of(loaded, [2], objective=objective, layout="table", settings={})
        with table_writer(tmp_path / "a.arrow", columns, facts) as writer:
            writer.append(row)
        write_sidecar(tmp_path / "a.arrow", **facts, examples=1)
        manifest = listed(tmp_path / "a.arrow")
    with pytest.raises(RelmError, match=rf"holds {objective} examples without stored masks; .*masked\.masks: static"):
        export_examples(manifest, "train", "tfrecord", tmp_path / "b.tfrecord", wordpiece)
    with pytest.raises(RelmError, match=r"b\.jsonl: a file of format tpu_pretrain ends in \.json"):
        export_examples(manifest, "train", "tpu_pretrain", tmp_path / "b.jsonl", wordpiece)


def test_another_tokenizer_or_split_is_refused(make_table, wordpiece, tmp_path) -> None:
    manifest = make_table([PAIR])
    with pytest.raises(RelmError, match=r"manifest\.json: has no split 'held_out'; it has train"):
        export_examples(manifest, "held_out", "tfrecord", tmp_path / "a.tfrecord", wordpiece)
    wordpiece.write_text(wordpiece.read_text().replace('"far"', '"fur"'))
    with pytest.raises(RelmError, match=r"tokenizer\.json: sha256 is .*give the tokenizer that belongs to it"):
        export_examples(manifest, "train", "tfrecord", tmp_path / "a.tfrecord", wordpiece)


def written(path: Path, *records: dict[str, Any]) -> Path:
    writer = TFRecordWriter(str(path))
    for record in records:
        writer.write({name: (values, "float" if "weights" in name else "int") for name, values in record.items()})
    writer.close()
    return path


PLAIN = {
    "input_ids": [2, 4, 3, 0],
    "input_mask": [1, 1, 1, 0],
    "segment_ids": [0, 0, 0, 0],
    "masked_lm_positions": [1, 0],
    "masked_lm_ids": [7, 0],
    "masked_lm_weights": [1.0, 0.0],
    "next_sentence_labels": [0],
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": [2, 24, 3, 0]}, r"token id 24, but .*tokenizer\.json has 0 to 23"),
        ({"masked_lm_ids": [-1, 0]}, "token id -1, but"),
        ({"input_mask": [1, 0, 1, 0]}, "input_mask are not ones, then zeros"),
        ({"masked_lm_weights": [0.0, 1.0]}, "masked_lm_weights are not ones, then zeros"),
        ({"segment_ids": [0, 1, 0, 0]}, "segment_ids are not zeros, then ones up to the end"),
        ({"masked_lm_positions": [3, 0]}, "position 3 is masked, but there are 3 tokens"),
        ({"input_ids": [2, 4, 3]}, r"input_ids has 3 values, .*record 0 has 4; import them apart"),
        ({"input_mask": None}, "lacks the feature input_mask as numbers; it has input_ids, "),
    ],
)
def test_a_faulty_record_is_named(wordpiece, tmp_path, changes, message) -> None:
    faulty = {name: values for name, values in {**PLAIN, **changes}.items() if values is not None}
    path = written(tmp_path / "a.tfrecord", PLAIN, faulty)
    with pytest.raises(RelmError, match=rf"a\.tfrecord, record 1: {message}"):
        import_examples("tfrecord", [path], wordpiece, tmp_path / "a.arrow")
    assert not (tmp_path / "a.arrow").exists()


def test_records_of_another_program_are_refused(wordpiece, tmp_path) -> None:
    with pytest.raises(
        RelmError, match=r"a\.tfrecord, record 0: its features are image, label; expected BERT's masked_lm_positions"
    ):
        import_examples(
            "tfrecord", [written(tmp_path / "a.tfrecord", {"image": [1], "label": [2]})], wordpiece, tmp_path / "a.bin"
        )
    with pytest.raises(RelmError, match=r"a\.tfrecord: holds no records"):
        import_examples("tfrecord", [written(tmp_path / "a.tfrecord")], wordpiece, tmp_path / "a.bin")
    with pytest.raises(RelmError, match=r"a\.bin: expected a \.arrow file for masked examples"):
        import_examples("tfrecord", [written(tmp_path / "a.tfrecord", PLAIN)], wordpiece, tmp_path / "a.bin")


def test_a_token_of_another_vocabulary_is_named_with_its_document(make_stream, wordpiece, tmp_path, monkeypatch) -> None:
    shard = make_stream([[6], [7, 8], [23, 9]]).parent / "0.train.bin"
    content = bytearray(shard.read_bytes())
    content[6] = 24
    shard.write_bytes(content)
    with pytest.raises(RelmError, match=r"0\.train\.bin, document 2: token id 24, but .*tokenizer\.json has 0 to 23"):
        import_examples("megatron", [shard], wordpiece, tmp_path / "b.bin")
    assert not (tmp_path / "b.bin").exists()


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


def test_examples_that_fail_to_reach_the_disk_leave_no_second_file_alone(make_table, wordpiece, tmp_path, monkeypatch) -> None:
    manifest, real = make_table([PAIR]), os.fsync

    def full(number: int) -> None:
        if os.readlink(f"/proc/self/fd/{number}").endswith(".o.json.partial"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(number)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RelmError, match="cannot be written: No space left on device"):
        export_examples(manifest, "train", "tpu_pretrain", tmp_path / "out" / "o.json", wordpiece)
    assert list((tmp_path / "out").iterdir()) == []
