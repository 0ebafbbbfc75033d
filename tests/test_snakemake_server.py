"""A command in a process forked from a server is the same as the command `snakemake` in a new process."""

import signal
import subprocess

import pytest

from small_project import Commands
from snakemake_server import start_server


@pytest.mark.parametrize(("target", "status"), [("results/tiny", 0), ("results/tinny", 1)], ids=["plan", "error"])
def test_a_forked_command_prints_and_returns_the_same(target: str, status: int, project: Commands) -> None:
    forked, command = project.snakemake(target, "-n"), project.run_command(target, "-n")
    assert forked.returncode == command.returncode
    # The order of jobs that do not depend on each other follows from the seed of Python's hashes.
    assert sorted(forked.stdout.splitlines()) == sorted(command.stdout.splitlines())
    assert (forked.returncode, bool(forked.stdout)) == (status, True)


def test_each_command_has_its_own_environment_and_folder(project: Commands) -> None:
    (project.folder / "Snakefile").unlink()
    (project.folder / "Snakefile").write_text("import os\nprint(os.getcwd(), os.environ.get('MINE'), 'HOME' in os.environ)\n")
    assert f"{project.folder} first True\n" in project.snakemake(MINE="first").stdout
    del project.environment["HOME"]
    assert f"{project.folder} None False\n" in project.snakemake().stdout


def test_a_variable_that_is_read_at_the_start_needs_a_new_process(project: Commands) -> None:
    command, server = project.command("list"), start_server()
    assert server.is_ready_for(command, project.environment)
    assert not server.is_ready_for(command, {**project.environment, "PYTHONPATH": "/of/extensions"})
    assert not server.is_ready_for(command, {**project.environment, "RELM_EXTENSIONS": "toys"})
    assert not server.is_ready_for(command, {**project.environment, "PATH": "/usr/bin"})


def test_a_command_that_takes_too_long_is_killed_and_the_next_one_runs(project: Commands) -> None:
    (project.folder / "Snakefile").unlink()
    (project.folder / "Snakefile").write_text("import os, time\nif 'WAIT' in os.environ:\n    time.sleep(600)\n")
    command, server = project.command(), start_server()
    with pytest.raises(subprocess.TimeoutExpired):
        server.run(command, cwd=project.folder, env={**project.environment, "WAIT": "1"}, timeout=1)
    assert project.snakemake().returncode == 0


def test_the_signal_that_ended_a_command_is_its_status(project: Commands) -> None:
    (project.folder / "Snakefile").unlink()
    (project.folder / "Snakefile").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert project.snakemake().returncode == -signal.SIGKILL
