"""The traced programs are those of training."""

from collections import Counter
from pathlib import Path

import pytest
from traced_programs import RECIPE, donated_shapes, operations, programs, small, trained

from relm.forecast.compilation.tpu_compiler import hlo_text


def test_the_traced_step_is_the_trainers() -> None:
    """The texts are equal but for lines that repeat, for the state that a step updates, that it is replicated."""
    step, theirs = small("step"), trained()
    ours = hlo_text(step.hlo.read_bytes())
    assert not operations(ours) - operations(theirs)
    more = operations(theirs) - operations(ours)
    assert {operation for _, operation in more} == {"custom-call"}
    assert theirs.count("custom-call(") == theirs.count('custom_call_target="Sharding"')
    assert len(step.program.donated) == sum(donated_shapes(theirs).values()) > 100


def test_what_is_donated_is_what_the_trainer_donates() -> None:
    step = small("step")
    text = hlo_text(step.hlo.read_bytes())
    header = text.partition("entry_computation_layout={(")[2].partition(")->")[0]
    shapes = [word.partition("{")[0] for word in header.replace("/*", " /*").split(", ") if "[" in word]
    shapes = [shape.rpartition("*/")[2].strip() for shape in shapes]
    assert len(shapes) == step.program.arguments
    assert Counter(shapes[index] for index in step.program.donated) == donated_shapes(trained())


@pytest.mark.full
def test_a_program_is_the_same_in_another_process_and_after_other_recipes(tmp_path: Path) -> None:
    other = "smoke/mt5_base_romanian_diacritics_v3-8"
    again = programs(tmp_path, other, RECIPE)
    for name in ("step", "held_out"):
        assert again[RECIPE, name].program == small(name).program
        assert again[RECIPE, name].hlo.read_bytes() == small(name).hlo.read_bytes()
        assert again[other, name].program.sha256 != small(name).program.sha256


def test_validation_is_a_separate_program_that_overwrites_nothing() -> None:
    assert small("held_out").program.donated == ()
    assert small("held_out").program.arguments < small("step").program.arguments
