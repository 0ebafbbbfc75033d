"""Fixtures of the whole suite: the checkout, real data next to it, and small projects made from the checkout's own rules."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from made_once import copy_of
from small_project import CHECKOUT, Commands, make_project
from small_slurm import SmallSlurm, find_lacking, small_slurm


def pytest_configure() -> None:
    """Take SIGINT and SIGHUP as always, here and in what is started: in the background or under nohup they are ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The folder with the Snakefile."""
    return CHECKOUT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora and tokenizers next to the checkout, for those who have them."""
    folder = CHECKOUT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real corpora of ../shared/data are not on this machine")
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Commands:
    """A fresh small project."""
    return make_project(tmp_path)


@pytest.fixture(scope="session")
def finished_project(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """A small project whose recipe has run to the end; copy it before changing it."""
    return Commands(copy_of(tmp_path_factory, "finished", run_tiny))


def run_tiny(folder: Path) -> None:
    """Make a small project, and run its recipe by the command itself."""
    done = make_project(folder).run_command("results/tiny")
    assert done.returncode == 0, done.stdout


@pytest.fixture
def finished_copy(finished_project: Commands, tmp_path: Path) -> Commands:
    """A copy of the finished project, times and links kept, to be changed at will."""
    folder = tmp_path / "copy"
    subprocess.run(["cp", "-a", str(finished_project.folder), str(folder)], check=True)
    return Commands(folder)


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the workers of simulated IPUs that this process starts."""
    from forked_workers import start_forked
    from relm.devices.ipu import worker_process

    monkeypatch.setattr(worker_process, "start_worker", start_forked)


@pytest.fixture
def cluster() -> Iterator[SmallSlurm]:
    """A Slurm cluster of two nodes on this machine."""
    if lacking := find_lacking():
        pytest.skip(f"no Slurm here: {', '.join(lacking)} (Debian's packages munge, slurmctld, slurmd, slurm-client)")
    with small_slurm() as started:
        yield started
