"""Buckets of gradients and their all-reduce in a single process; for several, see tests/training/test_processes.py."""

import socket
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from relm.devices import processes
from relm.devices.processes import Processes, read_rank, split_into_buckets, translate_lost_ranks
from relm.errors import RelmError


def zeros(*sizes: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.zeros(size, dtype=dtype) for size in sizes]


def sizes_of(gradients: list[torch.Tensor]) -> list[list[int]]:
    return [[gradient.numel() for gradient in bucket] for bucket in split_into_buckets(gradients)]


def test_a_bucket_holds_neighbours_of_one_type_up_to_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "BUCKET", 10)
    assert sizes_of(zeros(4, 6, 1, 9, 1)) == [[4, 6], [1, 9], [1]]
    assert sizes_of(zeros(3, 25, 3)) == [[3], [25], [3]]
    assert sizes_of([*zeros(1, 2), *zeros(3, 4, dtype=torch.bfloat16), *zeros(5)]) == [[1, 2], [3, 4], [5]]
    assert sizes_of([]) == []


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """A process group of one, whose sums are its own values."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    group = Processes(torch.device("cpu"))
    yield group
    group.close()


@pytest.mark.parametrize("bucket", [1, 7, 40, 10**6])
def test_every_gradient_is_copied_back_to_its_parameter(alone: Processes, monkeypatch: pytest.MonkeyPatch, bucket: int) -> None:
    monkeypatch.setattr(processes, "BUCKET", bucket)
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in [(3, 4), (5,), (), (2, 3, 2), (6, 2), (1,)]]
    parameters[3] = nn.Parameter(torch.zeros(2, 3, 2, dtype=torch.bfloat16))
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    parameters[1].grad = None
    parameters[4].grad = torch.randn(2, 6, generator=generator).t()
    before = [None if parameter.grad is None else parameter.grad.clone() for parameter in parameters]
    alone.sum_gradients(parameters)
    for parameter, gradient in zip(parameters, before, strict=True):
        assert (parameter.grad is None) == (gradient is None)
        assert gradient is None or torch.equal(parameter.grad, gradient)


def test_sums_leave_their_arguments_unchanged(alone: Processes) -> None:
    values, counts = torch.tensor([1.5, -2.0]), torch.tensor([3, 4]).numpy()
    assert alone.sum_scalars(values).tolist() == [1.5, -2.0]
    assert alone.sum_counts(counts).tolist() == [3, 4]
    assert alone.sum_counts(counts) is not counts


@pytest.mark.parametrize(("started", "wanted", "message"), [("1", 2, "one was started"), ("4", 2, "4 were started")])
def test_another_count_of_processes_is_refused(
    monkeypatch: pytest.MonkeyPatch, started: str, wanted: int, message: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", started)
    with pytest.raises(RelmError, match=f"run.processes is {wanted}, but {message}; .*`python -m relm --processes 2 pretrain"):
        read_rank(wanted)


def test_a_lost_rank_raises_a_plain_error() -> None:
    expected = r"another process of this run has ended .* resumes the run \(Connection closed by peer\)$"
    with pytest.raises(RelmError, match=expected), translate_lost_ranks():
        raise RuntimeError("Connection closed by peer. This is typically caused by a crash.\nMore")


def test_a_missing_master_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(RelmError, match=r"cannot be reached.*MASTER_ADDR expected, but not set"):
        Processes(torch.device("cpu"))
