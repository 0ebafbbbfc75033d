"""Errors that name what an environment lacks for a TPU, raised before anything is opened."""

import importlib.util

import pytest

from relm.devices.contract import open_device
from relm.devices.xla_opening import read_host_rank, requested_kind, require_hosts
from relm.errors import RelmError
from relm.recipes.run import Run


@pytest.mark.skipif(importlib.util.find_spec("torch_xla") is not None, reason="torch_xla is installed here")
def test_the_error_without_torch_xla_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    with pytest.raises(RelmError, match=r"needs torch_xla, and torch_xla is not installed.*make DEVICE=tpu environment"):
        open_device(Run(device="tpu"))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (Run(device="tpu", processes=2), "run.processes is 2, but one process drives all TPU cores"),
        (Run(device="tpu", compile=False), "run.compile: false is not possible on a TPU"),
    ],
)
def test_what_a_tpu_does_not_support_is_refused_by_key(run: Run, message: str) -> None:
    with pytest.raises(RelmError, match=message):
        open_device(run)


@pytest.mark.parametrize(
    ("environment", "rank_and_hosts"), [({}, (0, 1)), ({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "1"}, (2, 4))]
)
def test_the_rank_of_a_host_is_read_from_the_environment(environment: dict[str, str], rank_and_hosts: tuple[int, int]) -> None:
    assert read_host_rank(environment, "TPU") == rank_and_hosts


def test_two_processes_of_one_tpu_host_are_refused() -> None:
    started = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    with pytest.raises(RelmError, match="2 processes were started on this host, but one process drives all its TPU cores"):
        read_host_rank(started, "TPU")
    assert read_host_rank(started, "CPU") == (1, 2), "to try the code on a CPU"


def test_one_tpu_needs_a_single_host() -> None:
    with pytest.raises(RelmError, match=r"--one-tpu, or a run.topology of one device, .*found WORLD_SIZE=4; unset RANK"):
        read_host_rank({"RANK": "2", "WORLD_SIZE": "4"}, "TPU", one=True)


@pytest.mark.parametrize(
    ("there", "started", "message"),
    [
        (4, 1, "this TPU has 4 hosts, found WORLD_SIZE=1. Run the same command on every host, with RANK=0 to 3, WORLD_SIZE=4"),
        (4, 8, "this TPU has 4 hosts, found WORLD_SIZE=8"),
        (1, 4, "this TPU has one host, found WORLD_SIZE=4; unset RANK and WORLD_SIZE"),
    ],
)
def test_every_host_of_a_tpu_takes_part(there: int, started: int, message: str) -> None:
    require_hosts(there, there)
    with pytest.raises(RelmError, match=message):
        require_hosts(there, started)


def test_pjrt_device_defaults_to_tpu() -> None:
    assert requested_kind({}) == requested_kind({"PJRT_DEVICE": ""}) == requested_kind({"PJRT_DEVICE": "TPU"}) == "TPU"
    assert requested_kind({"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "8"}) == requested_kind({"PJRT_DEVICE": "CPU"}) == "CPU"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PJRT_DEVICE": "CUDA"}, "PJRT_DEVICE is 'CUDA', expected TPU, or CPU to try the code without one"),
        ({"PJRT_DEVICE": "tpu"}, "PJRT_DEVICE is 'tpu', expected TPU"),
        ({"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "eight"}, "CPU_NUM_DEVICES is 'eight', expected a whole number above 0"),
        ({"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "0"}, "CPU_NUM_DEVICES is '0', expected a whole number above 0"),
    ],
)
def test_another_value_in_the_environment_is_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(RelmError, match=message):
        requested_kind(environment)
