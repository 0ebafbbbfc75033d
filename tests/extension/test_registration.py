"""A choice from outside the package is registered with its options by one call, whole or not at all."""

from collections.abc import Callable
from typing import Any

import pytest
from extended_process import run_extended

from relm.errors import RelmError
from relm.recipes.datasets import FORMATS, FormatDeclaration, register_format
from relm.recipes.declaration import Registry
from relm.recipes.evaluation.evaluations import EVALUATIONS, PROTOCOLS, EvaluationDeclaration
from relm.recipes.evaluation.published_tests import PublishedTest
from relm.recipes.objectives import OBJECTIVES, TABLE, ObjectiveDeclaration, register_objective
from relm.recipes.optimization import (
    OPTIMIZERS,
    SCHEDULES,
    OptimizerDeclaration,
    ScheduleDeclaration,
    register_optimizer,
    register_schedule,
)
from relm.recipes.recipe import register_evaluation
from relm.recipes.section import Section

CODE = "json:loads"
FILE = {"a.txt": {"sha256": "0" * 64, "size": 1, "sources": [{"url": "https://example.org/a.txt"}]}}


class Toy(Section):
    """Options of a toy."""

    size: int = 1


def evaluation(name: str, *inputs: Any, options: type[Section] | None = Toy) -> EvaluationDeclaration:
    return EvaluationDeclaration(name, summary="a toy", run=CODE, inputs=inputs, options=options)


@pytest.mark.parametrize(
    ("register", "registries", "declaration"),
    [
        (register_format, [FORMATS], FormatDeclaration("folder", batches=CODE, documents=CODE, entries="toys", options=Toy)),
        (
            register_objective,
            [OBJECTIVES],
            ObjectiveDeclaration("global_batch_size", TABLE, {"x": "x"}, CODE, CODE, CODE, CODE, options=Toy),
        ),
        (register_optimizer, [OPTIMIZERS], OptimizerDeclaration("betas", CODE, lambda shape, settings: 0, options=Toy)),
        (register_schedule, [SCHEDULES], ScheduleDeclaration("warmup_steps", CODE, options=Toy)),
        (register_schedule, [SCHEDULES], ScheduleDeclaration("warmup", CODE, options=Toy)),  # a method of `Schedule`
        (register_evaluation, [EVALUATIONS], evaluation("pretrain")),
        (register_evaluation, [EVALUATIONS, PROTOCOLS], evaluation("licence", "file")),
    ],
)
def test_a_choice_whose_key_is_taken_is_not_registered(
    register: Callable[[Any], None], registries: list[Registry[Any]], declaration: Any
) -> None:
    with pytest.raises(RelmError, match=f"{declaration.name}: its options cannot have this key, which .* has already"):
        register(declaration)
    assert [declaration.name in registry for registry in registries] == [False] * len(registries)


def published_test_and_a_plain_protocol() -> str:
    """Register a protocol without options; return the protocol of a test that has another."""
    register_evaluation(evaluation("first_words", "file", options=None))
    content = {"title": "A text", "licence": "CC0-1.0", "protocol": "perplexity", "files": FILE}
    return PublishedTest.model_validate(content).protocol


def test_a_protocol_without_options_leaves_other_tests_valid() -> None:
    assert run_extended("largest_weight", published_test_and_a_plain_protocol) == "perplexity"
