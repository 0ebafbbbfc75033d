"""Plain messages for errors of XLA and libtpu during a step, with what to do.

Only messages distinguish the errors: PyTorch/XLA raises a RuntimeError for all of them. One may be raised much later than its
cause, when the host next waits for the devices.
"""

import re

from relm.recipes.run import Run

# Raised by the compiler, by the allocator, and when a program is dispatched; older versions write "Resource exhausted".
_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|resource exhausted|out of memory", re.IGNORECASE)
_LOST = re.compile(
    r"UNAVAILABLE|DEADLINE_EXCEEDED|deadline exceeded|heartbeat|socket closed|connection (reset|refused)|preempted|unhealthy",
    re.IGNORECASE,
)
LONGEST = 300


def explain_error(message: str, run: Run) -> str | None:
    """Return a plain message for an error of the devices; None: a fault of the program."""
    what = message.strip().partition("\n")[0][:LONGEST]
    if _MEMORY.search(message):
        return f"run.device: tpu: a step does not fit into the memory of a device: {what}. {_smaller(run)}"
    if _LOST.search(message):
        return (
            f"run.device: tpu: lost the TPU or one of its hosts: {what}. It was preempted, crashed or lost its network; "
            "checkpoints are intact. Check that it exists (`gcloud compute tpus tpu-vm list`), and run the same command again "
            "on every host"
        )
    return None


def _smaller(run: Run) -> str:
    now = "which is not set: the global batch" if run.micro_batch_size is None else f"now {run.micro_batch_size}"
    recompute = "" if run.activation_checkpointing else "set run.activation_checkpointing: true, "
    return (
        f"Make run.micro_batch_size ({now}) smaller, {recompute}or set the phase's precision to bfloat16 if it is float32; "
        "`relm compile NAME` reports beforehand what a step needs"
    )
