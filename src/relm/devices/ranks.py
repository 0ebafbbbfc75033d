"""The ranks of a step that runs in several processes: the commands that start them, and this process's rank.

torchrun starts processes that share a batch; PopRun starts the instances of a run on IPUs.
"""

import os
import re
from collections.abc import Sequence

# A rank that gets TERM saves a checkpoint first; by default torchrun would kill it after 30 seconds.
SECONDS_TO_SAVE = 1800
# Environment variables that PopRun sets for each instance.
TOTAL, LOCAL, OFFSET = "POPDIST_NUM_TOTAL_REPLICAS", "POPDIST_NUM_LOCAL_REPLICAS", "POPDIST_REPLICA_INDEX_OFFSET"
IPUS = "POPDIST_NUM_IPUS_PER_REPLICA"
# Replicas of several hosts exchange gradients through the Pod's gateways.
_GATEWAYS = 'POPLAR_TARGET_OPTIONS={"gatewayMode":"true"}'


def launcher(processes: int) -> list[str]:
    """Return the words in front of a step's name that start it in this many processes on this machine."""
    if processes == 1:
        return ["python", "-m", "relm"]
    torchrun = ["torchrun", "--standalone", "--nproc-per-node", str(processes), "--shutdown-timeout", str(SECONDS_TO_SAVE)]
    return [*torchrun, "-m", "--", "relm"]  # without --, torchrun would parse the step's --log as its own option


def poprun(instances: int, replicas: int, ipus_per_replica: int, options: Sequence[str] = ()) -> list[str]:
    """Return the words in front of a step's name that start it by PopRun in this many instances.

    Args:
        replicas: the count of replicas of all instances.
        options: further options of PopRun.
    """
    counts = ["--num-instances", instances, "--num-replicas", replicas, "--ipus-per-replica", ipus_per_replica]
    return ["env", _GATEWAYS, "poprun", *map(str, counts), *options, "python", "-m", "relm"]


def started_by() -> list[str]:
    """Return the words in front of this process's step, as a record has them: without an installation's own options."""
    counts = _instances()
    if counts is not None:
        return poprun(ranks(), counts[0], int(os.environ[IPUS]))
    return ["relm"] if ranks() == 1 else launcher(ranks())


def split_launcher(words: Sequence[str]) -> list[str] | None:
    """Return the words after `relm` of a recorded command; None if it begins otherwise than `started_by` does.

    >>> split_launcher([*launcher(8), "pretrain", "NAME"])
    ['pretrain', 'NAME']
    >>> split_launcher([*poprun(2, 8, 8), "pretrain", "NAME"])
    ['pretrain', 'NAME']
    >>> split_launcher(["sh", "-c", "relm"])
    """
    if "relm" not in words:
        return None
    length = words.index("relm") + 1
    prefix = list(words[:length])
    counts = [int(word) for word in prefix if re.fullmatch("[1-9][0-9]{0,5}", word)]
    starts = [["relm"]]
    if len(counts) == 2:  # the second is torchrun's time for saving
        starts.append(launcher(counts[0]))
    if len(counts) == 3:
        starts.append(poprun(counts[0], counts[1], counts[2]))
    return list(words[length:]) if prefix in starts else None


def rank() -> int:
    """Return the rank of this process among those that were started together, from 0; 0 if it is alone."""
    instances = _instances()
    if instances is not None:
        _, local, offset = instances
        return offset // local
    return int(os.environ.get("RANK", "0")) if ranks() > 1 else 0


def ranks() -> int:
    """Return the count of processes that were started together."""
    instances = _instances()
    if instances is not None:
        total, local, _ = instances
        return total // local
    return int(os.environ.get("WORLD_SIZE", "1"))


def _instances() -> tuple[int, int, int] | None:
    """Return PopRun's count of all replicas, of those of this process, and the index of its first; None without PopRun.

    Variables that PopRun cannot have set count as absent; `relm.devices.ipu.instances` reports them.
    """
    values = [os.environ.get(name, "") for name in (TOTAL, LOCAL, OFFSET, IPUS)]
    if not all(value.isascii() and value.isdigit() for value in values):
        return None
    total, local, offset, _ = map(int, values)
    return (total, local, offset) if 0 < local <= total and offset < total else None
