"""The ranks of a step that runs in several processes: the commands that start them, and this process's rank.

relm itself starts the processes of one machine that share a batch, torchrun or srun those of several; PopRun starts the
instances of a run on IPUs.
"""

import os
from collections.abc import Sequence

PROCESSES = "--processes"
"""The option in front of a step's name that starts it in several processes on this machine."""
# Environment variables that PopRun sets for each instance.
TOTAL, LOCAL, OFFSET = "POPDIST_NUM_TOTAL_REPLICAS", "POPDIST_NUM_LOCAL_REPLICAS", "POPDIST_REPLICA_INDEX_OFFSET"
IPUS = "POPDIST_NUM_IPUS_PER_REPLICA"
# Replicas of several hosts exchange gradients through the Pod's gateways.
_GATEWAYS = 'POPLAR_TARGET_OPTIONS={"gatewayMode":"true"}'


def launcher(processes: int, hosts: int = 1) -> list[str]:
    """Return the words in front of a step's name that start it in this many processes, on this machine or by srun on several.

    >>> launcher(2), launcher(16, hosts=2)[:4]
    (['python', '-m', 'relm', '--processes', '2'], ['srun', '--nodes=2', '--ntasks=16', '--ntasks-per-node=8'])
    """
    return [*_srun(processes, hosts), "python", "-m", *_started_alone(1 if hosts > 1 else processes)]


def _srun(processes: int, hosts: int) -> list[str]:
    """Return the words that start a command on each host; all its processes may use all cores of the job there."""
    if hosts == 1:
        return []
    counts = [f"--nodes={hosts}", f"--ntasks={processes}", f"--ntasks-per-node={processes // hosts}"]
    return ["srun", *counts, "--cpu-bind=none", "--kill-on-bad-exit=1"]


def _started_alone(processes: int) -> list[str]:
    return ["relm"] if processes == 1 else ["relm", PROCESSES, str(processes)]


def poprun(instances: int, replicas: int, ipus_per_replica: int, options: Sequence[str] = ()) -> list[str]:
    """Return the words in front of a step's name that start it by PopRun in this many instances, with all their replicas."""
    counts = ["--num-instances", instances, "--num-replicas", replicas, "--ipus-per-replica", ipus_per_replica]
    return ["env", _GATEWAYS, "poprun", *map(str, counts), *options, "python", "-m", "relm"]


def started_by() -> list[str]:
    """Return the words in front of this process's step, as a record has them: without an installation's own options."""
    counts = _instances()
    if counts is not None:
        return poprun(ranks(), counts[0], int(os.environ[IPUS]))
    hosts = ranks() // int(os.environ.get("LOCAL_WORLD_SIZE") or ranks())
    return [*_srun(ranks(), hosts), *_started_alone(1 if hosts > 1 else ranks())]


def words_of_step(words: Sequence[str]) -> list[str]:
    """Return a step's name and its arguments in a command that has the word `relm`.

    >>> words_of_step(["relm", "--processes", "2", "pretrain", "NAME"])
    ['pretrain', 'NAME']
    """
    rest = list(words[words.index("relm") + 1 :])
    return rest[2:] if rest[:1] == [PROCESSES] else rest


def rank() -> int:
    """Return the rank of this process among those that were started together, from 0; 0 if it was started by itself."""
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
    """Return PopRun's number of replicas, how many this process has, and the index of its first; None without PopRun.

    Variables that PopRun cannot have set count as absent; `relm.devices.ipu.instances` reports them.
    """
    values = [os.environ.get(name, "") for name in (TOTAL, LOCAL, OFFSET, IPUS)]
    if not all(value.isascii() and value.isdigit() for value in values):
        return None
    total, local, offset, _ = map(int, values)
    return (total, local, offset) if 0 < local <= total and offset < total else None
