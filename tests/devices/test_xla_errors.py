"""Explanations of errors that only a TPU raises. Each message is one that users of PyTorch/XLA or JAX reported."""

import pytest

from relm.devices.xla_errors import LONGEST, explain_error
from relm.recipes.run import Run

FULL_WHEN_COMPILED = (
    "Bad StatusOr access: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used "
    "21.95G of 15.48G hbm. Exceeded hbm capacity by 6.47G.\n\nTotal hbm usage >= 22.47G:\n    reserved        530.00M"
)
FULL = [
    FULL_WHEN_COMPILED,
    "Bad StatusOr access: RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 196.00M. That was not "
    "possible. There are 134.44M free.; (1x0x0_HBM0): while running replica 0 and partition 0 of a replicated computation",
    "Resource exhausted: From /job:tpu_worker/replica:0/task:0:\nAttempting to reserve 3.95G at the bottom of memory.",
    # Raised by the CPU client, as tests/training/xla/test_xla_memory.py provokes it.
    "Error dispatching computation: Error preparing computation: Out of memory allocating 2147483648 bytes.",
]
LOST = [
    'RPC failed with status = "Unavailable: Socket closed" and grpc_error_string = "Error received from peer"',
    "UNAVAILABLE: Task /job:jax_worker/replica:0/task:37 heartbeat timeout. This indicates that the remote task has failed, "
    "got preempted, or crashed unexpectedly.",
    "DEADLINE_EXCEEDED: Barrier timed out. Some tasks already at the barrier: 0/8",
    "Client mesh is unhealthy with uneven heartbeats",
]


@pytest.mark.parametrize("message", FULL)
def test_full_memory_is_answered_with_the_keys_that_need_less(message: str) -> None:
    explained = explain_error(message, Run(device="tpu", micro_batch_size=64))
    assert explained is not None
    assert explained.startswith("run.device: tpu: a step does not fit into the memory of a device: ")
    for way_out in (
        "Make run.micro_batch_size (now 64) smaller",
        "set run.activation_checkpointing: true",
        "set the phase's precision to bfloat16 if it is float32",
        "`relm compile NAME`",
    ):
        assert way_out in explained


def test_settings_already_in_use_are_not_advised() -> None:
    explained = explain_error(FULL_WHEN_COMPILED, Run(device="tpu", activation_checkpointing=True))
    assert explained is not None
    assert "Used 21.95G of 15.48G hbm. Exceeded hbm capacity by 6.47G." in explained
    assert "reserved" not in explained, "the table after the first line"
    assert "run.micro_batch_size (which is not set: the global batch) smaller" in explained
    assert "activation_checkpointing" not in explained


@pytest.mark.parametrize("message", LOST)
def test_a_lost_host_is_answered_with_the_way_to_resume(message: str) -> None:
    explained = explain_error(message, Run(device="tpu"))
    assert explained is not None
    assert explained.startswith("run.device: tpu: lost the TPU or one of its hosts: ")
    assert "checkpoints are intact" in explained
    assert "run the same command again on every host" in explained


def test_a_fault_of_the_program_is_not_explained() -> None:
    assert explain_error("The size of tensor a (3) must match the size of tensor b (4)", Run(device="tpu")) is None


def test_an_endless_line_is_cut() -> None:
    explained = explain_error("RESOURCE_EXHAUSTED: " + "x" * 10_000, Run(device="tpu"))
    assert explained is not None
    assert len(explained) < LONGEST + 400
