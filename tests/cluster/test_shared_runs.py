"""Two processes that are killed or stopped: one exit status, no rank that waits for ever, and the same bytes in the end."""

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import psutil
import pytest
from shared_run import SharedRun, train_undisturbed

from small_project import CHECKOUT, Commands
from small_slurm import find_lacking, small_slurm

pytestmark = pytest.mark.full
RELM = [sys.executable, "-m", "relm", "pretrain", "shared"]


@pytest.fixture(scope="module")
def undisturbed(finished_project: Commands, tmp_path_factory: pytest.TempPathFactory) -> SharedRun:
    return train_undisturbed(finished_project, tmp_path_factory.mktemp("undisturbed") / "project")


@pytest.fixture
def run(finished_copy: Commands) -> SharedRun:
    return SharedRun(finished_copy)


def command_of_page(program: str) -> list[str]:
    """Return the one command of docs/cluster.md that begins with a program, for the run of this test."""
    page = (CHECKOUT / "docs" / "cluster.md").read_text()
    (line,) = re.findall(rf"^({program} .*?relm pretrain NAME)", page, re.M)
    return line.replace("NAME", "shared").split()


def find_rank(number: int, folder: Path) -> psutil.Process:
    """Return the process of a rank that trains in a folder."""
    for process in psutil.process_iter():
        try:
            is_rank = process.environ().get("RANK", process.environ().get("SLURM_PROCID")) == str(number)
            runs = Path(process.cmdline()[0]).name.startswith("python") and "pretrain" in process.cmdline()
            if is_rank and runs and process.cwd() == str(folder):
                return process
        except (psutil.Error, OSError, IndexError):
            continue
    raise AssertionError(f"no process of rank {number}")


@pytest.mark.parametrize("number", [0, 1])
def test_a_killed_rank_ends_the_command_and_the_same_command_resumes(
    run: SharedRun, undisturbed: SharedRun, number: int
) -> None:
    process = run.start(RELM, "killed.out")
    run.wait_for_checkpoint(process)
    find_rank(number, run.project.folder).kill()
    assert process.wait(timeout=30) == 128 + signal.SIGKILL
    assert f"relm pretrain: rank {number} of 2 was ended by SIGKILL" in run.read("killed.out").splitlines()[-1]
    assert run.start(RELM, "resumed.out").wait(timeout=300) == 0, run.read("resumed.out")
    assert run.sha256() == undisturbed.sha256()
    assert '"resumed_after"' in (run.phase / "train.jsonl").read_text()


@pytest.mark.parametrize("whom", ["launcher", "rank", "all"])
def test_a_stopped_run_ends_with_75_whoever_received_the_signal(run: SharedRun, undisturbed: SharedRun, whom: str) -> None:
    process = run.start(RELM, "stopped.out")
    run.wait_for_checkpoint(process)
    ranks = [find_rank(number, run.project.folder) for number in (0, 1)]
    for found in {"launcher": [process], "rank": ranks[1:], "all": [process, *ranks]}[whom]:
        os.kill(found.pid, signal.SIGTERM)
    assert process.wait(timeout=60) == 75, run.read("stopped.out")
    assert len(re.findall("stopped by .* after step", run.read("stopped.out"))) == 1
    if whom == "rank":
        assert run.start(RELM, "resumed.out").wait(timeout=300) == 0, run.read("resumed.out")
        assert run.sha256() == undisturbed.sha256()


def test_torchrun_ends_with_1_but_only_after_the_checkpoint(run: SharedRun) -> None:
    torchrun = ["torchrun", "--standalone", "--nproc-per-node", "2", "-m", "--", "relm", "pretrain", "shared"]
    process = run.start(torchrun, "torchrun.out")
    run.wait_for_checkpoint(process)
    find_rank(1, run.project.folder).terminate()
    assert process.wait(timeout=60) == 1
    told = run.read("torchrun.out")
    assert re.search("stopped by another process after step .* saved in", told), told
    assert re.search(r"exitcode *: 75", told), told


def test_srun_ends_with_75_and_a_killed_task_ends_the_step(run: SharedRun, undisturbed: SharedRun) -> None:
    if lacking := find_lacking():
        pytest.skip(f"no Slurm here: {', '.join(lacking)} (Debian's packages munge, slurmctld, slurmd, slurm-client)")
    with small_slurm() as cluster:
        run.environment["PATH"] = f"{cluster.folder / 'bin'}:{run.environment['PATH']}"
        srun, *words = command_of_page("srun")
        command = [srun, "--job-name=shared", "--mem=2000", *words]
        own = {"MASTER_ADDR": "127.0.0.1"}  # all nodes are this machine, which has no address of their names
        stopped = run.start(command, "stopped.out", **own)
        run.wait_for_checkpoint(stopped)
        cluster.run("scancel", "--signal=TERM", "--name=shared")
        assert stopped.wait(timeout=60) == 75, run.read("stopped.out")
        assert len(re.findall("stopped by SIGTERM after step", run.read("stopped.out"))) == 1

        shutil.rmtree(run.phase / "checkpoints")
        (run.phase / "train.jsonl").unlink()
        killed = run.start(command, "killed.out", **own)
        run.wait_for_checkpoint(killed)
        find_rank(1, run.project.folder).kill()
        assert killed.wait(timeout=60) not in (0, 75)
        assert "task 1: Killed" in run.read("killed.out")
        assert run.start(command, "resumed.out", **own).wait(timeout=300) == 0, run.read("resumed.out")
    assert run.sha256() == undisturbed.sha256()
