"""The command line as a user meets it: help in groups, mistyped words, `relm STEP NAME`, the table of runs."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from relm.cli import main
from relm.steps import list_steps
from relm.steps.contract import GROUPS
from relm.steps.parser import Parser


def test_the_help_has_each_step_in_one_line_under_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    steps = list_steps()
    shown = Parser(steps).format_help()
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
        (["paper"], "relm paper: the following arguments are required: KEY\n"),
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
