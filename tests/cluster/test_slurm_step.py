"""Several tasks of srun are ranks, by the variables that Slurm sets."""

import pytest

from relm.cluster.slurm_step import adopt_slurm_step, expand_counts, first_host

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


def test_slurms_short_forms_are_read() -> None:
    assert expand_counts("4(x2),1") == [4, 4, 1]
    assert [first_host(nodes) for nodes in ("a1", "a1,b2", "n[003-010,12]", "r[1-2]n[5,7],x")] == ["a1", "a1", "n003", "r1n5"]
