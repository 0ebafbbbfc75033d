"""A run on a machine of several hosts, by name, on a real Slurm: the bytes of two processes on one machine in the end."""

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from shared_run import SharedRun
from test_shared_runs import find_rank

from relm.recipes.project import Project
from small_project import Commands, make_project
from small_slurm import OnSlurm, SmallSlurm, find_lacking, small_slurm, wait_until

pytestmark = pytest.mark.full
STEPS = 1200
# All nodes are this machine, which has no address of their names.
ADDRESS = {"MASTER_ADDR": "127.0.0.1"}
ON_HOSTS = "evaluate: []\non: {hosts: {threads: 1, micro_batch_size: 1}}\n"
RECIPES = {
    "shared": f"extends: tiny\npretrain: {{main: {{steps: {STEPS}}}}}\n{ON_HOSTS}",
    "masked": f"""
title: Hidden words
data: {{dataset: sample}}
tokenizer: {{train: wordpiece, vocabulary_size: 600, lower_case: true}}
model: {{architecture: bert, layers: 1, heads: 2, hidden_size: 32, positions: 32}}
pretrain:
  main:
    objective: masked
    sequence_length: 32
    masked: {{packing: sentence_pairs, whole_words: true}}
    global_batch_size: 4
    steps: 60
    optimizer: {{name: lamb, learning_rate: 1e-3}}
{ON_HOSTS}""",
}


class HostsRun(SharedRun):
    """A recipe on the machine `hosts`."""

    def __init__(self, project: Commands, recipe: str = "shared") -> None:
        self.project, self.environment = project, {**project.environment, **ADDRESS}
        self.name = f"{recipe}@hosts"
        recipes = project.folder / "recipes"
        (recipes / "machines").mkdir(exist_ok=True)
        (recipes / f"{recipe}.yaml").write_text(RECIPES[recipe])
        self.set_hosts(2)
        self.find_model()

    def find_model(self) -> None:
        self.model = self.project.folder / Project(self.project.folder).plan(self.name).model_folder("main")
        self.phase = self.model.parent

    @property
    def weights(self) -> str:
        return str(self.model.relative_to(self.project.folder) / "model.safetensors")

    def set_hosts(self, hosts: int) -> None:
        machine = self.project.folder / "recipes" / "machines" / "hosts.yaml"
        machine.write_text(f"title: Several hosts\ndevice: cpu\nhosts: {hosts}\n")

    def submit(self, cluster: SmallSlurm, *options: str) -> "subprocess.Popen[bytes]":
        """Start the command that trains on the cluster."""
        return OnSlurm(self.project.folder, cluster).start(self.weights, *options, **ADDRESS)

    def shown(self) -> str:
        return self.read("snakemake.out")


def copy(finished: Commands, folder: Path) -> Commands:
    subprocess.run(["cp", "-a", str(finished.folder), str(folder)], check=True)
    return Commands(folder)


def train_here(run: HostsRun) -> HostsRun:
    """Train a run in two processes of this machine."""
    done = run.project.relm("--processes", "2", "pretrain", run.name)
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="module")
def undisturbed(finished_project: Commands, tmp_path_factory: pytest.TempPathFactory) -> HostsRun:
    return train_here(HostsRun(copy(finished_project, tmp_path_factory.mktemp("undisturbed") / "project")))


@pytest.fixture
def run(finished_copy: Commands) -> HostsRun:
    return HostsRun(finished_copy)


@pytest.fixture
def cluster() -> Iterator[SmallSlurm]:
    """Four nodes."""
    if lacking := find_lacking():
        pytest.skip(f"no Slurm here: {', '.join(lacking)} (Debian's packages munge, slurmctld, slurmd, slurm-client)")
    with small_slurm(4) as started:
        yield started


def list_nodes(cluster: SmallSlurm) -> list[str]:
    """Return the nodes of the running training, the one of its script first."""
    (found,) = cluster.run("squeue", "--noheader", "--states=RUNNING", "--format=%N").split()
    return cluster.run("scontrol", "show", "hostnames", found).split()


def test_a_masked_recipe_is_trained_on_two_nodes_by_its_name(tmp_path: Path, cluster: SmallSlurm) -> None:
    (tmp_path / "there").mkdir()
    there = HostsRun(make_project(tmp_path / "there"), "masked")
    process = OnSlurm(there.project.folder, cluster).start(f"results/{there.name}", **ADDRESS)
    assert process.wait(timeout=400) == 0, there.shown()
    shown = cluster.run("squeue", "--states=all", "--noheader", "--format=%k %T %D")
    assert re.findall(r"rule_pretrain_\S+ (\S+) (\d)", shown) == [("COMPLETED", "2")]
    assert (there.project.folder / "results" / there.name / "model.safetensors").is_file()
    here = HostsRun(copy(there.project, tmp_path / "here"), "masked")
    here.remove()
    assert train_here(here).sha256() == there.sha256()
    assert here.order() == there.order()


@pytest.mark.parametrize("lost", [0, 1])
def test_after_a_lost_node_the_job_goes_on_with_another(
    run: HostsRun, cluster: SmallSlurm, undisturbed: HostsRun, lost: int
) -> None:
    process = run.submit(cluster)
    run.wait_for_checkpoint(process)
    nodes = list_nodes(cluster)
    cluster.kill_node(nodes[lost])
    assert process.wait(timeout=400) == 0, run.shown()
    assert run.sha256() == undisturbed.sha256()
    assert run.order() == undisturbed.order()
    assert '"resumed_after"' in (run.phase / "train.jsonl").read_text()
    assert "failed after" not in run.shown(), "Slurm itself puts the job of a lost node into the queue again"


def test_a_killed_rank_ends_the_job_and_the_next_one_resumes(run: HostsRun, cluster: SmallSlurm, undisturbed: HostsRun) -> None:
    process = run.submit(cluster)
    run.wait_for_checkpoint(process)
    find_rank(1, run.project.folder).kill()
    assert process.wait(timeout=400) == 0, run.shown()
    assert run.sha256() == undisturbed.sha256()
    assert '"resumed_after"' in (run.phase / "train.jsonl").read_text()


def test_a_job_over_its_time_limit_saves_and_the_next_one_resumes(run: HostsRun, cluster: SmallSlurm) -> None:
    recipe = run.project.folder / "recipes" / "shared.yaml"
    recipe.write_text(recipe.read_text().replace(str(STEPS), "12000"))
    run.find_model()
    process = run.submit(cluster, "--set-resources", "pretrain:runtime=1", "pretrain:slurm_extra='--signal=TERM@10'")
    assert process.wait(timeout=900) == 0, run.shown()
    assert re.search("stopped by SIGTERM after step", run.shown()), run.shown()
    found = run.sha256()
    run.remove()
    assert train_here(run).sha256() == found


def test_a_stopped_run_goes_on_with_another_number_of_hosts(run: HostsRun, cluster: SmallSlurm, undisturbed: HostsRun) -> None:
    process = run.submit(cluster)
    run.wait_for_checkpoint(process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 130, run.shown()
    wait_until(lambda: not cluster.run("squeue", "--noheader"), "no job is left")
    run.set_hosts(4)
    assert run.submit(cluster).wait(timeout=400) == 0, run.shown()
    assert '"resumed_after"' in (run.phase / "train.jsonl").read_text()
    assert run.order() == undisturbed.order()
    np.testing.assert_allclose(run.losses(), undisturbed.losses(), rtol=1e-2)
