import functools
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from relm.artifact import read_json, read_sidecar, sha256_of, write_sidecar
from relm.errors import RelmError
from relm.examples import documents as documents_module
from relm.examples import pregenerate as encoding_module
from relm.examples.best_fit import BestFitPacker
from relm.examples.builders import open_examples, pregenerate
from relm.examples.chunks import Chunk, ChunkEncoding, encoded_chunk
from relm.examples.contract import numbers_at
from relm.examples.documents import Lines
from relm.examples.inspection import inspect
from relm.examples.manifest import read_manifest, write_manifest
from relm.examples.table import ExampleTable
from relm.examples.tokenization.tokenizer_files import load_tokenizer, train_tokenizer
from relm.recipes.objectives import Objective

LENGTH = 31


def rows_objective(length: int = LENGTH, **options: object) -> Objective:
    causal = {"packing": "best_fit", "end_of_text": "before", **options}
    return Objective.model_validate({"objective": "causal", "sequence_length": length, "causal": causal})


def pack(documents: Path, tokenizer: Path, output: Path, workers: int | None = 1, **options: object) -> str:
    return pregenerate(documents, tokenizer, output, rows_objective(**options), "en", workers)


def stored_rows(path: Path) -> np.ndarray:
    table = ExampleTable(path)
    return np.asarray(table.rows("tokens", np.arange(len(table))))


def test_a_table_holds_the_packed_rows_and_its_sidecar_what_was_cropped(tmp_path, tokenizer, prose, write_documents) -> None:
    documents = write_documents("a.train.jsonl", [*prose, ""])
    message = pack(documents, tokenizer, tmp_path / "a.train.arrow")
    loaded = load_tokenizer(tokenizer)
    tokens = [np.array(loaded.tokenizer.encode(text).ids, dtype=np.uint16) for text in [*prose, ""]]
    packer = BestFitPacker(LENGTH + 1, 0)
    expected = np.concatenate([*packer.rows(iter(tokens))])
    assert stored_rows(tmp_path / "a.train.arrow").tolist() == expected.tolist()
    lost = packer.counts.cropped_tokens + packer.counts.left_out_tokens
    assert expected.size + lost == sum(map(len, tokens)) + 201
    sidecar = read_sidecar(tmp_path / "a.train.arrow")
    assert sidecar["packing"] == vars(packer.counts)
    assert sum(count for _, count in sidecar.pop("length_histogram")) == 201
    assert {key: sidecar[key] for key in ("objective", "layout", "dtype", "documents", "tokens", "examples", "source")} == {
        "objective": "causal",
        "layout": "table",
        "dtype": "uint16",
        "documents": 201,
        "tokens": expected.size,
        "examples": len(expected),
        "source": sha256_of(documents),
    }
    causal = {"packing": "best_fit", "end_of_text": "before"}
    assert sidecar["settings"] == {"objective": "causal", "causal": causal, "sequence_length": LENGTH}
    share = packer.counts.cropped_tokens / (expected.size + lost)
    words = sum(len(text.split()) for text in prose)
    assert message.startswith(
        f"packed 201 documents with {words:,} words into {len(expected):,} rows of 32 tokens, 100.0% utilisation, "
        f"{share:.1%} of tokens cropped from {packer.counts.cropped_documents} documents"
    )


def test_any_number_of_workers_and_chunks_writes_the_same_bytes(
    tmp_path, tokenizer, prose, write_documents, monkeypatch
) -> None:
    documents = write_documents("a.jsonl", prose)
    pack(documents, tokenizer, tmp_path / "whole.arrow")
    for size, long_line, workers in ((4096, 2**24, 2), (1024, 1500, 1)):  # the second splits long documents into parts
        for namespace in (documents_module, encoding_module):
            monkeypatch.setattr(namespace, "CHUNK", size)
        monkeypatch.setattr(documents_module, "LONG_LINE", long_line)
        pack(documents, tokenizer, tmp_path / "again.arrow", workers)
        assert (tmp_path / "again.arrow").read_bytes() == (tmp_path / "whole.arrow").read_bytes()


def killed_at(victim: int, encoding: ChunkEncoding, end_of_text_id: int | None, lines: Lines) -> Chunk:
    """Run `encoded_chunk` in a worker that the system kills at an offset."""
    if lines.start >= victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return encoded_chunk(encoding, end_of_text_id, lines)


def test_a_killed_worker_leaves_nothing_and_the_next_attempt_the_same_bytes(
    tmp_path, tokenizer, prose, write_documents, monkeypatch
) -> None:
    documents = write_documents("a.jsonl", prose)
    for namespace in (documents_module, encoding_module):
        monkeypatch.setattr(namespace, "CHUNK", 4096)
    with monkeypatch.context() as patched:
        patched.setattr(encoding_module, "encoded_chunk", functools.partial(killed_at, 20_000))
        with pytest.raises(RelmError, match=r"encoding .*a\.jsonl: worker process \d+ was killed by SIGKILL"):
            pack(documents, tokenizer, tmp_path / "a.arrow", 2)
    assert not list(tmp_path.glob("*.arrow*")) + list(tmp_path.glob(".*.partial"))
    for name in "ab":
        pack(documents, tokenizer, tmp_path / f"{name}.arrow", 1)
    assert (tmp_path / "a.arrow").read_bytes() == (tmp_path / "b.arrow").read_bytes()


def test_documents_that_fill_no_row_make_a_table_without_rows(tmp_path, tokenizer, write_documents) -> None:
    message = pack(write_documents("a.jsonl", ["one two"]), tokenizer, tmp_path / "a.arrow")
    sidecar = read_sidecar(tmp_path / "a.arrow")
    assert (sidecar["examples"], sidecar["tokens"], sidecar["packing"]["left_out_documents"]) == (0, 0, 1)
    assert f"{sidecar['packing']['left_out_tokens']} tokens at the end left out" in message
    pack(write_documents("none.jsonl", []), tokenizer, tmp_path / "none.arrow")
    assert read_sidecar(tmp_path / "none.arrow")["documents"] == 0
    (tmp_path / "none.jsonl.json").unlink()
    with pytest.raises(RelmError, match=r"none\.jsonl: holds no documents"):
        pack(tmp_path / "none.jsonl", tokenizer, tmp_path / "b.arrow")
    assert not (tmp_path / "b.arrow").exists()


def test_a_tokenizer_without_an_end_of_text_is_refused(tmp_path, write_documents) -> None:
    documents = write_documents("a.jsonl", ["ab"])
    train_tokenizer("characters", [documents], None, 10**9, tmp_path / "t.json", special_tokens=False)
    with pytest.raises(RelmError, match=r"t\.json: has no special token <\|endoftext\|> or </s> or <s>"):
        pack(documents, tmp_path / "t.json", tmp_path / "a.arrow")


def test_ids_beyond_the_vocabulary_are_refused(tmp_path, tokenizer, prose, write_documents, monkeypatch) -> None:
    def strange(encoding: ChunkEncoding, end_of_text_id: int | None, lines: Lines) -> Chunk:
        chunk = encoded_chunk(encoding, end_of_text_id, lines)
        return chunk._replace(tokens=np.full(len(chunk.tokens), 65_537, dtype=np.int32))

    monkeypatch.setattr(encoding_module, "encoded_chunk", strange)
    with pytest.raises(RelmError, match=r"a\.arrow: row 0: tokens has 65537, but values are 0 to 399"):
        pack(write_documents("a.jsonl", prose), tokenizer, tmp_path / "a.arrow")


@pytest.fixture
def manifest(tmp_path: Path, tokenizer: Path, prose: list[str], write_documents) -> Path:
    """Pack three shards: two for training."""
    shards = {"train": ["a", "b"], "held_out": ["a"]}
    texts = {"a.train": prose[:90], "b.train": prose[90:180], "a.held_out": prose[180:]}
    for name, part in texts.items():
        pack(write_documents(f"{name}.jsonl", part), tokenizer, tmp_path / f"{name}.arrow")
    paths = {split: [tmp_path / f"{name}.{split}.arrow" for name in names] for split, names in shards.items()}
    write_manifest(paths, tmp_path / "manifest.json")
    return tmp_path / "manifest.json"


def test_a_manifest_sums_what_was_cropped(tmp_path, manifest) -> None:
    split = read_manifest(manifest).splits["train"]
    sidecars = [read_sidecar(tmp_path / f"{name}.train.arrow") for name in "ab"]
    assert split.utilisation == 1
    assert split.packing is not None
    assert vars(split.packing) == {key: sum(facts["packing"][key] for facts in sidecars) for key in sidecars[0]["packing"]}
    write_sidecar(tmp_path / "b.train.arrow", **{**sidecars[1], "packing": dict.fromkeys(sidecars[1]["packing"], -1)})
    paths = {"train": [tmp_path / f"{name}.train.arrow" for name in "ab"]}
    with pytest.raises(RelmError, match=r"b\.train\.arrow\.json: packing\.\w+: expected a whole number from 0 on"):
        write_manifest(paths, manifest)


def test_a_manifest_of_other_examples_has_no_key_for_it(tmp_path, tokenizer, prose, write_documents) -> None:
    stream = Objective(objective="causal", sequence_length=8)
    pregenerate(write_documents("a.train.jsonl", prose), tokenizer, tmp_path / "a.train.bin", stream, "en", 1)
    write_manifest({"train": [tmp_path / "a.train.bin"]}, tmp_path / "manifest.json")
    assert "packing" not in read_json(tmp_path / "manifest.json")["splits"]["train"]


@pytest.mark.parametrize(
    ("words", "options", "warned", "refused"),
    [
        (10, {}, False, False),
        (60, {}, True, False),
        (3000, {}, True, True),
        (60, {"cropped_share_limit": 0.5}, True, True),
        (3000, {"cropped_share_limit": 1.0}, True, False),
    ],
)
def test_much_cropping_is_warned_of_and_nearly_all_is_refused_unless_it_is_allowed(
    words: int, options: dict[str, float], warned: bool, refused: bool, tmp_path, tokenizer, write_documents
) -> None:
    documents = write_documents("a.train.jsonl", ["word " * words] * 40)
    said = [pack(documents, tokenizer, tmp_path / "a.train.arrow", **options)]
    shards, output = {"train": [tmp_path / "a.train.arrow"]}, tmp_path / "manifest.json"
    if refused:
        with pytest.raises(
            RelmError, match=r"manifest\.json: packing: best_fit crops [0-9.]+% of the training tokens, more than"
        ):
            write_manifest(shards, output)
        assert not output.exists()
    else:
        said.append(write_manifest(shards, output))
    assert all((" (warning: over half are lost; longer sequences" in words) == warned for words in said)


def test_held_out_documents_are_warned_of_and_no_reason_to_refuse(tmp_path, tokenizer, write_documents) -> None:
    paths = {}
    for split, words in {"train": 10, "held_out": 3000}.items():
        documents = write_documents(f"a.{split}.jsonl", ["word " * words] * 40)
        paths[split] = [tmp_path / f"a.{split}.arrow"]
        pack(documents, tokenizer, *paths[split])
    trained, held_out = write_manifest(paths, tmp_path / "manifest.json").split("; held_out: ")
    assert "warning" not in trained
    assert "warning" in held_out


def test_a_batch_has_inputs_labels_and_the_document_of_each_token(tmp_path, manifest) -> None:
    examples = open_examples(manifest, "train", rows_objective(document_attention=True), seed=0)
    first, second = (stored_rows(tmp_path / f"{name}.train.arrow").astype(np.int64) for name in "ab")
    rows = np.concatenate([first, second])
    assert len(examples) == len(rows)
    indices = np.array([len(first), 0, len(rows) - 1])
    batch = examples.batch(indices, np.zeros(3, dtype=np.int64))
    assert batch["input_ids"].tolist() == rows[indices, :-1].tolist()
    assert batch["labels"].tolist() == rows[indices, 1:].tolist()
    begins = batch["input_ids"] == 0
    assert begins[:, 0].all()
    assert batch["document_ids"][:, 0].tolist() == [0, 0, 0]
    assert (np.diff(batch["document_ids"], axis=1) == begins[:, 1:]).all()
    assert begins.sum() > 3
    assert all(array.flags.c_contiguous and array.dtype == np.int64 for array in batch.values())
    assert set(open_examples(manifest, "train", rows_objective(), seed=0).batch(indices, indices)) == {"input_ids", "labels"}


def test_an_epoch_reads_each_row_once_in_a_seeded_order_unless_rows_are_drawn(manifest) -> None:
    examples = open_examples(manifest, "train", rows_objective(), seed=0)
    positions = np.arange(2 * len(examples))
    indices, epochs = numbers_at(examples, 5, positions)
    for epoch in (0, 1):
        found = indices[epochs == epoch].tolist()
        assert found != sorted(found)
        assert sorted(found) == list(range(len(examples)))
    drawn = open_examples(manifest, "train", rows_objective(sampling="with_replacement"), seed=0)
    assert len(set(numbers_at(drawn, 5, positions[: len(examples)])[0].tolist())) < len(examples)


def test_examples_of_another_length_or_packing_are_refused(manifest) -> None:
    with pytest.raises(RelmError, match=r'was made with .*"sequence_length":31.*, but the phase wants .*"sequence_length":16'):
        open_examples(manifest, "train", rows_objective(16), seed=0)
    with pytest.raises(RelmError, match="holds a table of causal examples, expected a stream of tokens"):
        open_examples(manifest, "train", Objective(objective="causal", sequence_length=LENGTH), seed=0)


def test_an_inspection_shows_what_was_cropped(tmp_path, tokenizer, manifest) -> None:
    packing = read_manifest(manifest).splits["train"].packing
    assert packing is not None
    shown = inspect(manifest, tokenizer, 1).replace("\n", " ")
    assert "100.0% utilisation" in shown
    assert f"{packing.cropped_documents:,} cropped documents" in shown
    assert f"{packing.cropped_share(read_manifest(manifest).splits['train'].tokens):.1%} of tokens cropped" in shown
    assert "<|endoftext|>" in shown
    table = inspect(tmp_path / "a.train.arrow", tokenizer, 1).replace("\n", " ")
    assert f"{read_sidecar(tmp_path / 'a.train.arrow')['packing']['cropped_documents']:,} cropped documents" in table
    assert "causal.packing best_fit" in table
