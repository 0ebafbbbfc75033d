"""A run on a device that this environment lacks is refused before its data are made, and a dry-run warns."""

from pathlib import Path

import pytest

from relm.devices.detection import find_missing_cuda, find_missing_xla
from relm.graph.environments import TrainingPlace, find_fault
from relm.recipes.project import Project
from small_project import Commands, make_project

MACHINES = {
    "gpu": "title: A GPU\ndevice: cuda\n",
    "slice": "title: A slice of TPUs\ndevice: tpu\ntopology: v3-8\n",
    "hosts": "title: GPUs of two hosts\ndevice: cuda\naccelerators: 8\nhosts: 2\n",
}
CANNOT = {
    "gpu": (find_missing_cuda(), "make DEVICE=cuda environment"),
    "slice": (find_missing_xla(), "make DEVICE=tpu environment"),
}


@pytest.fixture
def project(tmp_path: Path) -> Commands:
    made = make_project(tmp_path)
    (tmp_path / "recipes" / "machines").mkdir()
    for name, text in MACHINES.items():
        (tmp_path / "recipes" / "machines" / f"{name}.yaml").write_text(text)
    recipe = tmp_path / "recipes" / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("global_batch_size: 4", "global_batch_size: 8"))
    return made


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


def test_several_hosts_of_gpus_are_refused_also_where_another_computer_trains(project: Commands) -> None:
    done = project.snakemake("results/tiny@hosts")
    message = (
        "tiny@hosts: machine hosts has 2 hosts, and a job starts its processes on one alone; run it on a machine of one host"
    )
    assert done.returncode == 1
    assert done.stdout.rstrip().endswith(message)
    elsewhere = TrainingPlace(uses_environment=False, is_here=False)
    assert find_fault(Project(project.folder).plan("tiny@hosts"), elsewhere) == message
    assert find_fault(Project(project.folder).plan("tiny@gpu"), elsewhere) is None


@pytest.mark.parametrize("machine", CANNOT)
def test_a_dry_run_shows_the_plan_and_warns_once(project: Commands, machine: str) -> None:
    lack, command = CANNOT[machine]
    if lack is None:
        pytest.skip("this environment has it")
    done = project.snakemake(f"results/tiny@{machine}", "-n")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(f"{lack}; `{command}` makes one that can. This is a dry-run; a run would stop here.") == 1
    assert "  pretrain main " in done.stdout


def test_data_alone_are_made_anywhere(project: Commands) -> None:
    manifest = Project(project.folder).plan("tiny@gpu").manifest("main")
    assert "cannot train" not in project.snakemake(str(manifest), "-n").stdout


def test_the_cpu_is_never_refused(project: Commands) -> None:
    done = project.snakemake("results/tiny", "-n")
    assert done.returncode == 0
    assert "cannot train" not in done.stdout
