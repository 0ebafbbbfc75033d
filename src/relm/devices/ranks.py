"""The ranks of a step that runs in several processes: the command that starts them, and this process's rank."""

import os

# A rank that gets TERM saves a checkpoint first; by default torchrun would kill it after 30 seconds.
SECONDS_TO_SAVE = 1800


def launcher(processes: int) -> list[str]:
    """Return the words in front of a step's name that start it in this many processes on this machine."""
    if processes == 1:
        return ["python", "-m", "relm"]
    torchrun = ["torchrun", "--standalone", "--nproc-per-node", str(processes), "--shutdown-timeout", str(SECONDS_TO_SAVE)]
    return [*torchrun, "-m", "--", "relm"]  # without --, torchrun would parse the step's --log as its own option


def rank() -> int:
    """Return the rank of this process among those that torchrun started together, from 0; 0 if it is alone."""
    return int(os.environ.get("RANK", "0")) if ranks() > 1 else 0


def ranks() -> int:
    """Return the count of processes that torchrun started together."""
    return int(os.environ.get("WORLD_SIZE", "1"))
