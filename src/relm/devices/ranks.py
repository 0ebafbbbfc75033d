"""Several processes of one step, its ranks: how they are started, and which of them speaks."""

import os

# A rank that is told to stop saves a checkpoint first; torchrun alone would kill it after 30 seconds.
SECONDS_TO_SAVE = 1800


def launcher(processes: int) -> list[str]:
    """The words in front of a step's name that start it in so many processes on this machine."""
    if processes == 1:
        return ["python", "-m", "relm"]
    torchrun = ["torchrun", "--standalone", "--nproc-per-node", str(processes), "--shutdown-timeout", str(SECONDS_TO_SAVE)]
    return [*torchrun, "-m", "--", "relm"]  # without --, torchrun takes the step's --log for an option of its own


def rank() -> int:
    """Of this process among those that torchrun started together, from 0; alone it is 0."""
    return int(os.environ.get("RANK", "0")) if ranks() > 1 else 0


def ranks() -> int:
    """How many processes torchrun started together."""
    return int(os.environ.get("WORLD_SIZE", "1"))
