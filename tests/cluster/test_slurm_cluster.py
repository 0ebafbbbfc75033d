"""A recipe on a real Slurm cluster of two nodes, started and stopped here: the same bytes, whatever happens to it."""

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from relm.artifact import sha256_of
from relm.recipes.project import Project
from relm.terminal.handler import LOST_IN_GROUP
from small_project import Commands
from small_slurm import OnSlurm, SmallSlurm, hash_data, wait_until

pytestmark = pytest.mark.full
STEPS = 12_000


def lengthen(project: Commands) -> Path:
    """Make the recipe train for longer, and return the weights that it trains."""
    recipe = project.folder / "recipes" / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("steps: 40", f"steps: {STEPS}").replace("val: 10", "val: 400"))
    return Project(project.folder).plan("tiny").model_folder("main") / "model.safetensors"


def train_locally(finished: Commands, folder: Path) -> str:
    """Train the longer recipe without a cluster, and return the hash of its weights."""
    subprocess.run(["cp", "-a", str(finished.folder), str(folder)], check=True)
    project = Commands(folder)
    weights = lengthen(project)
    done = project.snakemake(str(weights))
    assert done.returncode == 0, done.stdout
    return sha256_of(folder / weights)


@pytest.fixture(scope="module")
def undisturbed(finished_project: Commands, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the weights that the longer recipe trains without a cluster."""
    return train_locally(finished_project, tmp_path_factory.mktemp("local") / "project")


def wait_for_checkpoint(folder: Path) -> None:
    """Wait until training has saved a checkpoint."""
    wait_until(lambda: any(folder.glob("checkpoints/step-*")), "a checkpoint", seconds=180)


def test_a_recipe_gives_the_same_bytes(project: Commands, finished_project: Commands, cluster: SmallSlurm) -> None:
    done = OnSlurm(project.folder, cluster).snakemake("results/tiny")
    assert done.returncode == 0, done.stdout
    assert "results/tiny: held out" in done.stdout.splitlines()[-1]
    for name in ("model.safetensors", "tokenizer.json", "eval/held_out.json", "eval/samples.json", "config.json"):
        here, there = (sha256_of(each.folder / "results" / "tiny" / name) for each in (project, finished_project))
        assert here == there, name
    states = cluster.run("squeue", "--states=all", "--noheader", "--format=%T").split()
    assert set(states) == {"COMPLETED"}
    assert len(states) == 11, "each job of the graph ran on a node"


def give_four_shards(project: Commands) -> Path:
    """Give the dataset four shards with the same content, download them, and return the manifest of their examples."""
    dataset, dump = project.folder / "recipes" / "data" / "sample.yaml", project.folder / "mirror" / "sample.xml"
    head, entry = dataset.read_text().split("  sample.xml:\n")
    names = [f"{letter}.xml" for letter in "abcd"]
    dataset.write_text(head + "".join(f"  {name}:\n{entry.replace('sample.xml', name)}" for name in names))
    for name in names:
        shutil.copy(dump, dump.with_name(name))
    plan = Project(project.folder).plan("tiny")
    done = project.snakemake(*(str(plan.documents_job.download(shard)) for shard in plan.shards))
    assert done.returncode == 0, done.stdout
    return plan.manifest("main")


def test_short_shards_share_a_job_and_one_that_fails_is_named(
    project: Commands, cluster: SmallSlurm, tmp_path_factory: pytest.TempPathFactory
) -> None:
    manifest = give_four_shards(project)
    local = Commands(tmp_path_factory.mktemp("local") / "project")
    subprocess.run(["cp", "-a", str(project.folder), str(local.folder)], check=True)
    done = local.snakemake(str(manifest))
    assert done.returncode == 0, done.stdout
    (damaged,) = (project.folder / "work/downloads/data/sample").glob("*/c.xml")
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + b"?")
    on_slurm = OnSlurm(project.folder, cluster)
    done = on_slurm.snakemake(str(manifest), "--restart-times", "0")
    assert done.returncode == 1, done.stdout
    assert re.search(r"^extract c\.xml: .*c\.xml: sha256 is \w{64}, its sidecar says", done.stdout, re.M), done.stdout
    lost = re.findall(rf"^extract (\S+): {LOST_IN_GROUP}; the group's log is (\S+)$", done.stdout, re.M)
    assert {name for name, _ in lost} == {"a.xml", "b.xml", "d.xml"}, done.stdout
    assert all((project.folder / log).is_file() for _, log in lost)
    damaged.write_bytes(content)
    done = on_slurm.snakemake(str(manifest))
    assert done.returncode == 0, done.stdout
    assert hash_data(project.folder / "work") == hash_data(local.folder / "work")
    jobs = re.findall(r"rule_(?:extract|pregenerate)_", cluster.run("squeue", "--states=all", "--noheader", "--format=%k"))
    assert sorted(jobs) == ["rule_extract_", "rule_extract_", "rule_pregenerate_"], "four shards a job; extraction ran twice"
    assert "Nothing to be done" in local.snakemake(str(manifest)).stdout
    assert "Nothing to be done" in project.snakemake(str(manifest)).stdout


def test_a_lost_node_and_a_restarted_controller_change_nothing(
    finished_copy: Commands, cluster: SmallSlurm, undisturbed: str
) -> None:
    weights = lengthen(finished_copy)
    process = OnSlurm(finished_copy.folder, cluster).start(str(weights))
    phase = finished_copy.folder / weights.parents[1]
    wait_for_checkpoint(phase)
    cluster.kill("slurmctld")
    cluster.start_controller()
    (node,) = cluster.run("squeue", "--noheader", "--format=%N").split()
    cluster.kill_node(node)
    assert process.wait(timeout=400) == 0, (finished_copy.folder / "snakemake.out").read_text()
    assert sha256_of(finished_copy.folder / weights) == undisturbed
    assert '"resumed_after"' in (phase / "train.jsonl").read_text(), "it resumed on the other node"
    told = (finished_copy.folder / "snakemake.out").read_text()
    assert "failed after" not in told, "Slurm itself puts the job of a lost node into the queue again"


def test_a_job_over_its_time_limit_saves_and_goes_on(finished_copy: Commands, cluster: SmallSlurm, undisturbed: str) -> None:
    weights = lengthen(finished_copy)
    limits = ("--set-resources", "pretrain:runtime=1", "pretrain:slurm_extra='--signal=TERM@10'")
    on_slurm = OnSlurm(finished_copy.folder, cluster)
    done = on_slurm.snakemake(str(weights), *limits)
    assert done.returncode == 0, done.stdout
    assert sha256_of(finished_copy.folder / weights) == undisturbed
    log = (finished_copy.folder / weights.parents[1] / "train.jsonl").read_text()
    assert '"resumed_after"' in log
    assert re.search("stopped by SIGTERM after step", done.stdout)


def test_seeds_train_side_by_side_and_a_stopped_command_leaves_no_job(finished_copy: Commands, cluster: SmallSlurm) -> None:
    lengthen(finished_copy)
    with open(finished_copy.folder / "recipes" / "tiny.yaml", "a") as recipe:
        recipe.write("seeds: 2\n")
    process = OnSlurm(finished_copy.folder, cluster).start("results/tiny")
    running = ("squeue", "--noheader", "--states=RUNNING", "--format=%k")
    wait_until(lambda: cluster.run(*running).count("rule_pretrain") == 2, "both seeds train", seconds=120)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 130, (finished_copy.folder / "snakemake.out").read_text()
    wait_until(lambda: not cluster.run("squeue", "--noheader"), "no job is left")
