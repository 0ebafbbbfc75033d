"""`relm STEP NAME` runs one of a recipe's jobs or prints its command, with the words that rules run."""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from relm.artifact import read_json
from relm.cli import main
from relm.containers.shell_line import docker_line, plain_line
from relm.errors import RelmError
from relm.plan.run_jobs import list_jobs
from relm.recipes.project import Project
from relm.steps.by_name import choose_job, describe_command, find_command, read_words
from small_project import CHECKOUT, Commands

SAMPLES = ["relm", "samples", "--model", "work/m.safetensors", "--tokenizer", "work/t.json", "--output", "work/v.json"]
CANARY = "touch canary"


@pytest.fixture
def in_project(project: Commands, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """The small project as the current folder, with its environment."""
    monkeypatch.chdir(project.folder)
    monkeypatch.delenv("RELM_WORK", raising=False)
    return project


def find(step: str, *words: str) -> list[str]:
    """Return the command of `relm STEP WORDS`."""
    named = read_words(step, words)
    assert named is not None
    return find_command(Project(), step, named)


def without_rules_options(argv: list[str]) -> list[str]:
    """Return the words of a rule's command without those that a person leaves to the step."""
    return [word for before, word in zip(["", *argv], argv, strict=False) if not {"--workers", "--log"} & {before, word}]


def test_a_run_records_the_commands_of_its_plan(finished_copy: Commands, in_project: Commands) -> None:
    records = read_json(finished_copy.folder / "results/tiny/provenance.json")["steps"]
    planned = [["relm", *job.command()] for job in list_jobs(Project().plan("tiny"))]
    assert planned[-1][1] == "report", "which cannot record itself"
    assert sorted(planned[:-1]) == sorted(without_rules_options(record["argv"]) for record in records)


def test_a_step_gets_every_path_from_the_rule() -> None:
    for name in Project(CHECKOUT).names():
        for job in list_jobs(Project(CHECKOUT).plan(name)):
            paths = [*job.outputs.values(), *(path for files in job.inputs.values() for path in files)]
            words = job.command({path: f".snakemake/storage/{path}" for path in paths})
            kept = [words[words.index("--optimizer-from") + 1]] if "--optimizer-from" in words else []
            assert [word for word in words if word.startswith("work/")] == kept, "a checkpoint is no rule's output"


def test_a_printed_line_makes_the_same_bytes_again(finished_copy: Commands) -> None:
    record = read_json(finished_copy.folder / "results/tiny/provenance.json")["steps"]
    told = next(step for step in record if step["outputs"][0]["path"].endswith("/held_out.json"))
    output = finished_copy.folder / told["outputs"][0]["path"]
    before = output.read_bytes()
    output.unlink()
    line = finished_copy.relm("held-out", "tiny", "--print", "plain").stdout
    done = subprocess.run(["sh", "-c", line], cwd=finished_copy.folder, env=finished_copy.environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert output.read_bytes() == before


def test_published_lines_know_nothing_of_the_machine(finished_copy: Commands, finished_project: Commands) -> None:
    told = read_json(finished_copy.folder / "results/tiny/provenance.json")
    for record in told["steps"]:
        assert record["docker"]["line"].startswith("docker run --rm --init --read-only")
        assert record["docker"]["image"] == "relm/cpu:0.1.0"
    text = json.dumps(told["steps"])
    assert str(finished_project.folder) not in text
    assert os.path.expanduser("~") + "/" not in text


def test_a_command_has_the_files_of_the_plan_and_the_words_of_the_user(in_project: Commands) -> None:
    plan = Project().plan("tiny")
    command = find("pretrain", "results/tiny", "--seconds", "5")
    assert command[:5] == ["relm", "pretrain", "tiny", "--fingerprint", plan.fingerprint]
    assert command[command.index("--manifest") + 1] == str(plan.manifest("main"))
    assert command[-2:] == ["--seconds", "5"]
    varied = find("pretrain", "tiny", "--set", "seed=2", "--set", "run.threads=2")
    assert varied[2] == "tiny+seed=2"
    assert varied[varied.index("--set") + 1] == "run.threads=2"


def test_the_paths_are_in_the_work_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setenv("RELM_WORK", str(tmp_path))
    command = find("pretrain", "quickstart")
    assert command[command.index("--output") + 1].startswith(f"{tmp_path}/runs/quickstart/")
    assert not any(word.startswith("work/") for word in command)


def test_of_several_jobs_one_is_named(in_project: Commands) -> None:
    varied = ("tiny", "--set", "seeds=2")
    jobs = list(list_jobs(Project().plan("tiny+seeds=2")))
    figures = [str(job.makes) for job in jobs if job.step == "held-out"]
    said = rf"step held-out of \S+ has 2 jobs; choose one.*\n  1  {re.escape(figures[0])} \(seed 0\)\n  2  \S+ \(seed 1\)$"
    with pytest.raises(RelmError, match=said):
        find("held-out", *varied)
    assert find("held-out", "tiny", "2", *varied[1:])[-1] == figures[1]
    assert find("held-out", "tiny", figures[1].split("/")[3], *varied[1:])[-1] == figures[1]
    for wrong, found in (("99", "none"), ("0", "none"), ("c.xml", "none"), (".json", "2")):
        with pytest.raises(RelmError, match=rf"^'{re.escape(wrong)}' names {found} of the jobs of step held-out of tiny"):
            choose_job("tiny", jobs, "held-out", wrong)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["lambada", "tiny"], "relm lambada: recipe tiny has no evaluation lambada; add it to `evaluate`"),
        (["import-tokenizer", "tiny"], "relm import-tokenizer: tiny has no step 'import-tokenizer'; did you mean"),
        (["verify", "tyni", "--print"], "did you mean results/tiny?"),
        (
            ["generate", "tiny", "--prompt", "x"],
            "results/tiny/model.safetensors: no such file; `snakemake results/tiny`",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_a_recipe_lacks_is_named(
    in_project: Commands, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert says in capsys.readouterr().err


def test_generate_takes_the_published_model_of_a_recipe(in_project: Commands, capsys: pytest.CaptureFixture[str]) -> None:
    Path("results/tiny").mkdir(parents=True)
    Path("results/tiny/model.safetensors").touch()
    assert find("generate", "tiny", "--length", "5") == ["relm", "generate", "--model", "results/tiny", "--length", "5"]
    assert main(["generate"]) == 2
    assert "`relm generate NAME` takes the model in results/NAME" in capsys.readouterr().err


def test_both_lines_are_printed_or_one(in_project: Commands, capsys: pytest.CaptureFixture[str]) -> None:
    told = {}
    for printed in ([], ["plain"], ["docker"]):
        assert main(["verify", "tiny", "--print", *printed]) == 0
        told["".join(printed)] = capsys.readouterr().out
    assert told["plain"] == f"{shlex.join(find('verify', 'tiny'))}\n"
    assert told["docker"].startswith("docker run ")
    lines = told[""].splitlines()
    assert lines[:3] == ["# in the checkout:", told["plain"].rstrip(), ""]
    assert lines[4] == told["docker"].rstrip()
    assert all(line.startswith(("#", "relm ", "docker ")) or not line for line in lines), "a shell may be given all of it"


def test_without_an_image_the_docker_line_by_itself_is_an_error_and_the_plain_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("containers").mkdir()
    Path("containers/lock.yaml").write_text("images: {}\nbases: {}\n")
    assert describe_command(Project(), SAMPLES, "both").endswith("no image for cpu; expected one of none")
    with pytest.raises(RelmError, match="this step has no image"):
        describe_command(Project(), SAMPLES, "docker")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pretrain", "tiny", "--nosuch", "--print"], "unknown argument '--nosuch'"),
        (["pretrain", "tiny", "main", "extra", "--print", "plain"], "unknown argument 'extra'"),
        (["verify", "tiny", "--print=fish"], "argument --print: invalid choice: 'fish'"),
        (["held-out", "tiny", "--set"], "argument --set: expected one argument"),
        (["generate", "tiny", "7"], "7: unknown argument; generate takes a NAME and options"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_words_that_a_step_does_not_take_are_named(
    in_project: Commands, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("results/tiny").mkdir(parents=True)
    Path("results/tiny/model.safetensors").touch()
    with contextlib.suppress(SystemExit):
        assert main(words) == 1
    assert says in (told := capsys.readouterr()).err
    assert told.out == ""


def test_options_may_come_before_the_name(in_project: Commands, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--print", "plain", "--set", "seed=2", "tiny"]) == 0
    assert "relm verify tiny+seed=2 " in capsys.readouterr().out


def test_a_nul_is_never_taken_for_a_variable() -> None:
    with pytest.raises(RelmError, match="contains a NUL"):
        plain_line(["relm", "samples", "--output", "\0HOME\0/x"])


def test_the_pages_of_a_run_never_start_another_program_in_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("containers").mkdir()
    shutil.copyfile(CHECKOUT / "containers/lock.yaml", "containers/lock.yaml")
    assert docker_line(["sh", "-c", CANARY, "relm", "samples"], Project()).line is None
    assert docker_line(SAMPLES, Project(), ran_in="--volume=/:/host").line is None


@pytest.mark.full
def test_a_run_made_step_by_step_by_hand_is_the_one_that_snakemake_makes(project: Commands, finished_copy: Commands) -> None:
    steps = ["download", "extract", "train-tokenizer", "pregenerate", "manifest", "pretrain", "held-out", "samples", "verify"]
    for step in [*steps, "report"]:
        done = project.relm(step, "tiny")
        assert done.returncode == 0, done.stderr
    planned = project.snakemake("results/tiny", "-n").stdout
    assert re.findall(r"^  ([a-z]+)", planned, re.MULTILINE) == ["publish"], planned
    weights = "work/runs/tiny/*/main/model/model.safetensors"
    (made,), (published,) = project.folder.glob(weights), finished_copy.folder.glob(weights)
    assert made.read_bytes() == published.read_bytes()
