from pathlib import Path

import numpy as np
import pytest

from relm.artifact import write_sidecar
from relm.errors import RelmError
from relm.examples.causal import CausalExamples, window_count, with_end_of_text
from relm.examples.manifest import write_manifest
from relm.examples.storage import shard_writer


def i4(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_the_end_of_text_follows_each_document() -> None:
    tokens, sizes = with_end_of_text(i4(5, 6, 7), i4(2, 0, 1), 0)
    assert tokens.tolist() == [5, 6, 0, 0, 7, 0]
    assert sizes.tolist() == [3, 1, 2]
    assert tokens.dtype == sizes.dtype == np.int32


def test_windows_share_one_token_and_the_rest_is_left_out() -> None:
    assert [window_count(n, 4) for n in (0, 1, 4, 5, 8, 9, 12, 13)] == [0, 0, 0, 1, 1, 2, 2, 3]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A stream of 0 to 10 for training, in two shards, and of 0 to 2 held out."""
    facts = {"objective": "causal", "tokenizer_sha256": "0" * 64, "vocabulary_size": 300, "end_of_text_id": 0}
    shards = {"train": {"a": range(7), "b": range(7, 11)}, "held_out": {"a": range(3)}}
    paths: dict[str, list[Path]] = {}
    for split, files in shards.items():
        for name, tokens in files.items():
            path = tmp_path / f"{name}.{split}.bin"
            with shard_writer(path, 300) as writer:
                writer.append(i4(*tokens), i4(len(tokens)))
            counts = {"dtype": writer.dtype, "tokens": writer.tokens, "documents": 1, "words": 2, "bytes": 3}
            write_sidecar(path, **facts, **counts)
            paths.setdefault(split, []).append(path)
    write_manifest(paths, tmp_path / "manifest.json")
    return tmp_path / "manifest.json"


def test_a_batch_holds_the_windows_asked_for(manifest) -> None:
    examples = CausalExamples(manifest, "train", 4)
    assert len(examples) == 2
    batch = examples.batch(np.array([1, 0, 1]))
    assert batch.dtype == np.int64
    assert batch.tolist() == [[4, 5, 6, 7, 8], [0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]
    assert examples.batch(np.array([], dtype=np.int64)).shape == (0, 5)


def test_every_token_but_the_first_is_a_label_once(manifest) -> None:
    examples = CausalExamples(manifest, "train", 5)
    labels = examples.batch(np.arange(len(examples)))[:, 1:]
    assert labels.ravel().tolist() == list(range(1, 11))


def test_an_example_that_does_not_exist_is_refused(manifest) -> None:
    examples = CausalExamples(manifest, "train", 4)
    for index in (-1, 2):
        with pytest.raises(IndexError, match="examples are 0 to 1"):
            examples.batch(np.array([0, index]))


def test_a_split_shorter_than_one_example_is_refused(manifest) -> None:
    assert len(CausalExamples(manifest, "held_out", 2)) == 1
    with pytest.raises(RelmError, match="split held_out has 3 tokens, an example of sequence_length 3 needs 4"):
        CausalExamples(manifest, "held_out", 3)
    with pytest.raises(RelmError, match="has no split 'valid'; it has train, held_out"):
        CausalExamples(manifest, "valid", 3)
