"""Each process finds its place among the instances that PopRun starts, or says what is wrong."""

import shlex

import pytest

from relm.devices.ipu.instances import find_instance, launcher
from relm.errors import RelmError
from relm.recipes.machine.pipeline import Pipeline


def pipeline(instances: int = 2) -> Pipeline:
    return Pipeline(layers_per_ipu=[1, 1], gradient_accumulation=8, replicas=8, instances=instances)


def poprun(**changes: str | None) -> dict[str, str]:
    """Return the variables of the second of two instances of four replicas each."""
    set_by_poprun = {"NUM_TOTAL_REPLICAS": "8", "NUM_LOCAL_REPLICAS": "4", "REPLICA_INDEX_OFFSET": "4"}
    changed = {**set_by_poprun, "NUM_IPUS_PER_REPLICA": "2", "UNIFORM_REPLICAS_PER_INSTANCE": "1", **changes}
    return {f"POPDIST_{name}": value for name, value in changed.items() if value is not None}


def test_each_instance_has_its_rank() -> None:
    assert find_instance(pipeline(), poprun()) == (1, 2)
    assert find_instance(pipeline(), poprun(REPLICA_INDEX_OFFSET="0")) == (0, 2)
    alone = poprun(NUM_LOCAL_REPLICAS="8", REPLICA_INDEX_OFFSET="0")
    assert find_instance(pipeline(instances=1), alone) == (0, 1)
    assert find_instance(pipeline(instances=1), {}) == (0, 1)


@pytest.mark.parametrize(
    ("instances", "environment", "message"),
    [
        (2, {}, "pipeline.instances is 2, but PopRun did not start this process; start it as `env .*poprun --num-instances 2"),
        (1, poprun(), "POPDIST_NUM_LOCAL_REPLICAS is '4', expected 8 by the recipe's pipeline; .* or unset POPDIST_NUM_LOCAL"),
        (2, poprun(NUM_TOTAL_REPLICAS="16"), "POPDIST_NUM_TOTAL_REPLICAS is '16', expected 8 .*--num-replicas 8"),
        (2, poprun(NUM_IPUS_PER_REPLICA="4"), "POPDIST_NUM_IPUS_PER_REPLICA is '4', expected 2 .*--ipus-per-replica 2"),
        (2, poprun(REPLICA_INDEX_OFFSET=None), "but POPDIST_REPLICA_INDEX_OFFSET not. PopRun sets all of them"),
        (1, {"POPDIST_NUM_TOTAL_REPLICAS": "8"}, "POPDIST_NUM_TOTAL_REPLICAS is set, but .* start it without PopRun"),
        (2, poprun(REPLICA_INDEX_OFFSET="3"), "POPDIST_REPLICA_INDEX_OFFSET is '3', expected a multiple of 4"),
        (2, poprun(REPLICA_INDEX_OFFSET="8"), "POPDIST_REPLICA_INDEX_OFFSET is '8', expected a multiple of 4"),
        (2, poprun(REPLICA_INDEX_OFFSET="one"), "POPDIST_REPLICA_INDEX_OFFSET is 'one'"),
        (2, poprun(NUM_LOCAL_REPLICAS=""), "POPDIST_NUM_LOCAL_REPLICAS is '', expected 4"),
    ],
)
def test_other_counts_are_refused(instances: int, environment: dict[str, str], message: str) -> None:
    with pytest.raises(RelmError, match=message):
        find_instance(pipeline(instances), environment)


def test_poprun_starts_the_counts_of_the_recipe_with_the_options_of_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELM_POPRUN_OPTIONS", "--host a,b --mpi-global-args='--mca btl_tcp_if_include eth0'")
    assert launcher(pipeline()) == [
        "env", 'POPLAR_TARGET_OPTIONS={"gatewayMode":"true"}', "poprun", "--num-instances", "2", "--num-replicas", "8",
        "--ipus-per-replica", "2", "--host", "a,b", "--mpi-global-args=--mca btl_tcp_if_include eth0", "python", "-m", "relm",
    ]  # fmt: skip
    assert shlex.split(shlex.join(launcher(pipeline()))) == launcher(pipeline())
