"""A run on a device that this environment lacks is rejected before its data are made, and a dry-run warns."""

from pathlib import Path

import pytest

from relm.devices.detection import find_missing_cuda, find_missing_xla
from relm.graph.environments import TrainingPlace, find_fault
from relm.recipes.project import Project
from small_project import CHECKOUT, Commands, add_machines, make_project

MACHINES = {
    "gpu": "title: A GPU\ndevice: cuda\n",
    "slice": "title: A slice of TPUs\ndevice: tpu\ntopology: v3-8\n",
    "hosts": "title: GPUs of two hosts\ndevice: cuda\naccelerators: 8\nhosts: 2\n",
}
CANNOT = {
    "gpu": (find_missing_cuda(), "make DEVICE=cuda environment"),
    "slice": (find_missing_xla(), "make DEVICE=tpu environment"),
}


ONLY_SLURM = (
    "on which only Slurm's srun starts processes, outside of images; add --workflow-profile profiles/slurm and omit --sdm, or "
    "choose a machine of one host"
)


@pytest.fixture
def project(tmp_path: Path) -> Commands:
    return add_machines(make_project(tmp_path), MACHINES, 8)


@pytest.mark.parametrize("machine", CANNOT)
def test_a_machine_whose_device_is_absent_is_refused_before_the_first_job(project: Commands, machine: str) -> None:
    lack, command = CANNOT[machine]
    if lack is None:
        pytest.skip("this environment has it")
    done = project.snakemake(f"results/tiny@{machine}")
    assert done.returncode == 1
    assert done.stdout == (  # and nothing of Snakemake's
        f"tiny@{machine}: this environment cannot train on machine {machine}: {lack}; `{command}` makes one that can\n"
    )
    assert not list(project.folder.glob("work/d*"))
    assert not list((project.folder / ".snakemake" / "locks").glob("*"))


@pytest.mark.parametrize("options", [[], ["--executor", "elsewhere", "--jobs", "1"]])
def test_several_hosts_are_refused_without_slurm(project: Commands, options: list[str]) -> None:
    done = project.snakemake("results/tiny@hosts", *options, PYTHONPATH=str(CHECKOUT / "tests"))
    assert done.returncode == 1
    assert done.stdout.rstrip().endswith(f"tiny@hosts: machine hosts has 2 hosts, {ONLY_SLURM}")
    assert not list(project.folder.glob("work/d*"))


def test_several_hosts_are_refused_in_images_and_with_a_store(project: Commands) -> None:
    plans = Project(project.folder)
    plan, on_slurm = plans.plan("tiny@hosts"), TrainingPlace(uses_environment=False, is_here=False, has_srun=True)
    assert ONLY_SLURM in str(find_fault(plan, on_slurm._replace(has_srun=False)))
    assert find_fault(plan, on_slurm) is None
    assert find_fault(plans.plan("tiny@gpu"), on_slurm._replace(has_srun=False)) is None
    stored = plans.plan("tiny+run.checkpoints_to=s3:%2F%2Fbucket%2Frelm@hosts")
    assert find_fault(stored, on_slurm) == (
        f"{stored.name}: run.checkpoints_to needs one host, and machine hosts has 2; remove the key"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["pretrain", "tiny@hosts"],
            "relm pretrain: tiny@hosts: its machine has 2 hosts, so the command belongs in a job of Slurm",
        ),
        (["rehearse", "tiny@hosts"], "run.processes is 8, but one was started"),
        (["--processes", "4", "pretrain", "tiny@hosts"], "run.processes is 8, but 4 were started"),
    ],
)
def test_commands_of_one_machine_refuse_several_hosts(finished_copy: Commands, words: list[str], message: str) -> None:
    add_machines(finished_copy, MACHINES, 8)
    done = finished_copy.relm(*words)
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize("machine", CANNOT)
def test_a_dry_run_shows_the_plan_and_warns_once(project: Commands, machine: str) -> None:
    lack, command = CANNOT[machine]
    if lack is None:
        pytest.skip("this environment has it")
    done = project.snakemake(f"results/tiny@{machine}", "-n")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(f"{lack}; `{command}` makes one that can. This is a dry-run; a run would stop here.") == 1
    assert "  pretrain main " in done.stdout


def test_targets_of_only_data_are_made_anywhere(project: Commands) -> None:
    manifest = Project(project.folder).plan("tiny@gpu").manifest("main")
    assert "cannot train" not in project.snakemake(str(manifest), "-n").stdout


def test_the_cpu_is_never_refused(project: Commands) -> None:
    done = project.snakemake("results/tiny", "-n")
    assert done.returncode == 0
    assert "cannot train" not in done.stdout
