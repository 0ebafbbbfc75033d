"""The precision of matrix products of float32 tensors, on torch's own devices."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from relm.devices.contract import open_device
from relm.errors import RelmError
from relm.recipes.devices import complete_description
from relm.recipes.run import Run
from relm.recipes.section import validate
from relm.training.checkpoints import Checkpoint
from relm.training.learner import warn_if_made_elsewhere


@pytest.fixture(autouse=True)
def precision_stays() -> Iterator[None]:
    """Check that a test leaves the process's precision unchanged."""
    before = torch.get_float32_matmul_precision()
    yield
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(("stated", "in_torch"), [("default", "medium"), ("high", "high"), ("highest", "highest")])
def test_a_stated_precision_is_set_recorded_and_restored(stated: str, in_torch: str) -> None:
    device = open_device(Run(threads=1, float32_matmul_precision=stated))
    assert torch.get_float32_matmul_precision() == in_torch
    assert device.describe()["float32_matmul_precision"] == stated
    device.close()
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(("stated", "allowed"), [("default", True), ("high", True), ("highest", False)])
def test_tf32_of_a_gpus_products_is_reached_only_by_the_key(stated: str, allowed: bool) -> None:
    assert not torch.backends.cuda.matmul.allow_tf32
    device = open_device(Run(threads=1, float32_matmul_precision=stated))
    # The flag that cuBLAS and Triton's kernels read; a build without CUDA has it as well.
    assert torch.backends.cuda.matmul.allow_tf32 == allowed
    device.close()
    assert not torch.backends.cuda.matmul.allow_tf32


def test_without_one_the_process_keeps_its_own_and_it_is_recorded() -> None:
    torch.set_float32_matmul_precision("high")
    device = open_device(Run(threads=1))
    assert torch.get_float32_matmul_precision() == "high"
    assert device.describe()["float32_matmul_precision"] == "high"
    device.close()
    assert torch.get_float32_matmul_precision() == "high"
    torch.set_float32_matmul_precision("highest")


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(RelmError, match=r"float32_matmul_precision.*'default', 'high' or 'highest'"):
        validate(Run, {"float32_matmul_precision": "medium"}, Path("recipe.yaml"))


@pytest.mark.parametrize(
    ("before", "words"),
    [({}, ""), ({"float32_matmul_precision": "high"}, "float32_matmul_precision was high, is highest")],
)
def test_a_record_from_before_the_key_has_the_devices_own_precision(
    before: dict[str, str], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    here = {"device": "cpu", "float32_matmul_precision": "highest"}
    checkpoint = Checkpoint(Path("step-1"), {"made_on": {"device": "cpu", **before}}, model={}, optimizer={})
    with caplog.at_level(logging.WARNING):
        warn_if_made_elsewhere(checkpoint, here)
    assert (words in caplog.text) if words else not caplog.text


def test_a_device_without_a_known_precision_gets_none() -> None:
    assert complete_description({"device": "abacus"}) == {"device": "abacus"}
    assert complete_description({"device": "tpu"}) == {"device": "tpu", "float32_matmul_precision": "default"}
