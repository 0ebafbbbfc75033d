"""Variations of a recipe: settings in a run's name, their faults, and what they leave unchanged."""

from pathlib import Path

import pytest

from relm.artifact import write_sidecar
from relm.cluster.takeover import take_over
from relm.errors import RelmError
from relm.recipes.jobs import DocumentsJob
from relm.recipes.project import Project
from relm.recipes.run_name import RunName
from small_project import Commands


@pytest.fixture
def tiny(project: Commands, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The tests' small project, from its own folder."""
    monkeypatch.chdir(project.folder)
    return Project()


def test_a_setting_is_the_same_run_as_an_edit_of_the_file(tiny: Project, project: Commands) -> None:
    varied = tiny.plan("tiny+pretrain.main.steps=30")
    assert varied.fingerprint != tiny.plan("tiny").fingerprint
    assert varied.recipe.pretrain["main"].steps == 30
    file = project.folder / "recipes" / "tiny.yaml"
    file.write_text(file.read_text().replace("steps: 40", "steps: 30"))
    assert Project().plan("tiny").fingerprint == varied.fingerprint


def test_a_variation_has_its_own_folders_and_says_what_differs(tiny: Project) -> None:
    plan = tiny.plan("tiny+seed=2")
    assert plan.results == Path("results/tiny+seed=2")
    assert plan.run_folder.parent == Path("work/runs/tiny+seed=2")
    assert plan.recipe.deviations == ["This variation sets seed to 2; recipes/tiny.yaml has 0."]


def test_one_variation_has_one_name_whatever_the_order_and_form_of_its_settings(tiny: Project) -> None:
    names = {
        tiny.plan(f"tiny+{settings}").name
        for settings in (
            "seed=2+pretrain.main.optimizer.learning_rate=2e-3",
            "pretrain.main.optimizer.learning_rate=0.002+seed=2",
            "pretrain.main.optimizer={learning_rate: 2.0e-3}+seed=2+model.layers=1",
        )
    }
    assert names == {
        "tiny+pretrain.main.optimizer.learning_rate=0.002+seed=2",
        "tiny+pretrain.main.optimizer=%7B%22learning_rate%22:0.002%7D+seed=2".replace(":", "%3A"),
    }


def test_a_setting_that_repeats_the_file_is_the_run_itself(tiny: Project) -> None:
    assert tiny.plan("tiny+seed=0").name == "tiny"
    assert tiny.plan("tiny+seed=0").results == Path("results/tiny")


def test_settings_of_the_execution_apply_to_the_run_itself(tiny: Project) -> None:
    plan = tiny.plan("tiny+run.threads=2+seed=2")
    assert plan.recipe.run.threads == 2
    assert (plan.fingerprint, plan.run_folder) == (tiny.plan("tiny+seed=2").fingerprint, tiny.plan("tiny+seed=2").run_folder)
    assert plan.results == Path("results/tiny+seed=2")
    assert [change.key for change in plan.changes] == ["run.threads", "seed"]


def test_lists_and_texts_survive_in_a_name(tiny: Project) -> None:
    plan = tiny.plan(str(RunName("tiny", False, None, ("title=a/b @ +50 % 'c'", "pretrain.main.optimizer.betas=[0.8, 0.9]"))))
    assert plan.recipe.title == "a/b @ +50 % 'c'"
    assert plan.recipe.pretrain["main"].optimizer.betas == (0.8, 0.9)
    assert "/" not in plan.name
    assert tiny.plan(plan.name).fingerprint == plan.fingerprint
    assert tiny.plan(plan.name).name == plan.name


def test_all_faults_are_reported_at_once_each_with_the_nearest_key(tiny: Project) -> None:
    with pytest.raises(RelmError) as caught:
        tiny.plan("tiny+steps=30+pretrain.main.optimiser=1+seed=x+layers+model.layers=+run.machine=h100+seed=3+model.heads=[1")
    assert str(caught.value).splitlines()[1:] == [
        "  layers: expected KEY=VALUE, such as pretrain.main.steps=60",
        "  model.layers: no value; give one, null for none",
        "  run.machine: cannot be set; name the machine after an @, as in results/NAME@MACHINE",
        "  seed: is set twice",
        "  model.heads: not valid YAML: did not find expected ',' or ']'; check indentation, colons and quotes",
        "  seed: expected a number, without quotes; found 'x'",
        "  pretrain.main.optimiser: unknown key; did you mean pretrain.main.optimizer?",
        "  steps: unknown key; did you mean pretrain.main.steps?",
    ]


def test_a_value_that_breaks_another_key_is_refused_as_in_a_file(tiny: Project) -> None:
    with pytest.raises(RelmError, match=r"schedule.warmup_steps \(5\) must be below steps \(4\)"):
        tiny.plan("tiny+pretrain.main.steps=4")


def test_a_setting_without_effect_is_refused(tiny: Project) -> None:
    with pytest.raises(RelmError, match=r"smoke/tiny.*a smoke twin overrides pretrain.main.steps \(20\)"):
        tiny.plan("smoke/tiny+pretrain.main.steps=30")
    assert tiny.plan("smoke/tiny+seed=2").recipe.seed == 2


def test_an_entry_of_a_list_can_be_set(tiny: Project) -> None:
    assert tiny.plan("tiny+evaluate.1=random_windows").recipe.evaluate == ["held_out", "random_windows"]
    with pytest.raises(RelmError, match=r"evaluate\.2: the list has 2 entries, counted from 0, and no entry 2"):
        tiny.plan("tiny+evaluate.2=samples")


def test_a_name_too_long_for_a_folder_is_refused_with_the_way_out(tiny: Project) -> None:
    with pytest.raises(RelmError, match="relm new NAME --from tiny"):
        tiny.plan(f"tiny+title={'long ' * 60}")


def test_the_jobs_of_a_variation_are_found_by_a_process_that_plans_none(tiny: Project) -> None:
    job = tiny.plan("tiny+data.documents=5").documents_job
    another = Project()
    with pytest.raises(RelmError, match="no recipe makes"):
        another.find_job(DocumentsJob, job.key, "sample")
    another = Project()
    another.varied = ("tiny+data.documents=5",)
    assert another.find_job(DocumentsJob, job.key, "sample").document == job.document


def test_a_variation_of_the_evaluations_takes_the_trained_model_over(tiny: Project, project: Commands) -> None:
    source, target = tiny.plan("tiny"), tiny.plan("tiny+evaluate=[held_out]")
    assert source.fingerprint == target.fingerprint
    weights = source.model_folder("main") / "model.safetensors"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"weights")
    write_sidecar(weights)
    assert "phase main is finished" in take_over(target, source)
    assert (target.model_folder("main") / "model.safetensors").read_bytes() == b"weights"
