"""The command line as a user meets it: help in groups, mistyped words, `relm STEP NAME`, the table of runs, completion."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from relm.cli import main
from relm.errors import RelmError
from relm.recipes.project import Project
from relm.steps import list_steps
from relm.steps.completion import write_completion
from relm.steps.contract import GROUPS
from relm.steps.filled_in import fill_in, fill_in_result
from relm.steps.parser import parser
from small_project import CHECKOUT, Commands


def test_the_help_has_each_step_in_one_line_under_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    steps = list_steps()
    shown = parser(steps).format_help()
    assert max(map(len, shown.splitlines())) <= 80
    assert re.findall(r"^  ([a-z-]+)  ", shown, re.MULTILINE) == [
        name for group in GROUPS for name, step in steps.items() if step.group == group
    ]
    assert len(re.findall(r"^  [a-z]", shown, re.MULTILINE)) == len(steps), "each has a group that is shown"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pretrian"], "relm: there is no step 'pretrian'; did you mean `relm pretrain`?"),
        (["zzz"], "relm: there is no step 'zzz'; `relm --help` lists the steps."),
        (["status", "tiny", "--lgo=x"], "unknown argument '--lgo=x'; did you mean --log?"),
        (["pretrain"], "the following arguments are required: NAME"),
        (["diff", "tiny"], "relm diff: the following arguments are required: B\n"),
    ],
    ids=["step", "far", "option", "missing", "of no graph"],
)
def test_a_mistyped_word_is_answered_with_the_nearest(
    words: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(words)
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["list", "runs", "status"])
def test_a_list_outside_a_checkout_says_so(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELM_WORK", raising=False)
    assert main([command]) == 1
    assert (
        capsys.readouterr().err
        == f"relm {command}: {tmp_path} has no folder recipes/; give the command in a checkout of relm\n"
    )


def test_a_step_with_a_recipes_name_is_filled_in(project: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    plan = Project().plan("tiny")
    for name, value in project.environment.items():
        monkeypatch.setenv(name, value)
    command = fill_in(Project(), "pretrain", ["tiny", "--seconds", "5"])
    assert command[:3] == ["relm", "pretrain", "tiny"]
    assert command[command.index("--fingerprint") + 1] == plan.fingerprint
    assert command[command.index("--manifest") + 1] == str(plan.manifest("main"))
    assert command[-2:] == ["--seconds", "5"]


def test_of_several_jobs_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph's answer stands in, since the test before this one asks the graph."""
    from relm.steps import filled_in
    from relm.steps.step_commands import StepCommand

    outputs = {kind: f"eval/{kind}.json" for kind in ("held_out", "samples")}
    jobs = [
        StepCommand(["relm", "evaluate", "--job", f'{{"evaluation":"{kind}"}}', "--output", output], output)
        for kind, output in outputs.items()
    ]
    monkeypatch.setattr(filled_in, "planned", lambda project, name: jobs)
    with pytest.raises(RelmError, match=r"step evaluate of tiny has 2 jobs; say which"):
        fill_in(Project(), "evaluate", ["tiny"])
    assert fill_in(Project(), "evaluate", ["tiny", "samples"]) == list(jobs[1].argv)
    assert fill_in(Project(), "held-out", ["results/tiny"]) == list(jobs[0].argv)
    with pytest.raises(RelmError, match=r"recipe tiny has no evaluation lambada; add it to `evaluate`"):
        fill_in(Project(), "lambada", ["tiny"])


def test_generate_takes_the_published_model_of_a_recipe(
    project: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.folder)
    assert main(["generate", "tiny", "--prompt", "x"]) == 1
    assert "results/tiny/model.safetensors: no such file; `snakemake results/tiny` trains and" in capsys.readouterr().err
    Path("results/tiny").mkdir(parents=True)
    Path("results/tiny/model.safetensors").touch()
    assert fill_in_result(Project(), "generate", ["tiny", "--length", "5"]) == [
        "relm", "generate", "--model", "results/tiny", "--length", "5",
    ]  # fmt: skip
    with pytest.raises(RelmError, match=r"there is no recipe .tyni."):
        fill_in_result(Project(), "generate", ["tyni"])
    capsys.readouterr()
    assert main(["generate"]) == 2
    assert "`relm generate NAME` takes the model in results/NAME" in capsys.readouterr().err


def test_the_filled_in_paths_are_in_the_work_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(CHECKOUT)
    monkeypatch.setenv("RELM_WORK", str(tmp_path))
    command = fill_in(Project(), "pretrain", ["quickstart"])
    assert command[command.index("--output") + 1].startswith(f"{tmp_path}/runs/quickstart/")
    assert not any(word.startswith("work/") for word in command)


def test_outside_a_checkout_the_list_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["list"]) == 1
    assert capsys.readouterr().err == f"relm list: {tmp_path} has no folder recipes/; give the command in a checkout of relm\n"


@pytest.mark.parametrize(
    ("typed", "found"),
    [(["pretr"], {"pretrain"}), (["pretrain", "--ph"], {"--phase"}), (["status", "shakespeare_char_"], {"gpu"})],
    ids=["step", "option", "recipe"],
)
def test_bash_completes_steps_options_and_recipes(typed: Sequence[str], found: set[str]) -> None:
    script = write_completion("bash", list_steps())
    words = f'COMP_WORDS=(relm {" ".join(typed)}); COMP_CWORD={len(typed)}; _relm; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{words}"], cwd=CHECKOUT, text=True, capture_output=True, check=True)
    assert {word.removeprefix("shakespeare_char_") for word in done.stdout.split()} == found
