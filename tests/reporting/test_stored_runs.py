"""`relm runs` and `relm status` without a name: the runs of a work folder, read from their files."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from finished_runs import FinishedRun
from relm.artifact import write_json
from relm.cli import main, write_log
from relm.recipes.identity import work_folder
from relm.recipes.project import Project
from relm.recipes.resolved import differing_keys, record_run, resolve
from relm.reporting.run_record import RunRecord, find_runs
from relm.reporting.runs_table import describe_stored_runs
from relm.training.interruption import run_lock
from small_project import Commands


def record_recipe(run: FinishedRun) -> None:
    """Write what `relm pretrain` writes when it begins."""
    write_json(run.plan.run_folder / "resolved.json", record_run(run.plan))


def edit_recipe(name: str = "tiny", **phase: Any) -> None:
    """Change keys of the phase `main` of a recipe."""
    path = Path("recipes", f"{name}.yaml")
    content = yaml.safe_load(path.read_text())
    content["pretrain"]["main"] |= phase
    path.write_text(yaml.safe_dump(content))


def listed() -> list[RunRecord]:
    return find_runs(work_folder(), [Project()])


def running() -> str:
    """Return what `relm status` prints."""
    return describe_stored_runs(Project(), None, only_running=True)


def test_a_finished_run_has_its_figures_steps_size_and_state(copied_run: FinishedRun) -> None:
    run = copied_run
    (found,) = listed()
    assert (found.name, found.fingerprint) == ("tiny", run.plan.fingerprint)
    assert (found.state, found.is_old, found.step, found.steps) == ("finished", False, 50, 50)
    assert found.figures["held_out"]["nats_per_token"] == 4.25
    assert found.disk.size >= run.model.stat().st_size
    write_json(Path("results/tiny/recipe.json"), {"name": "tiny", "fingerprint": run.plan.fingerprint})
    assert listed()[0].state == "published"


def test_a_run_of_an_edited_recipe_is_old_and_shows_the_keys_with_both_values(copied_run: FinishedRun) -> None:
    record_recipe(copied_run)
    edit_recipe(steps=60, optimizer={"learning_rate": 0.002})
    (found,) = listed()
    assert found.is_old
    assert found.steps == 50, "the steps are those of the run, not of the recipe as it is now"
    assert [(each.key, each.first, each.second) for each in found.differences or ()] == [
        ("pretrain.main.steps", 50, 60),
        ("pretrain.main.optimizer.learning_rate", 0.001, 0.002),
    ]
    text = describe_stored_runs(Project(), None)
    assert "    pretrain.main.steps: 50 here, 60 now\n" in text
    assert re.search(r"^  [0-9a-f]{12}  old  finished  step 50 of 50 ", text, re.M)
    assert text.endswith("1 of them are old: `relm gc` shows what can be removed")


def test_a_key_of_only_the_machine_does_not_change_the_meaning(copied_run: FinishedRun) -> None:
    now = resolve(copied_run.plan)
    changed = json.loads(json.dumps(now))
    changed["recipe"]["run"]["threads"] = 7
    changed["recipe"]["title"] = "Another title"
    changed["dataset"]["files"]["a.xml"]["sha256"] = "0" * 64
    found = [(each.key, each.is_meaning) for each in differing_keys(now, changed)]
    assert found == [("dataset.files.a.xml.sha256", True), ("title", False), ("run.threads", False)]


def test_a_key_that_an_older_version_did_not_know_is_no_difference(copied_run: FinishedRun) -> None:
    now = resolve(copied_run.plan)
    older = json.loads(json.dumps(now))
    del older["recipe"]["seed"], older["recipe"]["pretrain"]["main"]["precision"]
    assert differing_keys(older, now) == []


def test_runs_whose_recipe_is_gone_or_faulty_are_listed_still(copied_run: FinishedRun) -> None:
    record_recipe(copied_run)
    path = Path("recipes/tiny.yaml")
    path.write_text(path.read_text().replace("steps: 50", "steps: many"))
    assert [(bool(run.requested.fault), run.plan, run.steps) for run in listed()] == [(True, None, 50)]
    assert " old " not in describe_stored_runs(Project(), None), "nobody knows what a recipe with faults asks for"
    path.unlink()
    assert [(run.requested.exists, run.differences) for run in listed()] == [(False, None)]
    assert "tiny    its recipe is gone\n" in describe_stored_runs(Project(), None)


def test_an_unknown_name_suggests_the_nearest(copied_run: FinishedRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "tyni"]) == 1
    assert capsys.readouterr().err == "relm runs: unknown run or recipe 'tyni'; did you mean tiny?\n"


@pytest.mark.parametrize(
    ("message", "state"),
    [
        ("relm pretrain: step 12: the loss is nan, expected a finite number", "failed"),
        ("relm pretrain: stopped by SIGTERM after step 12 of 50, saved in x; the same command resumes there", "stopped"),
        ("pretrain: trained 50 steps", "stopped"),
    ],
)
def test_an_unfinished_run_failed_or_was_stopped_as_its_log_says(message: str, state: str, copied_run: FinishedRun) -> None:
    run = copied_run
    run.model.with_name("model.safetensors.json").unlink()
    write_log(Path("work/logs/runs/tiny", run.plan.fingerprint, "main.log"), message)
    assert listed()[0].state == state
    assert ("failed: step 12: the loss is nan" in describe_stored_runs(Project(), None)) == (state == "failed")


def test_a_list_is_plain_sorted_and_a_hundred_columns_wide(copied_run: FinishedRun) -> None:
    run = copied_run
    record_recipe(run)
    for name in ("zebra", "smoke/tiny", "a" * 60):
        subprocess.run(["cp", "-a", str(run.plan.run_folder.parent), "work/other"], check=True)
        Path("work/runs", name).parent.mkdir(exist_ok=True)
        Path("work/other").rename(Path("work/runs", name))
    edit_recipe(steps=60, sequence_length=32)
    text = describe_stored_runs(Project(), None)
    assert max(map(len, text.splitlines())) <= 100
    assert [found.name for found in listed()] == ["a" * 60, "tiny", "zebra", "smoke/tiny"]


def test_what_trains_now_is_shown_with_step_loss_rate_and_time_left(copied_run: FinishedRun) -> None:
    folder = copied_run.plan.run_folder / "main"
    assert running().startswith("nothing is running here in work")
    lines = [{"step": step, "loss": 4.0, "tokens_per_second": 1234.5, "seconds": 2.0 * step} for step in (10, 20)]
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"step": 3')
    with run_lock(folder / "lock"):
        assert listed()[0].state == "running"
        assert "\n    main: step 20 of 50, 40 %, loss 4.000, 1,234 tokens/s, about 1 min 0 s left\n" in running()


def test_another_step_that_runs_is_shown_with_its_process(copied_run: FinishedRun) -> None:
    waiting = [sys.executable, "-c", "input()", "relm", "evaluate", "--output", str(copied_run.evaluations["held_out"])]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE) as process:
        try:
            assert listed()[0].state == "running"
            assert f"\n    evaluate: process {process.pid}\n" in running()
        finally:
            process.kill()


def test_training_records_the_recipe_that_it_was_given(finished_copy: Commands) -> None:
    recipe = finished_copy.folder / "recipes" / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("steps: 40", "steps: 30"))
    said = finished_copy.relm("runs").stdout
    assert " published " in said
    assert "pretrain.main.steps: 40 here, 30 now" in said
