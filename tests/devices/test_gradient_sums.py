"""How gradients are put together to travel, without a second process; with several, see tests/training/test_processes.py."""

import socket
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from relm.devices import processes
from relm.devices.processes import Processes, buckets, lost_ranks_in_words, rank_of_this_process
from relm.errors import RelmError


def zeros(*sizes: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.zeros(size, dtype=dtype) for size in sizes]


def sizes_of(gradients: list[torch.Tensor]) -> list[list[int]]:
    return [[gradient.numel() for gradient in bucket] for bucket in buckets(gradients)]


def test_a_bucket_holds_neighbours_of_one_type_up_to_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "BUCKET", 10)
    assert sizes_of(zeros(4, 6, 1, 9, 1)) == [[4, 6], [1, 9], [1]]
    assert sizes_of(zeros(3, 25, 3)) == [[3], [25], [3]]
    assert sizes_of([*zeros(1, 2), *zeros(3, 4, dtype=torch.bfloat16), *zeros(5)]) == [[1, 2], [3, 4], [5]]
    assert sizes_of([]) == []


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """A group of one, whose sums are what was there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    made = Processes(torch.device("cpu"))
    yield made
    made.close()


@pytest.mark.parametrize("bucket", [1, 7, 40, 10**6])
def test_every_gradient_comes_back_to_its_place(alone: Processes, monkeypatch: pytest.MonkeyPatch, bucket: int) -> None:
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


def test_sums_are_of_what_was_given_and_leave_it_alone(alone: Processes) -> None:
    values, counts = torch.tensor([1.5, -2.0]), torch.tensor([3, 4]).numpy()
    assert alone.summed(values).tolist() == [1.5, -2.0]
    assert alone.exchanged(counts).tolist() == [3, 4]
    assert alone.exchanged(counts) is not counts


@pytest.mark.parametrize(("started", "wanted", "words"), [("1", 2, "one was started"), ("4", 2, "4 were started")])
def test_another_number_of_processes_is_refused(monkeypatch: pytest.MonkeyPatch, started: str, wanted: int, words: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", started)
    with pytest.raises(RelmError, match=f"run.processes is {wanted}, but {words}; .*--nproc-per-node 2 -m -- relm"):
        rank_of_this_process(wanted)


def test_nobody_there_is_said_in_words() -> None:
    expected = r"another process of this run has ended .* goes on \(Connection closed by peer\)$"
    with pytest.raises(RelmError, match=expected), lost_ranks_in_words():
        raise RuntimeError("Connection closed by peer. This is typically caused by a crash.\nMore")


def test_ranks_that_nobody_brought_together_are_told_what_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(RelmError, match=r"cannot be reached.*MASTER_ADDR expected, but not set"):
        Processes(torch.device("cpu"))
