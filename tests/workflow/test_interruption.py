"""Stopped at any point, the same command goes on, to the same bytes as without the stop."""

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from made_once import copy_of
from relm.recipes.project import Project
from run_products import hash_products
from small_project import Commands, kill_session, make_project

T = TypeVar("T")
SEED = 20261
STEPS = 300
SLOW = f"""
extends: tiny
pretrain: {{main: {{steps: {STEPS}, schedule: {{warmup_steps: 20}}}}}}
evaluate: [held_out]
run: {{checkpoint_interval: 50}}
"""


def make_slow_project(folder: Path) -> Commands:
    project = make_project(folder)
    (folder / "recipes" / "slow.yaml").write_text(SLOW)
    return project


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the slow recipe run in one go, the project after its data were made, and how many seconds it took."""
    return copy_of(tmp_path_factory, "slow", run_slow)


def run_slow(folder: Path) -> None:
    """Run the slow recipe in a new project, and keep a copy of it from before the training."""
    (folder / "whole").mkdir()
    project, start = make_slow_project(folder / "whole"), time.monotonic()
    done = project.snakemake(str(Project(project.folder).plan("slow").manifest("main")))
    assert done.returncode == 0, done.stdout
    subprocess.run(["cp", "-a", str(project.folder), str(folder / "prepared")], check=True)
    finish(project)
    (folder / "seconds").write_text(str(time.monotonic() - start))


@pytest.fixture(scope="module")
def uninterrupted(runs: Path) -> tuple[dict[str, str], float]:
    """The products of the slow recipe run in one go, and how many seconds that took."""
    return hash_products(runs / "whole", "slow"), float((runs / "seconds").read_text())


@pytest.fixture
def slow_project(runs: Path, tmp_path: Path) -> Commands:
    """A project whose data are made, so that the slow recipe begins with its training."""
    subprocess.run(["cp", "-a", str(runs / "prepared"), str(tmp_path / "copy")], check=True)
    return Commands(tmp_path / "copy")


@contextlib.contextmanager
def halted_run(project: Commands, step: int) -> "Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]":
    """Start the slow recipe, and yield the command and its trainer, which waits in a training step; kill both at last."""
    process = project.start("results/slow", RELM_KILL_AT=f"gradient:{step}:SIGSTOP")

    def find_halted() -> psutil.Process | None:
        assert process.poll() is None, (project.folder / "snakemake.out").read_text()
        below = psutil.Process(process.pid).children(recursive=True)
        return next((each for each in below if state_of(each) == psutil.STATUS_STOPPED), None)

    try:
        yield process, wait_until(find_halted)
    finally:
        with contextlib.suppress(ProcessLookupError):
            kill_session(process)


def state_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status()
    return psutil.STATUS_DEAD


def has_pending(number: signal.Signals, process: psutil.Process) -> bool:
    """Return whether a process was sent a signal that it has not received."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    return bool(int(status["ShdPnd"], 16) & 1 << number - 1)


def wait_until(condition: Callable[[], T]) -> T:
    """Return what a condition returns once that is true."""
    for _ in range(2400):
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("this was waited for in vain")


def finish(project: Commands) -> None:
    done = project.snakemake("results/slow")
    assert done.returncode == 0, done.stdout
    assert (project.folder / "results" / "slow" / "report.html").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)], ids=["TERM", "INT"])
def test_a_signal_only_to_snakemake_reaches_the_trainer_which_saves(
    number: signal.Signals, slow_project: Commands, uninterrupted: tuple[dict[str, str], float]
) -> None:
    with halted_run(slow_project, step=8) as (process, trainer):
        process.send_signal(number)
        wait_until(lambda: has_pending(signal.SIGTERM, trainer))
        trainer.resume()
        assert process.wait(timeout=60) != 0
    (log,) = slow_project.folder.glob("work/runs/slow/*/main/train.jsonl")
    assert [path.name for path in log.parent.glob("checkpoints/step-*")] == ["step-00000008"]
    assert not (log.parent / "model" / "model.safetensors").exists()
    assert "saved" in (slow_project.folder / "snakemake.out").read_text()
    finish(slow_project)
    assert hash_products(slow_project.folder, "slow") == uninterrupted[0]


def kill_at_random_moments(project: Commands, reference: dict[str, str], seconds: float, seed: int, kills: int) -> None:
    """Kill everything, half of the times in a random step of the training and then at random moments of the whole run."""
    draw = random.Random(seed)
    steps = [draw.randint(1, STEPS // kills) for _ in range(kills // 2)]
    moments = [draw.uniform(0.05, 0.95) * seconds for _ in range(kills // 2)]
    print(f"SIGKILL to Snakemake and everything under it, seed {seed}, {steps} steps after a start, {moments} s after a start")
    for step in steps:
        with halted_run(project, step):
            pass
    for moment in moments:
        process = project.start("results/slow")
        try:
            process.wait(timeout=moment)
        except subprocess.TimeoutExpired:
            kill_session(process)
    finish(project)
    assert hash_products(project.folder, "slow") == reference


def test_after_sigkill_of_everything_the_same_command_ends_with_the_same_bytes(
    tmp_path: Path, uninterrupted: tuple[dict[str, str], float]
) -> None:
    kill_at_random_moments(make_slow_project(tmp_path), *uninterrupted, seed=SEED, kills=2)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(SEED + 100, SEED + 120))
def test_after_many_sigkills_the_same_command_ends_with_the_same_bytes(
    seed: int, tmp_path: Path, uninterrupted: tuple[dict[str, str], float]
) -> None:
    kill_at_random_moments(make_slow_project(tmp_path), *uninterrupted, seed=seed, kills=4)


def test_a_living_snakemake_keeps_its_lock(slow_project: Commands) -> None:
    with halted_run(slow_project, step=8):
        second = slow_project.snakemake("results/slow")
        assert second.returncode != 0
        assert "lock" in second.stdout.lower()


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("checkpoint-model.safetensors:3", marks=pytest.mark.full),
        "checkpoint-written:2",
        pytest.param("model-written:1", marks=pytest.mark.full),
        pytest.param("model-renamed:1", marks=pytest.mark.full),
    ],
)
def test_a_trainer_killed_between_write_and_rename_goes_on_to_the_same_bytes(
    point: str, slow_project: Commands, uninterrupted: tuple[dict[str, str], float]
) -> None:
    done = slow_project.snakemake("results/slow", RELM_KILL_AT=point)
    assert done.returncode != 0
    assert not list(slow_project.folder.glob("results/slow"))
    finish(slow_project)
    assert hash_products(slow_project.folder, "slow") == uninterrupted[0]
