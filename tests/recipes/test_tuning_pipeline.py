"""The pipelines on which evaluations fine-tune, of recipes that train on IPUs."""

import json
from pathlib import Path

import pytest
import yaml

from relm.errors import RelmError
from relm.plan.run_jobs import evaluate
from relm.recipes.evaluation.evaluation_place import evaluation_device, tuning_pipeline
from relm.recipes.machine.pipeline import Pipeline, split_tuning_batch
from relm.recipes.project import Project
from small_project import CHECKOUT

TASK = "squad11_graphcore"


@pytest.mark.parametrize(("name", "replicas", "accumulation"), [("bert_large_pod16", 4, 260), ("bert_large_pod64", 16, 65)])
def test_a_pod_fine_tunes_in_graphcores_micro_batches(name: str, replicas: int, accumulation: int) -> None:
    plan = Project(CHECKOUT).plan(name)
    pipeline = tuning_pipeline(plan, TASK)
    assert pipeline is not None
    assert evaluation_device(plan, TASK) == "ipu"
    assert (pipeline.replicas, pipeline.gradient_accumulation, pipeline.micro_batch_size) == (replicas, accumulation, 1)
    assert (pipeline.layers_per_ipu, pipeline.stages, pipeline.loss_scaling.scale) == ([3, 7, 7, 7], 5, 1024)
    assert pipeline.available_memory_proportion == [0.22] * 4
    assert not pipeline.replicated_tensor_sharding
    assert (pipeline.first_moment_precision, pipeline.vocabulary_serialisation) == ("float32", 1)
    assert (evaluation_device(plan, "masked_lm"), tuning_pipeline(plan, "masked_lm")) == ("cpu", None)


def test_the_twin_fine_tunes_on_the_simulator_with_as_few_sequences_as_fill_it() -> None:
    plan = Project(CHECKOUT).plan("smoke/bert_large_pod16")
    pipeline = tuning_pipeline(plan, TASK)
    assert pipeline is not None
    assert evaluation_device(plan, TASK) == "ipu_simulator"
    assert (pipeline.stages, pipeline.replicas, pipeline.gradient_accumulation) == (5, 2, 9)
    assert plan.evaluation_identity(TASK)["options"]["batch_size"] == 18


def test_the_command_passes_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    plan = Project().plan("bert_large_pod16")
    words = evaluate(plan, "eval", TASK).command()
    assert words[words.index("--device") + 1] == "ipu"
    given = Pipeline.model_validate(json.loads(words[words.index("--pipeline") + 1]))
    assert given == tuning_pipeline(plan, TASK)


def test_as_many_replicas_share_a_batch_as_fill_their_stages() -> None:
    pipeline = Pipeline(layers_per_ipu=[3, 7, 7, 7], replicas=4, gradient_accumulation=2050)
    found = {size: split_tuning_batch(pipeline, size) for size in (32, 9, 36, 1040)}
    assert {size: (each.replicas, each.gradient_accumulation) for size, each in found.items()} == {
        32: (2, 16), 9: (1, 9), 36: (4, 9), 1040: (4, 260)
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"batch_size is 8, but the pipeline has 5 stages, which need .* at least 1 x 9 = 9"):
        split_tuning_batch(pipeline, 8)
    assert split_tuning_batch(Pipeline(layers_per_ipu=[2], gradient_accumulation=9), 1).gradient_accumulation == 1


def test_a_batch_that_fills_no_pipeline_is_refused_with_the_recipe(copied: Path) -> None:
    other = {"fine_tuning": {"micro_batch_size": 7}}
    content = {"extends": "bert_large_pod16", "on": {"pod16": {"pipeline": other}}}
    (copied / "recipes" / "mine.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(RelmError, match=r"mine.yaml: evaluate: squad11_graphcore: squad.batch_size is 1040, but the pipeline"):
        Project(copied).plan("mine")


def test_replicas_of_several_instances_leave_fine_tuning_to_the_cpu(copied: Path) -> None:
    content = {"extends": "bert_large_pod16", "on": {"pod16": {"pipeline": {"instances": 2}}}}
    (copied / "recipes" / "mine.yaml").write_text(yaml.safe_dump(content))
    plan = Project(copied).plan("mine")
    assert (evaluation_device(plan, TASK), tuning_pipeline(plan, TASK)) == ("cpu", None)
