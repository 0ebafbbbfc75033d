"""`relm estimate` next to the TPU compiler's figures: found in the work folder, given, out of date, or not there yet."""

import pytest

from made_compilation import compilation, program
from relm.forecast.estimate import compiled_lines, describe_estimate
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.training.machine.compile_record import Compilation, read_shipped, shipped_compilation, write_compilation
from small_project import CHECKOUT, Commands

TPU = """
title: On a TPU
data: {dataset: sample}
tokenizer: {train: wordpiece, vocabulary_size: 600}
model: {architecture: bert, layers: 2, heads: 2, hidden_size: 32, positions: 64}
pretrain:
  main: {objective: masked, sequence_length: 32, global_batch_size: 16, steps: 900, precision: bfloat16,
         optimizer: {learning_rate: 1e-3}}
run: {device: tpu, topology: v3-8}
"""


@pytest.fixture
def plan(project: Commands, monkeypatch: pytest.MonkeyPatch) -> Plan:
    (project.folder / "recipes" / "on_tpu.yaml").write_text(TPU)
    monkeypatch.chdir(project.folder)
    return Project().plan("on_tpu")


def made(recipe: str = "on_tpu") -> Compilation:
    return compilation(program("step", 123e12, 1800e9), recipe=recipe)


def test_a_recipe_for_a_tpu_is_given_the_command_of_its_compiler(plan: Plan) -> None:
    text = describe_estimate(plan, None)
    assert text.splitlines()[-1].endswith(f": relm compile on_tpu --output {plan.compilation}")
    assert [*compiled_lines(Project().plan("tiny"))] == []


def test_a_shipped_recipe_has_the_figures_of_the_committed_table() -> None:
    plan = Project(CHECKOUT).plan("roberta_base_v3-8")
    output = "\n".join(compiled_lines(plan))
    step = next(each for each in shipped_compilation(read_shipped(), plan).programs if each.name == "step")
    assert f"fits: {step.compiled.memory.peak / 2**30:.2f} GiB at most of 15.48" in output
    assert "relm compile" not in output


def test_a_file_in_the_work_folder_is_found(plan: Plan) -> None:
    write_compilation(plan.compilation, made())
    output = describe_estimate(plan, None)
    assert "hours by arithmetic" in output
    assert "\n\nas compiled for v3-8 by jax 0.7.1, libtpu 0.0.21\n" in output
    assert "at least 4 s: operations 2 s" in output
    assert output.endswith("900 steps take 1.00 h")


def test_a_file_of_another_recipe_or_version_is_left_out_with_the_reason(plan: Plan) -> None:
    write_compilation(plan.compilation, made().model_copy(update={"sequences": {"main": 8}}))
    output = [*compiled_lines(plan)]
    assert len(output) == 2
    assert "is left out: phase main: compiled with global_batch_size 8, the recipe has 16" in output[1]
    write_compilation(plan.compilation, made("roberta_base_v3-8"))
    assert "is left out: it belongs to recipe roberta_base_v3-8, not to on_tpu" in [*compiled_lines(plan)][1]
    plan.compilation.write_text("{}")
    assert "make it again with `relm compile`" in [*compiled_lines(plan)][1]
