"""However a run is interrupted, it ends with the same bytes."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from relm.errors import RelmError
from relm.training.interruption import Preempted, run_lock


def assert_same(run, uninterrupted) -> None:
    assert run.sha256() == uninterrupted.sha256()
    assert run.lines() == uninterrupted.lines()


def wait_for_lines(run, count: int) -> None:
    log, deadline = run.folder / "main" / "train.jsonl", time.monotonic() + 60
    while not log.exists() or log.read_text().count("\n") < count:
        assert time.monotonic() < deadline, "the trainer wrote no line within a minute"
        time.sleep(0.01)


def test_a_run_killed_anywhere_ends_with_the_same_bytes(tiny_run, uninterrupted) -> None:
    seed = int(os.environ.get("RELM_TEST_SEED") or random.SystemRandom().randrange(10**6))
    print(f"RELM_TEST_SEED={seed} draws these kills again")
    draw = random.Random(seed)
    saving = ["checkpoint-model.safetensors", "checkpoint-written", "checkpoint-renamed"]
    kills = [f"gradient:{draw.randint(1, 6)}", *(f"{point}:{draw.randint(1, 2)}" for point in draw.sample(saving, 2))]
    draw.shuffle(kills)
    kills += ["model-written:1", "model-renamed:1"]
    for kill in kills:
        print("killed at", kill)
        trainer = tiny_run.start(RELM_KILL_AT=kill)
        output, errors = trainer.communicate(timeout=120)
        assert trainer.returncode == -signal.SIGKILL, f"{kill} was not reached: {output}{errors}"
        assert not (tiny_run.model_folder / "model.safetensors.json").exists()
    tiny_run.train()
    assert_same(tiny_run, uninterrupted)
    assert tiny_run.checkpoints == ["step-00000027", "step-00000030"], "a half-written checkpoint was left behind"


def test_a_terminated_run_saves_says_so_and_goes_on(tiny_run, uninterrupted) -> None:
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
    assert "the same command goes on" in output
    assert f"step-{step:08d}" in tiny_run.checkpoints
    tiny_run.train()
    assert_same(tiny_run, uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_within_a_step_lets_the_step_end(tiny_run, uninterrupted, number: signal.Signals, monkeypatch) -> None:
    from relm.training import loop

    passed = []

    def signal_in_the_fifth_step(name: str) -> None:
        passed.append(name)
        if passed.count("gradient") == 5:
            signal.raise_signal(number)

    before = signal.getsignal(number)
    monkeypatch.setattr(loop, "kill_point", signal_in_the_fifth_step)
    with pytest.raises(Preempted, match=f"stopped by {number.name} after step 5 of 30"):
        tiny_run.train()
    assert signal.getsignal(number) is before
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


def test_a_second_process_is_refused_with_the_first_ones_pid(tiny_run) -> None:
    tiny_run.changes = {"pretrain": {"main": {"steps": 100_000}}}
    trainer = tiny_run.start()
    try:
        wait_for_lines(tiny_run, 1)
        with pytest.raises(RelmError, match=rf"another process trains here already \(pid {trainer.pid}\)"):
            tiny_run.train()
    finally:
        trainer.kill()
        trainer.wait()


def stopped_after_steps(run, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a run as an interruption does."""
    from relm.training import loop

    passed = []

    def raise_in_the_next_step(name: str) -> None:
        passed.append(name)
        if len(passed) > steps:
            raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(loop, "kill_point", raise_in_the_next_step)
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
    assert "going on from the checkpoint before it" in caplog.text
    assert_same(tiny_run, uninterrupted)


def test_one_flipped_bit_falls_back_too(tiny_run, uninterrupted, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_after_steps(tiny_run, 8, monkeypatch)
    file = tiny_run.folder / "main" / "checkpoints" / "step-00000006" / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    tiny_run.train()
    assert_same(tiny_run, uninterrupted)


def test_lines_beyond_the_checkpoint_are_written_once(tiny_run, uninterrupted, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_after_steps(tiny_run, 8, monkeypatch)
    assert [line["step"] for line in tiny_run.lines()] == [1, 2, 4, 6, 8]
    with open(tiny_run.folder / "main" / "train.jsonl", "a") as file:
        file.write('{"step": 9, "lo')  # a kill in the middle of a line
    tiny_run.train()
    assert_same(tiny_run, uninterrupted)


@pytest.mark.parametrize(
    ("change", "message"),
    [("data", "made for other data: its manifest_sha256 is"), ("fingerprint", "made for another run: its fingerprint is 0123")],
)
def test_a_checkpoint_of_something_else_is_refused(
    tiny_run, other_examples, monkeypatch: pytest.MonkeyPatch, change: str, message: str
) -> None:
    stopped_after_steps(tiny_run, 4, monkeypatch)
    if change == "data":
        tiny_run.examples = other_examples
    else:
        tiny_run.fingerprint = "ffffffffffff"
    with pytest.raises(RelmError, match=message):
        tiny_run.train()


def test_resuming_with_what_rounds_differently_is_said(
    tiny_run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stopped_after_steps(tiny_run, 4, monkeypatch)
    tiny_run.changes = {"run": {"micro_batch_size": 2}}
    tiny_run.train()
    assert "micro_batch_size was 4, is 2; going on, but the last bits will differ" in caplog.text


def test_a_checkpoint_says_what_it_is(uninterrupted) -> None:
    state = json.loads((uninterrupted.folder / "main" / "checkpoints" / "step-00000030" / "state.json").read_text())
    assert (state["format"], state["step"], state["phase"], state["fingerprint"]) == (1, 30, "main", uninterrupted.fingerprint)
    assert set(state["sha256"]) == {"model.safetensors", "optimizer.safetensors"}


SCALED = {
    "automatic": {"precision": "float16", "loss_scaling": {"name": "automatic", "scale": 2.0**24, "growth_interval": 3}},
    "by_step": {"precision": "float16", "loss_scaling": {"name": "by_step", "by_step": {1: 1024, 5: 128}}},
    "lamb": {"optimizer": {"name": "lamb", "bias_correction": False}},
    "adafactor": {"optimizer": {"name": "adafactor", "adafactor": {"beta1": 0.9}}},
}


@pytest.mark.parametrize("name", SCALED)
def test_what_optimizer_and_scaler_remember_survives_an_interruption(
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
