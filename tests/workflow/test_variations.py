"""`--config set=...` in Snakemake and `--set` in relm: variations as targets and commands."""

import pytest

from relm.graph.variations import read_settings
from small_project import FRAMES, Commands


def test_set_makes_the_variation_and_leaves_the_recipes_own_result_alone(project: Commands) -> None:
    (project.folder / "results" / "tiny").mkdir(parents=True)
    done = project.snakemake("results/tiny", "-n", "-p", FRAMES, "--config", "set=pretrain.main.steps=30,run.threads=2")
    assert done.returncode == 0, done.stdout
    assert "relm: results/tiny with these settings is results/tiny+pretrain.main.steps=30" in done.stdout
    assert "relm pretrain tiny+pretrain.main.steps=30 " in done.stdout
    assert " --set run.threads=2 " in done.stdout
    assert "--output results/tiny+pretrain.main.steps=30 " in done.stdout
    assert "--output results/tiny " not in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(
            ["results/tiny", "--config", "set=steps=30,sed=1"],
            "steps: unknown key; did you mean pretrain.main.steps?",
            marks=pytest.mark.full,
        ),
        pytest.param(["results/tiny", "--config", "set=seed=1", "set=seed=2"], "set is given twice", marks=pytest.mark.full),
        (["results/tiny", "--config", "seed=2"], "--config seed: nothing reads this key; keys of the recipe stand in set="),
        pytest.param(["all", "--config", "set=seed=1"], "varies results/NAME, and all is another", marks=pytest.mark.full),
        pytest.param(["results/tiny+run.threads=1"], "results/tiny --config set=run.threads=1", marks=pytest.mark.full),
    ],
)
def test_a_fault_ends_in_one_message(project: Commands, words: list[str], message: str) -> None:
    done = project.snakemake(words[0], "-n", *words[1:])
    assert done.returncode != 0
    assert message in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize("target", ["results/tiny", pytest.param("results/tiny+seed=3", marks=pytest.mark.full)])
def test_a_target_that_config_swallows_is_one_sentence(project: Commands, target: str) -> None:
    done = project.snakemake("-n", "--config", "set=seed=2", target)
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith("--config: ")
    assert line.endswith("put it first: snakemake TARGET -n --config set=seed=2")


@pytest.mark.full
def test_a_variation_ends_beside_its_recipe_and_the_same_command_has_nothing_left_to_do(project: Commands) -> None:
    settings = ("--config", "set=pretrain.main.steps=20,run.log_interval=4")
    done = project.snakemake("results/tiny", *settings)
    assert done.returncode == 0, done.stdout
    published = project.folder / "results" / "tiny+pretrain.main.steps=20"
    assert '"file": 40' in (published / "recipe.json").read_text()
    assert "sets pretrain.main.steps to 20; recipes/tiny.yaml has 40" in (published / "report.html").read_text()
    assert project.jobs("results/tiny", *settings) == {}
    assert project.jobs("results/tiny")["pretrain"] == 1


def test_settings_are_read_from_every_form_of_snakemakes_configuration() -> None:
    assert read_settings(None) == []
    assert read_settings("seed=2,title=One, two") == ["seed=2", "title=One, two"]
    assert read_settings(["seed=2", "run.threads=1"]) == ["seed=2", "run.threads=1"]
    assert read_settings({"seed": 2, "pretrain.main.optimizer.betas": [0.9, 0.99]}) == [
        "seed=2",
        "pretrain.main.optimizer.betas=[0.9,0.99]",
    ]
    assert read_settings('title="a, b=c') == ['title="a, b=c"']  # Snakemake has removed the last quotation mark


def test_commands_take_settings(project: Commands, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from relm.cli import main

    monkeypatch.chdir(project.folder)
    assert main(["status", "tiny", "--set", "seed=2", "--set", "pretrain.main.optimizer.betas=[0.9, 0.99]"]) == 0
    shown = capsys.readouterr().out
    assert "next: snakemake 'results/tiny+pretrain.main.optimizer.betas=[0.9,0.99]+seed=2'" in shown
    assert main(["status", "tiny", "--set", "sed=2"]) == 1
    assert "sed: unknown key; did you mean seed?" in capsys.readouterr().err
