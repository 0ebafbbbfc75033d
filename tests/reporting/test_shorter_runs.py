"""A notice before training: a finished run with fewer steps is not extended, and what goes on from it."""

from pathlib import Path
from typing import Any

import pytest

from relm.artifact import seal, write_json
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.recipes.resolved import record_run
from relm.recipes.run_folder import RESOLVED
from relm.reporting.shorter_runs import describe_shorter_run
from small_project import make_project

NOTICE = "tiny{}: trains from step 0, because a finished run is not extended: {} is the same run with 40 of {} steps."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("longer")).folder


@pytest.fixture
def project(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RELM_WORK", str(tmp_path))
    return folder


def finish(name: str = "tiny", **changed: Any) -> Plan:
    """Write what a finished run leaves, and return its plan; `changed` keys replace those of its record."""
    plan = Project().plan(name)
    write_json(plan.run_folder / RESOLVED, seal({**record_run(plan), **changed}))
    for part in ("model.safetensors", "model.safetensors.json"):
        (plan.model_folder("main") / part).parent.mkdir(parents=True, exist_ok=True)
        (plan.model_folder("main") / part).write_text("{}")
    return plan


def notice(settings: str) -> str | None:
    return describe_shorter_run(Project().plan(f"tiny{settings}"))


def test_more_steps_name_the_finished_run_and_the_way_to_go_on(project: Path) -> None:
    plan = finish()
    found = notice("+pretrain.main.steps=50")
    assert found is not None
    assert found.startswith(NOTICE.format("+pretrain.main.steps=50", plan.run_folder, 50))
    assert f"describe {plan.model_folder('main')} in recipes/models/, and name it by init_from" in found


def test_of_several_finished_runs_the_longest_is_named(project: Path) -> None:
    finish("tiny+pretrain.main.steps=20")
    longest = finish("tiny")
    finish("tiny+pretrain.main.steps=30")
    assert str(longest.run_folder) in str(notice("+pretrain.main.steps=50"))


def test_the_end_of_the_decay_may_move_with_the_steps(project: Path) -> None:
    finish("tiny+pretrain.main.schedule.decay_end=40")
    assert notice("+pretrain.main.steps=50+pretrain.main.schedule.decay_end=50") is not None


@pytest.mark.parametrize("settings", [
    "", "+pretrain.main.steps=30", "+seed=1", "+seed=1+pretrain.main.steps=50",
    "+pretrain.main.steps=50+pretrain.main.optimizer.learning_rate=0.01", "+pretrain.main.steps=50+data.documents=3",
])  # fmt: skip
def test_another_run_is_not_told_of_it(project: Path, settings: str) -> None:
    finish()
    assert notice(settings) is None


def test_neither_is_a_run_that_has_begun_nor_one_after_an_unfinished_run(project: Path) -> None:
    shorter = finish()
    longer = Project().plan("tiny+pretrain.main.steps=50")
    (longer.run_folder / "main/checkpoints/step-00000010").mkdir(parents=True)
    assert describe_shorter_run(longer) is None
    (shorter.model_folder("main") / "model.safetensors.json").unlink()
    assert notice("+pretrain.main.steps=60") is None


@pytest.mark.parametrize("recipe", [
    {}, {"pretrain": []}, {"pretrain": {"main": None}}, {"pretrain": {"main": {"steps": "40", "schedule": {}}}},
    {"pretrain": {"main": {"steps": True, "schedule": {"decay_end": [1]}}}}, {"pretrain": {"other": {"steps": 40}}},
], ids=str)  # fmt: skip
def test_a_damaged_record_is_no_run(project: Path, recipe: Any) -> None:
    plan = finish(recipe=recipe)
    assert notice("+pretrain.main.steps=50") is None
    (plan.run_folder / RESOLVED).write_text("[" * 1000)
    assert notice("+pretrain.main.steps=50") is None
