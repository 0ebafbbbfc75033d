"""Calls that are made before a result counts."""

import subprocess
import sys

import pytest
import torch

from relm.devices import first_calls
from relm.devices.contract import open_device
from relm.recipes.run import Run

# Prints the exact losses of the first batch that counts, in two threads.
FRESH = """
import torch
torch.set_num_threads(2)
from relm.devices.first_calls import compute_losses, make_first_calls
assert make_first_calls(2)
print(compute_losses()[0].detach().numpy().tobytes().hex())
"""


def test_opening_a_cpu_with_two_threads_makes_the_calls_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_calls, "_made", set())
    threads = torch.get_num_threads()
    try:
        open_device(Run(device="cpu", threads=2, compile=False)).close()
        assert first_calls._made == {2}
        assert not first_calls.make_first_calls(2)
    finally:
        torch.set_num_threads(threads)


def test_one_thread_needs_no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_calls, "_made", set())
    assert not first_calls.make_first_calls(1)


def test_random_numbers_that_follow_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_calls, "_made", set())
    before = torch.get_rng_state()
    assert first_calls.make_first_calls(2)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_calls_run_under_inference_and_change_no_gradient_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_calls, "_made", set())
    with torch.no_grad():
        assert first_calls.make_first_calls(2)
        assert not torch.is_grad_enabled()


@pytest.mark.full
def test_concurrent_fresh_processes_compute_the_same_losses() -> None:
    found = set()
    for _ in range(8):
        processes = [subprocess.Popen([sys.executable, "-c", FRESH], stdout=subprocess.PIPE, text=True) for _ in range(3)]
        found |= {process.communicate()[0] for process in processes}
    assert len(found) == 1
    assert len(found.pop()) == 2 * 4 * first_calls.ROWS + 1
