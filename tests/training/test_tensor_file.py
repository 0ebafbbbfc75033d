"""Tensor files equal those of the safetensors library byte for byte, and a changed file is not read."""

import hashlib
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from relm.training import tensor_file
from relm.training.tensor_file import TYPES, Damaged, read_tensors, write_tensors


def of_every_type() -> dict[str, Tensor]:
    """Return several tensors of each type and kind of shape, with names that are not in sorted order."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for number, dtype in enumerate(reversed(TYPES)):
        values = torch.randn(3, 5, generator=generator) * 10
        tensors |= {f"z.{number}": values.to(dtype), f"b.{number}": values[0].to(dtype, copy=True)}
    return {**tensors, "scalar": torch.tensor(2.5), "none": torch.empty(0, 4), 'a "quoted" ț': torch.ones(1)}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def test_the_bytes_are_those_of_the_library(tmp_path: Path) -> None:
    tensors = of_every_type()
    sha256 = write_tensors(tmp_path / "file", tensors)
    assert (tmp_path / "file").read_bytes() == save(tensors)
    assert sha256 == hashlib.sha256(save(tensors)).hexdigest()


def test_tensors_are_read_bit_for_bit(tmp_path: Path) -> None:
    tensors = {**of_every_type(), "odd": torch.tensor([float("nan"), -0.0, float("inf"), 1e-45])}
    read = read_tensors(tmp_path / "file", write_tensors(tmp_path / "file", tensors))
    assert read["odd"].view(torch.int32).tolist() == tensors["odd"].view(torch.int32).tolist()
    assert same({**read, "odd": torch.zeros(1)}, {**tensors, "odd": torch.zeros(1)})


def test_views_are_written_in_their_own_shape(tmp_path: Path) -> None:
    tensors = {"turned": torch.arange(6.0).reshape(2, 3).T, "learnt": torch.nn.Parameter(torch.ones(2))}
    read = read_tensors(tmp_path / "file", write_tensors(tmp_path / "file", tensors))
    assert read["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert read["learnt"].tolist() == [1, 1]


def test_the_order_of_the_arguments_does_not_matter(tmp_path: Path) -> None:
    tensors = of_every_type()
    assert write_tensors(tmp_path / "a", tensors) == write_tensors(tmp_path / "b", dict(reversed(tensors.items())))


def test_a_kill_may_fall_between_two_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    monkeypatch.setattr(tensor_file, "kill_point", lambda name: sizes.append(os.path.getsize(tmp_path / "file")))
    write_tensors(tmp_path / "file", {"a": torch.zeros(2), "b": torch.zeros(3)})
    assert sizes == [os.path.getsize(tmp_path / "file") - 12, os.path.getsize(tmp_path / "file")]


@pytest.mark.parametrize("length", [0, 5, 8, 40, -1])
def test_a_truncated_file_is_damaged(tmp_path: Path, length: int) -> None:
    path = tmp_path / "file"
    sha256 = write_tensors(path, {"a": torch.zeros(20)})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(Damaged, match="file: damaged: its sha256 is not the one"):
        read_tensors(path, sha256)


def test_a_longer_file_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "file"
    sha256 = write_tensors(path, {"a": torch.zeros(20)})
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(Damaged):
        read_tensors(path, sha256)


def test_a_flipped_bit_of_any_byte_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "file"
    sha256 = write_tensors(path, {"a": torch.zeros(2, dtype=torch.float16), "b": torch.zeros(1)})
    content = path.read_bytes()
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        with pytest.raises(Damaged):
            read_tensors(path, sha256)


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"a": 1},
        {"a": {"dtype": "F32"}},
        {"a": {"dtype": "F99", "shape": [1]}},
        {"a": {"dtype": "F32", "shape": [-1]}},
        {"a": {"dtype": "F32", "shape": [10**12]}},
        {"a": {"dtype": "F32", "shape": [10**30]}},
        {"a": {"dtype": "F32", "shape": "one"}},
    ],
)
def test_another_header_is_damage_and_reserves_no_memory(tmp_path: Path, header: object) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "file").write_bytes(struct.pack("<Q", len(text)) + text + b"1234")
    with pytest.raises(Damaged):
        read_tensors(tmp_path / "file", "0" * 64)


def test_too_little_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sha256 = write_tensors(tmp_path / "a", of_every_type())

    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "empty", no_memory)
    with pytest.raises(OSError, match="not enough memory"):
        read_tensors(tmp_path / "a", sha256)


def test_an_absent_file_is_damage(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="the file is missing"):
        read_tensors(tmp_path / "file", "0" * 64)
