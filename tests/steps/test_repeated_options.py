"""An option that takes several values is rejected when it is given twice; names and counts are checked."""

import argparse
import os
from pathlib import Path

import pytest

from relm.errors import RelmError
from relm.steps import list_steps
from relm.steps.contract import Job, unite_values
from relm.steps.data import NamedTest
from relm.steps.machines import parse_bases
from relm.steps.parser import Parser

PARSER = Parser(list_steps())
SEVERAL = [
    pytest.param(action, id=f"{name} {action.option_strings[0]}")
    for name, command in PARSER.parsers.items()
    for action in command._actions
    if action.option_strings and action.nargs in ("+", "*") and not isinstance(action, NamedTest)  # adds up by itself
]
HASHES = [f"{name}={name * 64}" for name in "ab"]


@pytest.mark.parametrize("action", SEVERAL)
def test_a_repeated_option_is_refused(action: argparse.Action, capsys: pytest.CaptureFixture[str]) -> None:
    option = action.option_strings[0]
    first, second = HASHES if option == "--sha256" else list(action.choices or "12")[:2]
    alone = argparse.ArgumentParser()
    alone._add_action(action)
    assert len(getattr(alone.parse_args([option, first, second]), action.dest)) == 2
    with pytest.raises(SystemExit):
        alone.parse_args([option, first, option, second])
    assert "is given twice; give all its values once, in order" in capsys.readouterr().err


def test_there_are_such_options_in_many_commands() -> None:
    assert len(SEVERAL) > 40
    found = {each.values[0].option_strings[0] for each in SEVERAL}
    assert found >= {"--sha256", "--documents", "--logs", "--prompt", "--layers-per-ipu"}


COUNTS = [
    pytest.param(action, id=f"{name} {action.option_strings[0]}")
    for name, command in PARSER.parsers.items()
    for action in command._actions
    if {"--threads", "--workers"} & set(action.option_strings)
]


@pytest.mark.parametrize("action", COUNTS)
def test_more_threads_than_any_machine_has_are_refused(action: argparse.Action, capsys: pytest.CaptureFixture[str]) -> None:
    alone = argparse.ArgumentParser()
    alone._add_action(action)
    alone.parse_args([action.option_strings[0], "1024"])
    with pytest.raises(SystemExit):
        alone.parse_args([action.option_strings[0], "40000"])
    assert "40,000 are too many; give at most 1,024" in capsys.readouterr().err


def test_a_path_that_no_record_can_hold_is_refused_before_any_work(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        PARSER.read(["squad", "--dev", os.fsdecode(b"n\xff.json")])
    assert r"b'n\xff.json' is not UTF-8; rename the file or folder" in capsys.readouterr().err


def test_a_name_with_two_values_is_refused() -> None:
    assert unite_values("--sha256", [("train", "a"), ("dev", "b"), ("train", "a")]) == {"train": "a", "dev": "b"}
    with pytest.raises(RelmError, match="--sha256: train has two values, a and b; give one of them"):
        unite_values("--sha256", [("train", "a"), ("train", "b")])
    with pytest.raises(RelmError, match="--base: BASE has two values, a/one and a/two"):
        parse_bases(["a/one", "a/two"])


def test_a_text_with_an_expected_sha256_is_recorded_once(tmp_path: Path) -> None:
    for file in ("wiki.txt", "config.json", "tokenizer.json"):
        (tmp_path / file).write_text("{}")
    text = tmp_path / "wiki.txt"
    options = ["--file", str(text), "--sha256", f"wiki.txt={'0' * 64}", "--output", str(tmp_path / "x.json")]
    arguments = PARSER.read(["perplexity", "--model", str(tmp_path), *options])
    job = list_steps()["perplexity"].job(arguments)
    assert isinstance(job, Job)
    assert list(job.inputs).count(text) == 1
