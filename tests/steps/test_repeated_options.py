"""An option that takes several values keeps all of them when it is given twice, or refuses the second."""

import argparse
import os

import pytest

from relm.errors import RelmError
from relm.steps import list_steps
from relm.steps.by_name import leave_out_given
from relm.steps.contract import Once, unite_values
from relm.steps.examples import document_of_examples
from relm.steps.images import _build
from relm.steps.parser import parser
from relm.steps.removal import NamedTest

PARSER = parser(list_steps())
SEVERAL = [
    pytest.param(command, action, id=f"{name} {action.option_strings[0]}")
    for name, command in PARSER.parsers.items()
    for action in command._actions
    if action.option_strings and action.nargs in ("+", "*") and not isinstance(action, NamedTest)  # adds up by itself
]
REFUSED = {"--layers-per-ipu", "--available-memory-proportion", "--trained-on"}
# Options whose type takes no plain number.
WORDS = {"--sha256": [f"{name}={name * 64}" for name in "ab"], "--option": ["masked.probability=1", "causal.stride=2"]}


@pytest.mark.parametrize(("command", "action"), SEVERAL)
def test_a_repeated_option_adds_up_or_is_refused(
    command: argparse.ArgumentParser, action: argparse.Action, capsys: pytest.CaptureFixture[str]
) -> None:
    option = action.option_strings[0]
    first, second = WORDS.get(option, list(action.choices or "12")[:2])
    alone = argparse.ArgumentParser()
    alone._add_action(action)
    if option in REFUSED:
        assert isinstance(action, Once)
        with pytest.raises(SystemExit):
            alone.parse_args([option, first, option, second])
        assert "is given twice" in capsys.readouterr().err
        return
    repeated, together = (alone.parse_args(words) for words in ([option, first, option, second], [option, first, second]))
    assert repeated == together
    assert not action.default, "values would be added to the default"


def test_there_are_such_options_in_many_commands() -> None:
    assert len(SEVERAL) > 40
    assert {each.values[1].option_strings[0] for each in SEVERAL} >= {*REFUSED, *WORDS, "--documents", "--logs", "--prompt"}


def test_options_of_an_objective_are_united() -> None:
    words = ["pregenerate", "--objective", "masked", "--documents", "a", "--tokenizer", "t", "--output", "b"]
    options = ["--option", "masked.duplication_factor=3", "--option", "masked.short_sequence_probability=0.2"]
    document = document_of_examples(PARSER.read([*words, "--sequence-length", "8", *options]))
    assert (document["masked"]["duplication_factor"], document["masked"]["short_sequence_probability"]) == (3, 0.2)


def test_an_option_of_the_user_takes_the_place_of_the_graphs() -> None:
    command = ["relm", "pregenerate", "--documents", "a", "b", "--tokenizer", "t", "--output", "c", "d"]
    assert leave_out_given(command, ["--documents", "e"]) == ["relm", "pregenerate", "--tokenizer", "t", "--output", "c", "d"]
    assert leave_out_given(command, ["--doc=e", "--output", "f"]) == ["relm", "pregenerate", "--tokenizer", "t"]
    assert leave_out_given(command, ["--tokenizer", "u"]) == command, "the last one of a single value counts"


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
    bases = argparse.Namespace(role="cpu", base=["a/one", "a/two"], action="build", loggers=False, snapshot=None)
    with pytest.raises(RelmError, match="--base: BASE has two values, a/one and a/two"):
        _build(bases)
    with pytest.raises(RelmError, match=r"--option: masked\.probability has two values"):
        unite_values("--option", [(("masked", "probability"), 0.1), (("masked", "probability"), 0.2)])
