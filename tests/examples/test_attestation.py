import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest

from relm.errors import RelmError
from relm.examples.attestation import attest, check_attestation, content_sha256, indices_sha256
from relm.examples.contract import Batch
from relm.examples.order import example_indices


class Numbers:
    """Examples of two tokens: example i in epoch e is 10 i + e and 10 i + e + 1."""

    def __init__(self, size: int, offset: int = 0) -> None:
        self.size = size
        self.offset = offset

    def __len__(self) -> int:
        return self.size

    def batch(self, indices: np.ndarray, epochs: np.ndarray) -> Batch:
        tokens = 10 * indices[:, None] + epochs[:, None] + np.arange(2) + self.offset
        return {"labels": tokens + 1, "input_ids": tokens}


RUN = {"order_seed": 3, "phase": "main", "global_batch_size": 4, "steps": 5}


def test_the_attestation_has_the_numbers_that_decide_the_order(tmp_path) -> None:
    facts = attest(Numbers(8), **RUN, output=tmp_path / "order.json")
    assert json.loads((tmp_path / "order.json").read_text()) == facts
    assert {key: value for key, value in facts.items() if "batch" not in key or "size" in key} == {
        "phase": "main",
        "order_seed": 3,
        "examples": 8,
        "global_batch_size": 4,
        "steps": 5,
        "epochs": 2.5,
    }
    last = example_indices(3, np.array([16, 17, 18, 19]), 8)
    assert facts["last_batch"] == {
        "step": 5,
        "indices_sha256": hashlib.sha256(struct.pack("<4q", *last)).hexdigest(),
        "content_sha256": content_sha256(Numbers(8).batch(last, np.array([2, 2, 2, 2]))),
    }


def test_content_is_hashed_with_names_types_and_shapes() -> None:
    batch = {"b": np.array([[1], [2]]), "a": np.array([True])}
    written = b"a |b1 (1,)\n\x01" + b"b <i8 (2, 1)\n" + struct.pack("<2q", 1, 2)
    assert content_sha256(batch) == hashlib.sha256(written).hexdigest()
    assert content_sha256({"b": batch["b"].T, "a": batch["a"]}) != content_sha256(batch)
    assert content_sha256({"b": batch["b"].astype(">i8"), "a": batch["a"]}) == content_sha256(batch)
    assert indices_sha256(np.array([1, 2], dtype=np.int32)) == indices_sha256(np.array([1, 2]))


def test_the_same_run_is_accepted(tmp_path) -> None:
    facts = attest(Numbers(8), **RUN, output=tmp_path / "order.json")
    assert check_attestation(tmp_path / "order.json", Numbers(8), **RUN) == facts


@pytest.mark.parametrize(
    ("examples", "changes", "different", "same"),
    [
        (Numbers(8, offset=1), {}, ["first_batch.content", "last_batch.content"], ["indices", "examples:"]),
        (Numbers(9), {}, ["examples: attested 8, here 9", "epochs", "first_batch.indices"], ["order_seed", "steps:"]),
        (Numbers(8), {"order_seed": 4}, ["order_seed: attested 3, here 4", "first_batch.indices"], ["examples:", "epochs"]),
        (Numbers(8), {"steps": 6}, ["steps: attested 5, here 6", "last_batch.step"], ["first_batch"]),
        (Numbers(8), {"phase": "second"}, ["phase: attested main, here second"], ["batch"]),
    ],
)
def test_only_differences_are_named(tmp_path, examples, changes, different, same) -> None:
    path = tmp_path / "order.json"
    attest(Numbers(8), **RUN, output=path)
    with pytest.raises(RelmError) as error:
        check_attestation(path, examples, **{**RUN, **changes})
    lines = str(error.value).splitlines()
    assert str(path) in lines[0]
    for words in different:
        assert any(words in line for line in lines[1:-1]), words
    for words in same:
        assert not any(words in line for line in lines[1:-1]), words


def test_an_attestation_that_lacks_a_fact_is_refused(tmp_path) -> None:
    path: Path = tmp_path / "order.json"
    facts = attest(Numbers(8), **RUN, output=path)
    del facts["last_batch"]
    path.write_text(json.dumps(facts))
    with pytest.raises(RelmError, match=r"last_batch\.step: attested nothing, here 5"):
        check_attestation(path, Numbers(8), **RUN)
    with pytest.raises(RelmError, match="no such file"):
        check_attestation(tmp_path / "other.json", Numbers(8), **RUN)
