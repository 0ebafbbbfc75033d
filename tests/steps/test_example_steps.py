"""Commands of examples by hand: the flags of the short form build the document that the graph passes as --job."""

import json
from argparse import Namespace
from typing import Any

import pytest

from relm.errors import RelmError
from relm.recipes.identity import stored_identity
from relm.recipes.objectives import Objective
from relm.steps import list_steps
from relm.steps.examples import document_of_examples
from relm.steps.parser import parser


def parsed(*words: str) -> Namespace:
    """Return the arguments of a command."""
    return parser(list_steps()).parse_args(list(words))


PREGENERATE = ("pregenerate", "--tokenizer", "t", "--documents", "d", "--output", "o")


@pytest.mark.parametrize(
    ("flags", "phase"),
    [
        ([], {"objective": "causal", "sequence_length": 8, "causal": {"stride": 1}}),
        (
            ["--objective", "masked", "--sequence-length", "128", "--masked", "{packing: sentence_pairs}"],
            {"objective": "masked", "sequence_length": 128, "masked": {"packing": "sentence_pairs", "probability": 0.3}},
        ),
        (
            [
                *("--objective", "masked", "--sequence-length", "64", "--language", "ro"),
                *("--masked", "{masks: static, whole_words: true}", "--as-published", "{builder: tpu_pretrain}"),
            ],
            {
                "objective": "masked",
                "sequence_length": 64,
                "masked": {"masks": "static", "whole_words": True},
                "as_published": {"builder": "tpu_pretrain"},
            },
        ),
        (
            ["--objective", "seq2seq", "--seq2seq", "{texts: documents}", "--language", "ro"],
            {"objective": "seq2seq", "sequence_length": 256, "seq2seq": {"texts": "documents"}},
        ),
    ],
)
def test_flags_describe_the_examples_of_a_recipes_phase(flags: list[str], phase: dict[str, Any]) -> None:
    language = "ro" if "ro" in flags else "en"
    assert document_of_examples(parsed(*PREGENERATE, *flags)) == stored_identity(Objective.model_validate(phase), language)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*PREGENERATE, "--job", "{}", "--objective", "masked"], "--job: describes the product completely; leave --objective"),
        ([*PREGENERATE, "--job", "[1]"], "--job: expected an object, found [1]"),
        ([*PREGENERATE, "--objective", "masked"], "sequence_length: missing, and it has no default"),
        ([*PREGENERATE, "--masked", "{packing: pairs}", "--objective", "masked"], "pregenerate: 2 errors"),
    ],
)
def test_a_faulty_command_of_examples_is_refused(words: list[str], message: str) -> None:
    arguments = parsed(*words)
    with pytest.raises(RelmError) as caught:
        list_steps()[arguments.step].job(arguments)
    assert message in str(caught.value)


CAUSAL = {"revision": 1, "objectives": ["causal"], "documents": "d", "tokenizer": "t"}


@pytest.mark.parametrize(
    ("words", "document", "message"),
    [
        ((*PREGENERATE, "--job"), {**CAUSAL, "objective": "masked"}, "objective: unknown key"),
        ((*PREGENERATE, "--job"), {**CAUSAL, "tokenizer": float("nan")}, "not valid JSON"),
        ((*PREGENERATE, "--job"), {**CAUSAL, "tokenizer": "\ud800"}, "not valid JSON"),
        (
            (*PREGENERATE, "--job"),
            {**CAUSAL, "objectives": ["seq2seq"], "language": [1]},
            "language: expected a code such as en, found [1]",
        ),
        ((*PREGENERATE[:-1], "e-0123456789ab/s.bin", "--job"), CAUSAL, "is in the folder of key 0123456789ab"),
    ],
)
def test_a_faulty_document_of_examples_is_refused_in_a_sentence(
    words: tuple[str, ...], document: dict[str, Any], message: str
) -> None:
    arguments = parsed(*words, json.dumps(document))
    with pytest.raises(RelmError) as caught:
        list_steps()[arguments.step].job(arguments)
    assert message in str(caught.value)
