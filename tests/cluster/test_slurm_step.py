"""Several tasks of srun are ranks, by the variables that Slurm sets."""

import pytest

from relm.cluster.slurm_step import NUMBERS, adopt_slurm_step, expand_counts, first_host
from relm.errors import RelmError

# Task 5 of six on three nodes.
TASK = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_TASKS_PER_NODE": "3,2,1",
    "SLURM_STEP_NODELIST": "gpu[07-09]",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}


def adopted(**changes: str) -> dict[str, str]:
    environment = {**TASK, **changes}
    adopt_slurm_step(environment)
    return {name: value for name, value in environment.items() if not name.startswith("SLURM")}


def test_a_task_is_a_rank_and_all_tasks_of_a_step_meet_at_its_first_host() -> None:
    assert adopted() == {
        "RANK": "4",
        "WORLD_SIZE": "6",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "gpu07",
        "MASTER_PORT": "21720",
    }


def test_the_tasks_of_one_node_need_no_name_of_it() -> None:
    found = adopted(SLURM_STEP_TASKS_PER_NODE="6", SLURM_NODEID="0")
    assert (found["MASTER_ADDR"], found["LOCAL_WORLD_SIZE"]) == ("127.0.0.1", "6")


def test_an_address_and_a_port_of_the_users_stay() -> None:
    found = adopted(MASTER_ADDR="10.0.0.1", MASTER_PORT="29500")
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.1", "29500")


@pytest.mark.parametrize(
    "changes",
    [{"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_STEP_NUM_TASKS": ""}, {"WORLD_SIZE": "2"}, {"POPDIST_NUM_TOTAL_REPLICAS": "2"}],
)
def test_one_task_alone_and_the_ranks_of_another_launcher_are_left_alone(changes: dict[str, str]) -> None:
    assert "RANK" not in adopted(**changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in (*NUMBERS, "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST") for value in ("", None)),
        ("SLURM_PROCID", "x"),
        ("SLURM_STEP_TASKS_PER_NODE", "3,2"),
    ],
)
def test_tasks_without_slurms_other_variables_are_refused_and_do_not_wait(name: str, value: str | None) -> None:
    environment = {key: known for key, known in {**TASK, name: value}.items() if known is not None}
    with pytest.raises(RelmError, match=f"^{name}: missing, or no value of Slurm's, but SLURM_STEP_NUM_TASKS is 6"):
        adopt_slurm_step(environment)


def test_a_task_of_an_unknown_node_is_refused() -> None:
    with pytest.raises(RelmError, match=r"^SLURM_STEP_TASKS_PER_NODE: missing, "):
        adopted(SLURM_NODEID="3")


def test_slurms_short_forms_are_read() -> None:
    assert expand_counts("4(x2),1") == [4, 4, 1]
    assert [first_host(nodes) for nodes in ("a1", "a1,b2", "n[003-010,12]", "r[1-2]n[5,7],x")] == ["a1", "a1", "n003", "r1n5"]
