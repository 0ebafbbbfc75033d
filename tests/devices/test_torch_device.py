import numpy as np
import pytest
import torch
from torch import nn

from relm.devices.contract import open_device
from relm.errors import RelmError
from relm.recipes.run import Run


def test_a_device_without_its_pipeline_is_refused_by_name() -> None:
    with pytest.raises(RelmError, match=r"run.device: ipu needs a pipeline"):
        open_device(Run(device="ipu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_the_error_without_a_gpu_names_what_to_install() -> None:
    with pytest.raises(RelmError, match=r"no usable GPU.*Install .* CUDA build of torch"):
        open_device(Run(device="cuda"))


def test_the_cpu_gets_the_requested_threads_and_reports_them() -> None:
    before = torch.get_num_threads()
    try:
        device = open_device(Run(threads=1))
        assert torch.get_num_threads() == 1
        assert device.describe()["threads"] == 1
        assert device.describe()["torch"] == torch.__version__
    finally:
        torch.set_num_threads(before)


def test_an_operation_without_a_reproducible_form_is_an_error() -> None:
    open_device(Run(threads=1))
    assert torch.are_deterministic_algorithms_enabled()


def test_a_batch_arrives_unchanged() -> None:
    batch = {"input_ids": np.array([[1, 2], [3, 4]]), "attention_mask": np.array([[True, False]])}
    device = open_device(Run(threads=1))
    fed = device.feed(device.stage(batch))
    assert fed["input_ids"].tolist() == [[1, 2], [3, 4]]
    assert fed["attention_mask"].dtype == torch.bool


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_precision_applies_to_products_and_not_to_weights(precision: str, dtype: torch.dtype) -> None:
    device = open_device(Run(threads=1))
    layer = device.place(nn.Linear(2, 2))
    with device.autocast(precision):
        assert layer(torch.ones(1, 2)).dtype == dtype
    assert layer.weight.dtype == torch.float32
