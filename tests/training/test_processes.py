"""Several processes train as one does: the same losses and weights to rounding, even after errors and kills."""

import dataclasses
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from process_runs import SharedRun, finished, messages, start_ranks

from relm.artifact import sha256_of
from relm.devices.contract import open_device
from relm.errors import RelmError
from relm.training.interruption import run_lock

Examples = Callable[[str], Path]
FIGURES = ("loss", "gradient_norm", "validation_loss", "skipped_updates", "next_sentence_accuracy")
BERNOULLI = {"masked": {"selection": "bernoulli"}}


def phase(**changes: Any) -> dict[str, Any]:
    return {"pretrain": {"main": changes}}


# Name -> objective and other changes of the recipe.
SAME: dict[str, tuple[str, dict[str, Any]]] = {
    "causal": ("causal", {"run": {"validation_interval": 3, "validation_batches": 2}}),
    "unequal counts": ("masked", phase(**BERNOULLI)),
    "shares": ("masked", phase(loss_normalisation="per_replica", loss_shares=2)),
    "float16": ("causal", phase(precision="float16", loss_scaling={"name": "automatic", "scale": 2.0**22})),
}
WIDE = {
    **SAME,
    "exact counts": ("masked", {}),
    "four shares": ("masked", phase(**BERNOULLI, loss_normalisation="per_replica", loss_shares=4)),
    "micro-batches": ("masked", phase(loss_normalisation="per_micro_batch", loss_shares=8)),
    "pairs of texts": ("seq2seq", {}),
    "recomputed": ("masked", {"run": {"activation_checkpointing": True}}),
    "bfloat16": ("causal", phase(precision="bfloat16")),
    "bfloat16 state": ("causal", phase(optimizer={"state_precision": "bfloat16"})),
}
ROUNDING = {"float16": 1e-4, "bfloat16": 1e-3, "bfloat16 state": 1e-2}


def assert_as_one_process(run: SharedRun, alone: SharedRun, rounding: float = 3e-6) -> None:
    """Compare up to the rounding of float32 sums in another order; a coarser type may round a value to its neighbour."""
    np.testing.assert_allclose(run.columns(*FIGURES), alone.columns(*FIGURES), rtol=rounding)
    for name, weight in alone.weights().items():
        np.testing.assert_allclose(run.weights()[name], weight, atol=10 * rounding, err_msg=name)


@pytest.fixture
def runs(tmp_path: Path, examples_of: Examples) -> Callable[..., SharedRun]:
    """Return a function: name, objective and other changes of the recipe -> a run in a folder of that name."""

    def made(name: str, objective: str = "causal", changes: dict[str, Any] | None = None, **own: Any) -> SharedRun:
        return SharedRun(tmp_path / name, examples_of(objective), changes or {}, objective=objective, **own)

    return made


def test_two_processes_train_as_one_and_an_error_of_one_ends_both(runs: Callable[..., SharedRun]) -> None:
    same = {name: runs(name, *what) for name, what in SAME.items()}
    nan = phase(optimizer={"learning_rate": 1e30, "gradient_clipping": None}, schedule={"warmup_steps": 0})
    faults = {
        "no number": runs("no number", changes=nan),
        "data": runs("data", own={"1": {"step 4": "torn"}}),
        "apart": runs("apart", own={"0": {"folder": str(same["causal"].folder.parent / "data")}}),
        "disk": runs("disk"),
        "one stopped": runs("one stopped", changes=phase(steps=40), own={"1": {"step 4": "TERM"}}),
        "lock": runs("lock"),
    }
    (faults["disk"].folder / "main").mkdir(parents=True)
    (faults["disk"].folder / "main" / "checkpoints").write_text("in the way")
    with run_lock(faults["lock"].folder / "main" / "lock"):
        done = finished(start_ranks([*same.values(), *faults.values()], processes=2))

    for name, what in SAME.items():
        alone = runs(f"{name}, alone", *what)
        alone.train()
        assert_as_one_process(same[name], alone, ROUNDING.get(name, 3e-6))
        assert same[name].sha256() != alone.sha256(), "nothing was summed in another order"
        assert len(messages(done, same[name])) == 2
    assert 0 < same["float16"].columns("skipped_updates")[-1] < 6, "an update overflows, and another does not"

    words = {name: messages(done, run) for name, run in faults.items()}
    assert all("step 2: the " in word and "is nan" in word for word in words["no number"])
    assert all("different steps: rank 0 at 4, rank 1 at 1" in word for word in words["apart"])
    assert [word.partition(" after ")[0] for word in words["one stopped"]] == [
        "stopped by another process",
        "stopped by SIGTERM",
    ]
    assert len({word.partition(" after ")[2] for word in words["one stopped"]}) == 1
    for name, rank, reason in [
        ("data", 1, "a shard is gone"),
        ("disk", 0, "cannot write the checkpoint"),
        ("lock", 0, f"another process trains here already (pid {os.getpid()})"),
    ]:
        assert reason in words[name][rank]
        assert words[name][1 - rank].startswith("another process of this run has ended or cannot be reached")
    assert faults["data"].checkpoints == ["step-00000003"]


def test_a_rank_that_dies_ends_the_others_and_one_process_resumes(
    runs: Callable[..., SharedRun], caplog: pytest.LogCaptureFixture
) -> None:
    twice = [runs(name, "masked", phase(**BERNOULLI)) for name in ("first", "second")]
    dying = runs("dying", own={"1": {"RELM_KILL_AT": "gradient:5"}})
    done = finished(start_ranks([*twice, dying], processes=2))
    assert twice[0].sha256() == twice[1].sha256()
    assert done.returncode == 1
    assert "(exitcode: -9) local_rank: 1" in done.stderr
    assert dying.checkpoints == ["step-00000003"]
    order = sha256_of(dying.folder / "main" / "order.json")

    alone = runs("alone")
    alone.train()
    dying.train()
    assert "processes was 2, is None; resuming, but the last bits will differ" in caplog.text
    assert order == sha256_of(dying.folder / "main" / "order.json") == sha256_of(alone.folder / "main" / "order.json")
    assert_as_one_process(dying, alone)


def test_all_ranks_stop_at_one_step_and_another_count_of_processes_resumes(
    runs: Callable[..., SharedRun], caplog: pytest.LogCaptureFixture
) -> None:
    changes = {**phase(steps=100_000), "run": {"checkpoint_interval": 100_000}}
    stopped, alone = (runs(name, changes=changes) for name in ("stopped", "alone"))
    torchrun = start_ranks([stopped], processes=2)
    wait_for_lines(stopped, 3, torchrun)
    torchrun.terminate()  # it passes TERM on to its workers
    done = finished(torchrun)
    words = messages(done, stopped)
    assert [word.partition(" after step ")[0] for word in words] == ["stopped by SIGTERM"] * 2
    steps = {int(word.partition(" after step ")[2].partition(" ")[0].replace(",", "")) for word in words}
    assert len(steps) == 1, "the ranks stopped at different steps"
    step = steps.pop()
    assert stopped.checkpoints == [f"step-{step:08d}"]
    assert len(stopped.lines()) == step
    assert done.returncode == 1, "what torchrun says of every end that is not a good one"

    order = sha256_of(stopped.folder / "main" / "order.json")
    stopped.train(until=step + 3)
    assert "processes was 2, is None; resuming, but the last bits will differ" in caplog.text
    alone.train(until=step + 3)
    assert sha256_of(stopped.folder / "main" / "order.json") == order == sha256_of(alone.folder / "main" / "order.json")
    np.testing.assert_allclose(stopped.columns("loss"), alone.columns("loss"), rtol=1e-3)


def wait_for_lines(run: SharedRun, count: int, torchrun: "subprocess.Popen[str]") -> None:
    log, deadline = run.folder / "main" / "train.jsonl", time.monotonic() + 120
    while not log.exists() or log.read_text().count("\n") < count:
        assert time.monotonic() < deadline, "no line within two minutes"
        assert torchrun.poll() is None, torchrun.communicate()
        time.sleep(0.05)


def test_another_count_of_processes_than_the_recipes_is_refused(runs: Callable[..., SharedRun]) -> None:
    two = runs("two", changes={"run": {"processes": 2}})
    with pytest.raises(RelmError, match=r"run.processes is 2, but one was started; .*`python -m relm --processes 2 pretrain"):
        open_device(two.recipe.run)
    with pytest.raises(ValueError, match=r"run.processes \(3\) must divide pretrain.main.global_batch_size \(16\)"):
        assert runs("three", changes={"run": {"processes": 3}}).recipe


@pytest.mark.full
@pytest.mark.parametrize("processes", [2, 4])
def test_every_objective_and_loss_equals_that_of_one_process(runs: Callable[..., SharedRun], processes: int) -> None:
    wide = {name: runs(name, *what) for name, what in WIDE.items()}
    done = finished(start_ranks(list(wide.values()), processes), timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, what in WIDE.items():
        alone = runs(f"{name}, alone", *what)
        alone.train()
        assert_as_one_process(wide[name], alone, ROUNDING.get(name, 3e-6))


# The count of processes, and the kill point of each rank.
KILLS = [
    (4, {"1": "data:2"}),
    (2, {"0": "gradient:2", "1": "gradient:2"}),
    (1, {"0": "checkpoint-written:1"}),
    (4, {"3": "gradient:3"}),
    (2, {"0": "checkpoint-renamed:1"}),
    (2, {"0": "model-written:1"}),
]


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("objective", ["causal", "masked", "seq2seq"])
def test_a_run_killed_and_resumed_with_other_counts_ends_as_one_process(runs: Callable[..., SharedRun], objective: str) -> None:
    alone, killed = (runs(name, objective, phase(steps=12)) for name in ("alone", "killed"))
    alone.train()
    for processes, kills in KILLS:
        own = {rank: {"RELM_KILL_AT": point} for rank, point in kills.items()}
        done = finished(start_ranks([dataclasses.replace(killed, own=own)], processes))
        assert done.returncode != 0, f"{kills} was not reached"
        assert not (killed.model_folder / "model.safetensors.json").exists()
    done = finished(start_ranks([killed], 4))
    assert done.returncode == 0, done.stdout + done.stderr
    assert_as_one_process(killed, alone)
    assert sha256_of(killed.folder / "main" / "order.json") == sha256_of(alone.folder / "main" / "order.json")
