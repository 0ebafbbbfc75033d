"""Logs that are lost or changed come back from the published folder if they are provably those of the newest checkpoint."""

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from relm.artifact import sha256_of, write_json
from relm.errors import RelmError
from relm.recipes.plan import Plan
from relm.recipes.run_folder import CHECKPOINTS, LOG, acceptance_of
from relm.training import lost_logs
from relm.training.checkpoint_state import read_state, write_state
from relm.training.checkpoints import IDENTITY, open_list, save_checkpoint
from relm.training.interruption import run_lock
from relm.training.run_log import RunLog


class FinishedRun:
    """The paths of a plan with one phase, which was trained and published."""

    fingerprint = "0123456789ab"
    phases = ("main",)

    def __init__(self, folder: Path, seconds: float = 7200.0) -> None:
        self.run_folder, self.results = folder / "work", folder / "results"
        main = self.run_folder / "main"
        state = {**dict.fromkeys(IDENTITY, "a"), "step": 10, "loss": 2.0, "seconds": seconds, "made_on": {"device": "cpu"}}
        with closing(RunLog(main / LOG, 0)) as log, closing(open_list(main / "checkpoints", 0)) as checkpoint_list:
            log.write({"step": 10, "loss": 2.0, "seconds": seconds})
            tensors = {"a": torch.ones(2)}, {"b": torch.ones(2)}
            save_checkpoint(main / "checkpoints", state, *tensors, 2, log=log.facts(), checkpoint_list=checkpoint_list)
        self.results.mkdir()
        for name in (LOG, CHECKPOINTS):
            (self.results / name).write_bytes((main / name).read_bytes())
        write_json(self.results / "recipe.json", {"fingerprint": self.fingerprint})

    def path(self, name: str) -> Path:
        return self.run_folder / "main" / name

    def bring_back(self, folder: Path | None = None) -> None:
        with lost_logs.replaced_logs(cast(Plan, self), "main", folder or self.run_folder / "main"):
            pass


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FinishedRun:
    made = FinishedRun(tmp_path)
    hashes: dict[str, Any] = {name: sha256_of(made.results / name) for name in (LOG, CHECKPOINTS)}
    monkeypatch.setattr(lost_logs, "recorded_sha256", lambda folder, name: hashes[name])
    return made


def test_a_run_in_another_folder_than_the_plans_leaves_that_alone(run: FinishedRun, tmp_path: Path) -> None:
    run.path(LOG).unlink()
    other = tmp_path / "elsewhere" / "main"
    shutil.copytree(run.path(LOG).parent, other)
    with run_lock(run.path("lock")):  # a trainer works there
        run.bring_back(other)
    assert (other / LOG).read_bytes() == (run.results / LOG).read_bytes()
    assert not run.path(LOG).exists()


@pytest.mark.parametrize("change", ["emptied", "edited", "deleted"])
@pytest.mark.parametrize("name", [LOG, CHECKPOINTS])
def test_the_published_one_replaces_it(name: str, change: str, run: FinishedRun) -> None:
    whole = run.path(name).read_bytes()
    if change == "deleted":
        run.path(name).unlink()
    else:
        run.path(name).write_bytes(b"" if change == "emptied" else whole.replace(b"10", b"11", 1))
    run.bring_back()
    assert run.path(name).read_bytes() == whole


def test_a_published_one_that_the_checkpoint_does_not_attest_stays_where_it_is(run: FinishedRun) -> None:
    run.path(LOG).write_bytes(b"")
    checkpoint = run.path("checkpoints/step-00000010")
    other = read_state(checkpoint)
    other["logs"][LOG]["sha256"] = "0" * 64
    write_state(checkpoint, other)
    run.bring_back()
    assert run.path(LOG).read_bytes() == b"", "the trainer refuses it"


def test_hours_of_training_are_repeated_only_if_somebody_says_so(run: FinishedRun) -> None:
    (run.results / "recipe.json").unlink()
    run.path(LOG).unlink()
    with pytest.raises(RelmError, match=r"train\.jsonl: no such file, .* or make an empty file \S+/train\.jsonl\.accepted"):
        run.bring_back()
    acceptance_of(run.path(LOG)).touch()
    run.bring_back()
    assert run.path("checkpoints").is_dir()
    assert not run.path(LOG).exists()
