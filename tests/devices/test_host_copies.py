"""Copies of tensors in main memory have their values and share nothing with them."""

import pytest
import torch

from relm import limits
from relm.devices.contract import open_device
from relm.devices.host_copies import clone_tensors, fit_into_memory
from relm.devices.ipu.device import IpuDevice
from relm.devices.torch import TorchDevice
from relm.recipes.run import Run


def tensors_of_each_kind() -> list[torch.Tensor]:
    """A parameter, its transpose, which shares its memory, a scalar, and another type."""
    weight = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    return [weight, weight.detach().T, torch.tensor(3, dtype=torch.int64), torch.ones(2, dtype=torch.bfloat16)]


@pytest.mark.parametrize("device", [TorchDevice, IpuDevice])
def test_later_changes_of_a_tensor_do_not_reach_its_copy(device: type) -> None:
    opened = open_device(Run(threads=1)) if device is TorchDevice else object.__new__(IpuDevice)
    tensors = tensors_of_each_kind()
    values = [tensor.tolist() for tensor in tensors]
    copies = opened.copy_to_host(tensors)
    assert copies is not None
    for tensor in tensors:
        tensor.detach().zero_()
    assert [copy.tolist() for copy in copies] == values
    assert [copy.dtype for copy in copies] == [tensor.dtype for tensor in tensors]
    assert all(copy.is_contiguous() and not copy.requires_grad for copy in copies)


def test_copies_take_four_fifths_of_the_available_memory_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.zeros(60), torch.zeros(40)]
    monkeypatch.setattr(limits, "available_memory", lambda: 500)
    assert clone_tensors(tensors) is not None
    assert not fit_into_memory(tensors, times=2)
    monkeypatch.setattr(limits, "available_memory", lambda: 499)
    assert clone_tensors(tensors) is None


def test_the_code_for_a_gpu_copies_into_the_same_memory_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """On tensors of the CPU, with a stand-in for CUDA's pinned memory."""
    empty, waits = torch.empty, list[str]()
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory, **kind: empty(*shape, **kind))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append("wait"))
    device = open_device(Run(threads=1))
    assert isinstance(device, TorchDevice)
    monkeypatch.setattr(device, "_device", torch.device("cuda"))
    tensors = tensors_of_each_kind()
    values = [tensor.tolist() for tensor in tensors]
    first = device.copy_to_host(tensors)
    assert first is not None
    assert ([copy.tolist() for copy in first], waits) == (values, ["wait"])
    tensors[2] += 1
    again = device.copy_to_host(tensors)
    assert again is not None
    assert [copy.data_ptr() for copy in again] == [copy.data_ptr() for copy in first]
    assert again[2].item() == 4
    monkeypatch.setattr(limits, "available_memory", lambda: 1)
    assert device.copy_to_host(tensors) is not None, "the memory is there already"
    assert device.copy_to_host(tensors[:2]) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_gpus_tensors_are_copied_into_the_same_pinned_memory_each_time() -> None:
    device = open_device(Run(device="cuda"))
    tensors = [tensor.detach().cuda() for tensor in tensors_of_each_kind()]
    values = [tensor.tolist() for tensor in tensors]
    copies = device.copy_to_host(tensors)
    assert copies is not None
    for tensor in tensors:
        tensor.zero_()
    assert [copy.tolist() for copy in copies] == values
    assert all(copy.is_pinned() for copy in copies)
    again = device.copy_to_host(tensors)
    assert again is not None
    assert [copy.data_ptr() for copy in again] == [copy.data_ptr() for copy in copies]
