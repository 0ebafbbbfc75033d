"""Weights released as a pickle: tensors are converted, and nothing else is read or run."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from relm.artifact import checked_sidecar
from relm.corpus.pickled_weights import convert_weights
from relm.errors import RelmError


class Program:
    """An object whose pickle calls a function of its choice when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_tensors_become_a_safetensors_file_next_to_their_configuration(tmp_path: Path) -> None:
    shared, half = torch.arange(6.0).reshape(2, 3), torch.ones(2, dtype=torch.float16)
    released = {"shared.weight": shared, "encoder.embed_tokens.weight": shared, "head.weight": shared.clone().t(), "norm": half}
    torch.save(released, tmp_path / "pytorch_model.bin")
    output = tmp_path / "made" / "model.safetensors"
    message = convert_weights(tmp_path / "pytorch_model.bin", {"model_type": "t5"}, output)
    assert message == "model.safetensors: 3 tensors, 52 bytes from pytorch_model.bin"
    made = load_file(output)
    assert set(made) == {"shared.weight", "head.weight", "norm"}, "what shares its memory is there once"
    assert all(torch.equal(made[name], released[name]) and made[name].dtype == released[name].dtype for name in made)
    assert json.loads(output.with_name("config.json").read_text()) == {"model_type": "t5"}
    for file in (output, output.with_name("config.json")):
        assert checked_sidecar(file)["size"] == file.stat().st_size


def test_a_view_of_a_larger_tensor_is_no_copy_of_it(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    torch.save({"whole": whole, "part": whole[:3], "same": whole[0:6]}, tmp_path / "p.bin")
    convert_weights(tmp_path / "p.bin", {}, tmp_path / "m.safetensors")
    made = load_file(tmp_path / "m.safetensors")
    assert {name: tensor.tolist() for name, tensor in made.items()} == {"whole": [0, 1, 2, 3, 4, 5], "part": [0, 1, 2]}


@pytest.mark.parametrize("form", ["zip", "old", "plain"])
def test_a_pickle_that_holds_a_program_is_refused_and_the_program_does_not_run(form: str, tmp_path: Path) -> None:
    proof, file = tmp_path / "it_ran", tmp_path / "pytorch_model.bin"
    content = {"weight": torch.ones(2), "more": Program(proof)}
    if form == "plain":
        file.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(RelmError, match=r"expected only tensors: .*; use another release"):
        convert_weights(file, {}, tmp_path / "model.safetensors")
    assert not proof.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["pytorch_model.bin"]


def test_the_older_form_without_a_zip_is_read_too(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "p.bin", _use_new_zipfile_serialization=False)
    convert_weights(tmp_path / "p.bin", {}, tmp_path / "m.safetensors")
    assert load_file(tmp_path / "m.safetensors")["weight"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"weight": torch.ones(2), "step": 3}, "expected tensors by name, found dict"),
        ([torch.ones(2)], "expected tensors by name, found list"),
        ({}, "expected tensors by name, found dict"),
        ({"w": torch.ones(2).to_sparse()}, "w: expected a plain array of numbers, found torch.float32 and torch.sparse_coo"),
    ],
    ids=["a number", "a list", "nothing", "sparse"],
)
def test_what_is_no_weights_of_a_model_is_refused(content, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "p.bin")
    with pytest.raises(RelmError, match=message):
        convert_weights(tmp_path / "p.bin", {}, tmp_path / "m.safetensors")


@pytest.mark.parametrize("left", [0, 10, 400])
def test_a_file_that_was_cut_short_is_refused(left: int, tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(200)}, tmp_path / "whole")
    (tmp_path / "p.bin").write_bytes((tmp_path / "whole").read_bytes()[:left])
    with pytest.raises(RelmError, match="expected only tensors"):
        convert_weights(tmp_path / "p.bin", {}, tmp_path / "m.safetensors")
