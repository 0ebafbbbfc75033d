import hashlib
from pathlib import Path

import numpy as np
import pytest

from relm.artifact import write_sidecar
from relm.errors import RelmError
from relm.examples.as_published.graphcore_gpt2 import (
    GraphcoreGpt2Examples,
    draw_index_maps,
    sample_idx,
    shuffle_idx,
    split_documents,
)
from relm.examples.manifest import write_manifest
from relm.examples.storage import shard_writer
from relm.recipes.objectives import Objective

# Documents, epochs, sequence length, seed -> shapes, and the sha256 of the bytes of all three maps. Facts, computed by running
# the original's own _build_doc_idx, _build_sample_idx and _build_shuffle_idx (graphcore/examples v3.4.1) for these sizes.
SIZES = ((np.arange(500) * 7919) % 397 + 1).astype(np.int32)
PUBLISHED = [
    (498, 1, 128, 1234, (782, 781), "15e4c3d3968d7ac9d90ae22e187df045b098742d90409fafa55198ac6ca8c4cf"),
    (498, 20, 1024, 1234, (1955, 1954), "2296e79a02b25b5958f14b11348a79754d67a520de97c0f8bcbf8adede74a2ed"),
    (500, 3, 64, 0, (4716, 4715), "ca76ac976472922bc9fd55af6f418da247683e39dbd5743398b21985c51494dc"),
    (2, 1, 7, 42, (54, 53), "86eef9c6ff1113a17f599a2126cd3681bf630f2281ea864b5d30ad7d57c606ca"),
]


@pytest.mark.parametrize(("documents", "epochs", "length", "seed", "counts", "sha256"), PUBLISHED)
def test_maps_are_those_of_the_original(documents, epochs, length, seed, counts, sha256) -> None:
    maps = draw_index_maps(SIZES, np.arange(documents), epochs, length, seed)
    assert [part.shape for part in maps] == [(documents * epochs,), (counts[0], 2), (counts[1],)]
    assert [part.dtype for part in maps] == [np.int32, np.int32, np.uint32]
    assert hashlib.sha256(b"".join(part.tobytes() for part in maps)).hexdigest() == sha256


def test_goldens_are_matched_bit_for_bit(goldens) -> None:
    sizes = np.random.RandomState(0).randint(5, 400, 200).astype(np.int32)
    maps = draw_index_maps(sizes, np.array(split_documents(200, "train")), 3, 128, 1234)
    for name, made in maps._asdict().items():
        golden = np.load(goldens / f"gpt2_mmap_{name}.npy")
        assert made.dtype == golden.dtype
        assert made.tolist() == golden.tolist()


def test_samples_begin_a_sequence_apart_in_the_stream() -> None:
    # Document 1 (3 tokens), 0 (2), 2 (4), 1 again; samples of 2 + 1 tokens begin at 0, 2, 4 ...; the last ends at 10.
    sizes, order = np.array([2, 3, 4], dtype=np.int32), np.array([1, 0, 2, 1])
    assert sample_idx(sizes, order, 2, 12).tolist() == [[0, 0], [0, 2], [1, 1], [2, 1], [2, 3], [3, 1]]


def test_empty_documents_hold_no_beginning_but_the_first() -> None:
    sizes, order = np.array([0, 3], dtype=np.int32), np.array([0, 1, 0, 0, 1])
    assert sample_idx(sizes, order, 2, 6).tolist() == [[0, 0], [1, 2], [4, 1]]


def test_positions_do_not_depend_on_how_many_documents_are_taken_at_once(monkeypatch) -> None:
    order = np.random.RandomState(1).permutation(500)
    whole = sample_idx(SIZES, order, 60, int(SIZES.sum()))
    monkeypatch.setattr("relm.examples.as_published.graphcore_gpt2.BLOCK", 7)
    assert sample_idx(SIZES, order, 60, int(SIZES.sum())).tolist() == whole.tolist()


def test_many_samples_are_numbered_in_64_bits(monkeypatch) -> None:
    draws = np.random.RandomState(0)
    monkeypatch.setattr("relm.examples.as_published.graphcore_gpt2.LARGEST_UINT32_COUNT", 10)
    assert [shuffle_idx(count, draws).dtype for count in (9, 10)] == [np.uint32, np.int64]


def objective(as_published: dict[str, object] | None = None, **changes: object) -> Objective:
    published = {"builder": "graphcore_gpt2", "seed": 1234, "epochs": 2, **(as_published or {})}
    return Objective.model_validate({"objective": "causal", "sequence_length": 16, "as_published": published, **changes})


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """400 documents of training in two shards, tokens counting up over all of them, and one held out."""
    facts = {"objective": "causal", "tokenizer_sha256": "0" * 64, "vocabulary_size": 70_000, "end_of_text_id": 0}
    first, paths = 0, {}
    for split, names in (("train", ("a", "b")), ("held_out", ("c",))):
        for at, name in enumerate(names):
            sizes = SIZES[200 * at : 200 * at + 200] % 40 if split == "train" else np.array([30], dtype=np.int32)
            path = tmp_path / f"{name}.bin"
            with shard_writer(path, 70_000) as writer:
                writer.append(np.arange(first, first + int(sizes.sum())), sizes)
            first += int(sizes.sum())
            counts = {"dtype": writer.dtype, "tokens": writer.tokens, "documents": len(sizes), "words": 1, "bytes": 1}
            write_sidecar(path, **facts, **counts)
            paths.setdefault(split, []).append(path)
    write_manifest(paths, tmp_path / "manifest.json")
    return tmp_path / "manifest.json"


def test_examples_are_the_samples_in_the_order_of_the_shuffle_map(manifest) -> None:
    examples = GraphcoreGpt2Examples(manifest, "train", objective())
    sizes = SIZES[:400] % 40
    starts = np.cumsum(sizes) - sizes
    maps = draw_index_maps(sizes, np.arange(398), 2, 16, 1234)
    stream = np.concatenate([np.arange(starts[d], starts[d] + sizes[d]) for d in maps.doc_idx])
    expected = np.stack([stream[16 * sample : 16 * sample + 17] for sample in maps.shuffle_idx.tolist()])
    batch = examples.batch(np.arange(len(examples)), np.zeros(len(examples), np.int64))
    assert len(examples) == len(expected)
    assert batch["input_ids"].tolist() == expected[:, :-1].tolist()
    assert batch["labels"].tolist() == expected[:, 1:].tolist()
    assert batch["labels"].dtype == np.int64
    again = examples.batch(np.array([5, 3]), np.array([1, 0]))
    assert again["labels"].tolist() == expected[[5, 3], 1:].tolist()
    assert examples.is_ordered


def test_validation_has_the_last_documents_of_training_once(manifest) -> None:
    sizes = SIZES[:400] % 40
    held_out = GraphcoreGpt2Examples(manifest, "held_out", objective())
    assert len(held_out) == (int(sizes[398:].sum()) - 1) // 16
    tokens = held_out.batch(np.arange(len(held_out)), np.zeros(len(held_out), np.int64))["input_ids"]
    assert int(tokens.min()) >= int(sizes[:398].sum())
    assert int(tokens.max()) < int(sizes.sum())


def test_an_example_that_does_not_exist_is_refused(manifest) -> None:
    examples = GraphcoreGpt2Examples(manifest, "train", objective())
    for index in (-1, len(examples)):
        with pytest.raises(IndexError, match="examples are 0 to"):
            examples.batch(np.array([index]), np.array([0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"as_published": {"seed": 2**32}},
            "as_published.seed: 4,294,967,296, but numpy's generator takes 0 to",
        ),
        ({"causal": {"stride": 8}}, "causal.stride: graphcore_gpt2 has no such option"),
        ({"causal": {"document_attention": True}}, "causal.document_attention: graphcore_gpt2 has no such option"),
        ({"sequence_length": 20_000}, "documents are train, with 7,"),
    ],
)
def test_options_that_the_original_lacks_are_refused(change, message, manifest) -> None:
    with pytest.raises(RelmError, match=message):
        GraphcoreGpt2Examples(manifest, "train", objective(**change))


def test_an_index_that_is_cut_is_refused(manifest) -> None:
    index = manifest.with_name("a.idx")
    index.write_bytes(index.read_bytes()[:100])
    with pytest.raises(RelmError, match=r"a\.idx: absent or truncated"):
        GraphcoreGpt2Examples(manifest, "train", objective())
