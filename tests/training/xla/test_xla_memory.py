"""A step that exceeds the memory, on XLA's CPU client, which really fails to allocate it."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from xla_runs import XlaRun

from relm.training import updates

TOO_LARGE = 1 << 46  # numbers: 256 TiB, more than an address can say


@dataclass
class TooLargeRun(XlaRun):
    """A run whose third step allocates a matrix that no machine can hold."""

    def pretrained(self) -> str:
        """Train in this process, which ends afterwards."""
        plain, taken = updates.finish_gradients, []

        def finish_gradients(*arguments) -> Tensor:
            norm, _ = plain(*arguments), taken.append(1)
            if len(taken) < 3:
                return norm
            matrix = torch.ones(TOO_LARGE // 1024, 1024, device=norm.device) * norm
            return norm + (matrix @ torch.rand(1024, 1024, device=norm.device))[0, 0]

        updates.finish_gradients = finish_gradients
        return super().pretrained()


@pytest.mark.parametrize("log_interval", [1, pytest.param(6, marks=pytest.mark.full)])
def test_a_step_without_memory_ends_in_a_plain_error_wherever_it_is_raised(
    log_interval: int, runs: Callable[..., XlaRun]
) -> None:
    changes = {"run": {"log_interval": log_interval, "checkpoint_interval": 100}}
    plain = runs(f"too large, {log_interval}", "causal", devices=2, changes=changes)
    code, message = TooLargeRun(plain.folder, plain.examples, plain.changes, devices=2).attempt("")
    assert code == 1, message
    assert "a step does not fit into the memory of a device: " in message
    assert re.search(r"Out of memory allocating \d{15} bytes", message)
    assert "Make run.micro_batch_size (which is not set: the global batch) smaller" in message
    assert "Traceback" not in message
