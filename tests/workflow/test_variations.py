"""Names of varied runs, `--config set=...` in Snakemake and `--set` in relm."""

import os

import pytest
from snakemake_interface_executor_plugins.utils import TargetSpec, encode_target_jobs_cli_args

from relm.graph.variations import VARIED, pass_to_jobs, read_settings
from relm.recipes.project import Project
from small_project import CHECKOUT, FRAMES, Commands

BETAS = "pretrain.main.optimizer.betas"


def test_a_name_makes_the_variation_and_leaves_the_recipes_own_result_alone(project: Commands) -> None:
    (project.folder / "results" / "tiny").mkdir(parents=True)
    done = project.snakemake("results/tiny+pretrain.main.steps=30", "-n", "-p", FRAMES, "--config", "set=run.threads=2")
    assert done.returncode == 0, done.stdout
    assert "relm pretrain tiny+pretrain.main.steps=30 " in done.stdout
    assert " --set run.threads=2 " in done.stdout
    assert "--output results/tiny+pretrain.main.steps=30 " in done.stdout
    assert "--output results/tiny " not in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("results/tiny+steps=30", "steps: unknown key; did you mean pretrain.main.steps?"),
        ("results/tiny --config set=run.threads=1 set=run.threads=2", "set is given twice"),
        ("results/tiny --config seed=2", "--config seed: nothing reads this key; keys of the recipe are part of"),
        ("all -n --config set=seed=1", "request results/NAME+seed=1"),
        (
            f"results/tiny -n --config set={BETAS}=[0.8,0.9] shards_on_disk=1",
            f"{BETAS}=[0.8,0.9] changes the run, so it belongs in its name; request 'results/NAME+{BETAS}=[0.8,0.9]'",
        ),
        (
            "results/tiny+run.threads=2+seed=1 --config shards_on_disk=1",
            "results/tiny+run.threads=2+seed=1: run.threads=2 does not change the run; "
            "request results/tiny+seed=1 --config 'set=[run.threads=2]'",
        ),
        (
            "results/reference/tiny+seed=0x2+model.dropout=0.10",
            "results/tiny+seed=0x2+model.dropout=0.10: this run is published under another name; request results/tiny+seed=2",
        ),
        ("results/tiny@h100+seed=2", "settings come before the machine; request results/tiny+seed=2@h100"),
        ("results/tiny -n --configfile set.yaml", "seed=2 changes the run, so it belongs in its name"),
        ("results/tiny+title=a/b", "request results/tiny+title=a%2Fb"),
        ("results/tiny+seed=0 --touch", "request results/tiny"),
    ],
)
def test_a_fault_ends_in_one_message(project: Commands, words: str, message: str) -> None:
    (project.folder / "set.yaml").write_text("set: {seed: 2}")
    done = project.snakemake(*words.split(), *([] if "--touch" in words or " -n" in words else ["-n"]))
    assert done.returncode != 0
    assert message in done.stdout
    assert "Traceback" not in done.stdout
    assert not (project.folder / "work").exists()


@pytest.mark.parametrize("target", ["results/tiny", pytest.param("results/tiny+seed=3", marks=pytest.mark.full)])
def test_a_target_that_config_swallows_is_one_sentence(project: Commands, target: str) -> None:
    done = project.snakemake("-n", "--config", "set=seed=2", target)
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith("--config: ")
    assert line.endswith("put it first: snakemake TARGET -n --config set=run.threads=1")


@pytest.mark.full
def test_a_variation_finishes_apart_from_its_recipe_and_the_same_command_has_nothing_left_to_do(project: Commands) -> None:
    command = ("results/tiny+pretrain.main.steps=20", "--config", "set=run.log_interval=4")
    done = project.snakemake(*command)
    assert done.returncode == 0, done.stdout
    published = project.folder / "results" / "tiny+pretrain.main.steps=20"
    assert '"file": 40' in (published / "recipe.json").read_text()
    assert "sets pretrain.main.steps to 20; recipes/tiny.yaml has 40" in (published / "report.html").read_text()
    assert project.jobs(*command) == {}
    assert project.jobs("results/tiny")["pretrain"] == 1


def test_the_process_of_a_job_finds_the_data_of_a_variation_and_the_settings(
    project: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv(VARIED, "")
    name = "tiny+data.documents=5+seed=2"
    pass_to_jobs(["tiny", name])
    plan = Project().plan(name)
    key = plan.documents_job.key
    extract = TargetSpec("extract", {"dataset": "sample", "key": key, "shard": "sample.xml"})
    pretrain = TargetSpec("pretrain", {"recipe": name, "fingerprint": plan.fingerprint, "phase": "main"})
    job = ("--mode", "remote", "--force", "--nolock", "-n", "-p", FRAMES, "--config", "set=[run.threads=2, run.log_interval=4]")
    done = project.snakemake(
        "--target-jobs", *encode_target_jobs_cli_args([extract, pretrain]), *job, RELM_VARIED=os.environ[VARIED]
    )
    assert done.returncode == 0, done.stdout
    assert f"--train work/documents/sample-{key}/" in done.stdout
    assert " --set run.log_interval=4 --set run.threads=2 " in done.stdout
    lost = project.snakemake("--target-jobs", *encode_target_jobs_cli_args([extract]), *job)
    assert f"no recipe makes documents with key {key}" in lost.stdout


@pytest.mark.full
def test_a_job_on_another_machine_finds_the_data_of_a_variation(finished_copy: Commands) -> None:
    targets = ("results/tiny+data.documents=5", "results/tiny+data.documents=7")
    options = ("--until", "extract", "--executor", "elsewhere", "--jobs", "1", "--config", "set=run.threads=2")
    done = finished_copy.snakemake(*targets, *options, PYTHONPATH=str(CHECKOUT / "tests"))
    assert done.returncode == 0, done.stdout
    made = {path.parent.name for path in (finished_copy.folder / "work" / "documents").glob("sample-*/sample.xml.train.jsonl")}
    assert len(made) == 3


def test_settings_are_read_from_every_form_of_snakemakes_configuration() -> None:
    assert read_settings(None) == []
    assert read_settings("title=One, two") == ["title=One, two"]
    assert read_settings(["seed=2", "run.threads=1"]) == ["seed=2", "run.threads=1"]
    assert read_settings({"seed": 2, BETAS: [0.9, 0.99]}) == ["seed=2", f"{BETAS}=[0.9,0.99]"]


def test_commands_take_settings(project: Commands, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from relm.cli import main

    monkeypatch.chdir(project.folder)
    assert main(["status", "tiny", "--set", "seed=2", "--set", "pretrain.main.optimizer.betas=[0.9, 0.99]"]) == 0
    shown = capsys.readouterr().out
    assert "next: snakemake 'results/tiny+pretrain.main.optimizer.betas=[0.9,0.99]+seed=2'" in shown
    assert main(["status", "tiny", "--set", "sed=2"]) == 1
    assert "sed: unknown key; did you mean seed?" in capsys.readouterr().err
