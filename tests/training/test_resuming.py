"""However a run is interrupted, it ends with the same bytes."""

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from relm.errors import RelmError
from relm.training.interruption import Preempted, run_lock
from tiny_runs import TinyRun


def assert_same(run: TinyRun, uninterrupted: TinyRun) -> None:
    assert run.lines() == uninterrupted.lines()
    assert run.listed() == uninterrupted.listed()
    assert run.last_optimizer() == uninterrupted.last_optimizer()
    assert run.sha256() == uninterrupted.sha256()


def wait_for_lines(run, count: int) -> None:
    log, deadline = run.folder / "main" / "train.jsonl", time.monotonic() + 60
    while not log.exists() or log.read_text().count("\n") < count:
        assert time.monotonic() < deadline, "the trainer wrote no line within a minute"
        time.sleep(0.01)


MUON = {"name": "muon", "groups": {"embeddings": {"learning_rate": 0.1}}}
# Objective, and an optimizer that is not its own -> the kill points of its run; every kind of kill point occurs.
KILLS = {
    "causal": ("data:8", "checkpoint-renamed:1", "model-written:1"),
    "masked": ("gradient:4", "checkpoint-tensor:60"),
    "causal, muon": ("checkpoint-tensor:40",),
    "seq2seq": ("checkpoint-model.safetensors:2", "checkpoint-listed:1", "checkpoint-written:3"),
}


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory, examples_of: Callable[[str], Path]) -> Callable[[str], TinyRun]:
    """Return a function: objective -> its uninterrupted short run, with dropout and two micro-batches, trained once."""
    folder = tmp_path_factory.mktemp("whole")

    def made(objective: str) -> TinyRun:
        kind, _, optimizer = objective.partition(", ")
        run = TinyRun(folder / objective, examples_of(kind), objective=kind)
        own = {"optimizer": MUON} if optimizer else {}
        run.changes = {"pretrain": {"main": {"steps": 12, **own}}, "run": {"log_interval": 1}}
        if not run.model_folder.exists():
            code, message = run.attempt()
            assert code == 0, message
        return run

    return made


def killed(run: TinyRun, kill: str, whole: TinyRun) -> bool:
    """Return True if a resumed run is killed at a kill point; if it ends before, compare it with the uninterrupted one.

    Args:
        kill: a kill point and a count, or `seconds:` and the time after which to kill.
    """
    name, _, count = kill.partition(":")
    code, message = run.attempt(seconds=float(count)) if name == "seconds" else run.attempt(kill)
    assert code in (0, -signal.SIGKILL), f"{kill}: exit code {code}: {message}"
    assert code == 0 or not (run.model_folder / "model.safetensors.json").exists()
    if code == 0:
        assert_same(run, whole)
    return code != 0


@pytest.mark.parametrize("objective", KILLS)
def test_a_run_killed_twice_ends_with_the_same_bytes(
    objective: str, whole_run: Callable[[str], TinyRun], tmp_path: Path
) -> None:
    whole = whole_run(objective)
    run = dataclasses.replace(whole, folder=tmp_path / "run")
    for kill in KILLS[objective]:
        assert killed(run, kill, whole), f"{kill} was not reached"
    assert not killed(run, "", whole)
    assert run.checkpoints == ["step-00000009", "step-00000012"], "a half-written checkpoint was left behind"


@pytest.mark.full
@pytest.mark.parametrize("objective", KILLS)
def test_a_run_killed_anywhere_ends_with_the_same_bytes(
    objective: str, whole_run: Callable[[str], TinyRun], tmp_path: Path
) -> None:
    seed = int(os.environ.get("RELM_TEST_SEED") or random.SystemRandom().randrange(10**6))
    print(f"RELM_TEST_SEED={seed} draws these kills again")
    draw, whole = random.Random(seed), whole_run(objective)
    started = time.monotonic()
    run = dataclasses.replace(whole, folder=tmp_path / "run 0")
    assert not killed(run, "", whole)
    seconds = time.monotonic() - started
    points = {"data": 12, "gradient": 12, "checkpoint-tensor": 150, "checkpoint-model.safetensors": 4, "checkpoint-written": 4}
    points |= {"checkpoint-listed": 4, "checkpoint-renamed": 4, "model-written": 1, "model-renamed": 1}
    kills = [f"{name}:{draw.randint(1, most)}" for name, most in [*points.items(), *list(points.items())[:7]]]
    kills += [f"seconds:{draw.uniform(0.1, seconds)}" for _ in range(4)]
    draw.shuffle(kills)
    reached: list[str] = []
    for number, kill in enumerate(kills):
        while not killed(run, kill, whole):  # it ended before: kill another run there
            run = dataclasses.replace(whole, folder=tmp_path / f"run {number} after {len(reached)}")
            kill = kill if not kill.startswith("seconds:") else f"seconds:{draw.uniform(0.1, seconds / 2)}"
        reached.append(kill)
        print("killed at", kill, "in", run.folder.name)
    assert len(reached) == 20
    assert not killed(run, "", whole)


def test_a_terminated_run_saves_reports_that_and_resumes(tiny_run, uninterrupted) -> None:
    trainer = tiny_run.start()
    wait_for_lines(tiny_run, 2)
    trainer.send_signal(signal.SIGSTOP)  # so that the run does not end before the signal comes
    written = len(tiny_run.lines())
    trainer.terminate()
    trainer.send_signal(signal.SIGCONT)
    output, _ = trainer.communicate(timeout=120)
    if written >= 16:
        pytest.skip("the run ended before it could be stopped")
    assert trainer.returncode == 75
    step = int(output.split("after step ")[1].split(" ")[0])
    assert "stopped by SIGTERM" in output
    assert "the same command resumes" in output
    assert f"step-{step:08d}" in tiny_run.checkpoints
    tiny_run.train()
    assert_same(tiny_run, uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_step_is_finished_after_a_signal(tiny_run, uninterrupted, number: signal.Signals, monkeypatch) -> None:
    from relm.training import updates

    passed = []

    def signal_in_the_fifth_step(name: str) -> None:
        passed.append(name)
        if passed.count("gradient") == 5:
            signal.raise_signal(number)

    before = signal.getsignal(number)
    monkeypatch.setattr(updates, "kill_point", signal_in_the_fifth_step)
    with pytest.raises(Preempted, match=f"stopped by {number.name} after step 5 of 30"):
        tiny_run.train()
    assert signal.getsignal(number) is before
    monkeypatch.undo()
    tiny_run.train()
    assert_same(tiny_run, uninterrupted)


@pytest.mark.parametrize("harm", ["flip", "truncate"])
def test_tokens_written_over_while_training_reads_them_reach_no_checkpoint(
    harm: str, tiny_run, uninterrupted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from relm.training import updates

    tiny_run.examples = Path(shutil.copytree(tiny_run.examples, tmp_path / "examples"))
    shard, passed = tiny_run.examples / "shard.train.bin", []
    content, before = shard.read_bytes(), shard.stat()

    def put(changed: bytes) -> None:
        with open(shard, "rb+") as file:
            file.write(changed)
            file.truncate()
        os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))

    def write_over_it_between_saves(name: str) -> None:
        passed.append(name)
        if passed.count("gradient") == 10:
            put(bytes(byte ^ 1 for byte in content) if harm == "flip" else content[:-9])
        if passed.count("gradient") == 12:
            put(content)

    monkeypatch.setattr(updates, "kill_point", write_over_it_between_saves)
    with pytest.raises(RelmError, match=r"shard\.train\.bin: another program wrote to it during training"):
        tiny_run.train()
    assert tiny_run.checkpoints[-1] == "step-00000009"
    monkeypatch.undo()
    tiny_run.train()
    assert_same(tiny_run, uninterrupted)


def test_a_trainer_whose_parent_dies_saves_and_stops(tiny_run) -> None:
    tiny_run.changes = {"pretrain": {"main": {"steps": 100_000}}, "run": {"checkpoint_interval": 100_000}}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RELM_STOP_WITH_PARENT": "1"}
    shell = subprocess.Popen(["bash", "-c", '"$@" & wait', "shell", *tiny_run.command()], env=environment)
    wait_for_lines(tiny_run, 2)
    shell.kill()
    shell.wait()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with run_lock(tiny_run.folder / "main" / "lock"):
                break
        except RelmError:
            continue
    assert len(tiny_run.checkpoints) == 1


def stopped_after_steps(run, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train some steps and leave the run as an interruption does."""
    from relm.training import updates

    passed = []

    def raise_in_the_next_step(name: str) -> None:
        passed.append(name)
        if len(passed) > steps:
            raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(updates, "kill_point", raise_in_the_next_step)
        with pytest.raises(InterruptedError):
            run.train()


@pytest.mark.parametrize("damaged", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_truncated_checkpoint_falls_back_to_the_one_before(
    tiny_run, uninterrupted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damaged: str
) -> None:
    stopped_after_steps(tiny_run, 8, monkeypatch)
    assert tiny_run.checkpoints == ["step-00000003", "step-00000006"]
    file = tiny_run.folder / "main" / "checkpoints" / "step-00000006" / damaged
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    tiny_run.train()
    assert "step-00000006" in caplog.text
    assert "resuming from the checkpoint before it" in caplog.text
    assert_same(tiny_run, uninterrupted)


@pytest.mark.parametrize("damaged", ["no checkpoint", "every checkpoint"])
def test_a_lost_attestation_of_the_order_is_written_again(
    tiny_run, uninterrupted, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    stopped_after_steps(tiny_run, 8, monkeypatch)
    order = tiny_run.folder / "main" / "order.json"
    order.unlink()
    if damaged == "every checkpoint":
        for path in (tiny_run.folder / "main").glob("checkpoints/*/model.safetensors"):
            path.unlink()
    tiny_run.train()
    assert_same(tiny_run, uninterrupted)
    whole = order.read_bytes()
    assert whole == (uninterrupted.folder / "main" / "order.json").read_bytes()
    order.unlink()
    tiny_run.train()
    assert order.read_bytes() == whole, "of a finished phase as well"
    assert_same(tiny_run, uninterrupted)


def test_a_listed_checkpoint_beyond_the_resumed_one_is_removed_from_the_list(tiny_run, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_after_steps(tiny_run, 8, monkeypatch)
    (tiny_run.folder / "main" / "checkpoints" / "step-00000006" / "state.json").unlink()
    tiny_run.changes = {"run": {"checkpoint_interval": 10}}
    tiny_run.train()
    assert [json.loads(line)["step"] for line in tiny_run.listed().splitlines()] == [3, 10, 20, 30]


SCALED = {
    "automatic": {"precision": "float16", "loss_scaling": {"name": "automatic", "scale": 2.0**24, "growth_interval": 3}},
    "by_step": {"precision": "float16", "loss_scaling": {"name": "by_step", "by_step": {1: 1024, 5: 128}}},
    "lamb": {"optimizer": {"name": "lamb", "bias_correction": False}},
    "adafactor": {"optimizer": {"name": "adafactor", "adafactor": {"beta1": 0.9}}},
    "muon": {"optimizer": {"name": "muon", "weight_decay": 0.1, "groups": {"embeddings": {"learning_rate": 0.3}}}},
}


@pytest.mark.parametrize("name", SCALED)
def test_the_state_of_optimizer_and_scaler_survives_an_interruption(
    name: str, tiny_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, whole = (type(tiny_run)(tmp_path / folder, tiny_run.examples) for folder in ("stopped", "whole"))
    for run in (stopped, whole):
        run.changes = {"pretrain": {"main": {"steps": 8, "schedule": {"warmup_steps": 1}, **SCALED[name]}}}
        run.changes["run"] = {"checkpoint_interval": 4, "log_interval": 1}
    whole.train()
    stopped_after_steps(stopped, 6, monkeypatch)
    monkeypatch.undo()
    stopped.train()
    assert stopped.lines() == whole.lines()
    assert stopped.sha256() == whole.sha256()
    if name == "automatic":
        assert whole.lines()[-1]["skipped_updates"] > 0
    if name == "by_step":
        assert [line["loss_scale"] for line in whole.lines()] == [1024] * 4 + [128] * 4
