"""The ranks of a step that `srun` starts: Slurm's variables, as the names that torchrun sets."""

import re
from collections.abc import Mapping, MutableMapping

from relm.devices.ranks import TOTAL
from relm.errors import RelmError

NUMBERS = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID", "SLURM_STEP_ID")
"""Variables of a task with a number; all tasks of a step meet only if each has them."""
# Ports of jobs begin here: below those that Linux gives to connections, above those of most services.
FIRST_PORT, PORTS = 20_000, 12_000


def adopt_slurm_step(environment: MutableMapping[str, str]) -> None:
    """Set RANK, WORLD_SIZE and what belongs to them, if this process is one of several tasks of `srun`.

    MASTER_ADDR and MASTER_PORT stay where they are set; otherwise they are the first host of the step and a port that follows
    from the job's number. Nothing happens where another launcher has set its own variables.
    """
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS")
    if tasks < 2 or "WORLD_SIZE" in environment or TOTAL in environment:
        return
    on_each_node = expand_counts(environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    wrong = [name for name in NUMBERS if not re.fullmatch("[0-9]+", environment.get(name, ""))]
    is_known = sum(on_each_node) == tasks and _number(environment, "SLURM_NODEID") < len(on_each_node)
    wrong += [] if is_known else ["SLURM_STEP_TASKS_PER_NODE"]
    wrong += ["SLURM_STEP_NODELIST"] if not environment.get("SLURM_STEP_NODELIST") else []
    if wrong:
        raise RelmError(
            f"{', '.join(wrong)}: missing, or no value of Slurm's, but SLURM_STEP_NUM_TASKS is {tasks}. srun sets them; pass "
            "them on to each task, or unset SLURM_STEP_NUM_TASKS"
        )
    port = FIRST_PORT + (101 * _number(environment, "SLURM_JOB_ID") + _number(environment, "SLURM_STEP_ID")) % PORTS
    numbers = {
        "RANK": _number(environment, "SLURM_PROCID"),
        "WORLD_SIZE": tasks,
        "LOCAL_RANK": _number(environment, "SLURM_LOCALID"),
        "LOCAL_WORLD_SIZE": on_each_node[_number(environment, "SLURM_NODEID")],
    }
    environment.update({name: str(number) for name, number in numbers.items()})
    environment.setdefault("MASTER_PORT", str(port))
    one_node = len(on_each_node) == 1
    environment.setdefault("MASTER_ADDR", "127.0.0.1" if one_node else first_host(environment["SLURM_STEP_NODELIST"]))


def expand_counts(counts: str) -> list[int]:
    """Return the count of tasks of each node, which Slurm shortens.

    >>> expand_counts("2(x3),1")
    [2, 2, 2, 1]
    """
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)
    return [int(tasks) for tasks, nodes in found for _ in range(int(nodes or 1))]


def first_host(nodes: str) -> str:
    """Return the first host of a list of nodes, which Slurm shortens.

    >>> first_host("gpu[07-09,12],cpu1"), first_host("rack[1-2]n[3-4]"), first_host("a1,a2")
    ('gpu07', 'rack1n3', 'a1')
    """
    found = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", found[0]) if found else nodes


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "")
    return int(value) if value.isascii() and value.isdigit() else 0
