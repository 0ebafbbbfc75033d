"""Tiny encoders are fine-tuned on GLUE's tasks: they learn, take transformers' steps, and resume to the same bytes.

The sentences are this project's own, in the formats of GLUE's files.
"""

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from glue_files import EXAMPLES, write_parquet
from relm.artifact import sha256_of
from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.fine_tuning.glue import OBJECTIVES
from relm.evaluation.fine_tuning.glue_scoring import METRICS
from relm.evaluation.fine_tuning.seeds import TuningRun
from relm.examples.builders import open_examples
from relm.examples.fine_tuning.glue import TASKS
from relm.models.bert_classification import BertForClassification
from relm.models.bert_configuration import BertConfig
from relm.recipes.evaluation.fine_tuning import Glue
from relm.recipes.objectives import Objective
from relm.training.phase_run import derived_seed
from tiny_encoders import TINY, TINY_ROBERTA, write_model
from tuned_runs import TransformersSteps, Tuned, learner

SELDOM = TuningRun(micro_batch_size=1, checkpoint_interval=500, keep_models=True)
SHORT = Glue(task="mnli", sequence_length=32, batch_size=2, epochs=4, seeds=2, seed=5, learning_rate=1e-3)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model of each family."""
    configs = {"bert": TINY, "roberta": TINY_ROBERTA}
    return {name: write_model(tmp_path_factory.mktemp(name), config) for name, config in configs.items()}


@pytest.mark.parametrize(
    ("task", "config", "figures"),
    [
        ("cola", TINY, {"matthews_correlation": 0.99}),
        ("mnli", TINY, {"accuracy": 0.99}),
        ("mrpc", TINY_ROBERTA, {"accuracy": 0.99, "f1": 0.99}),
        ("stsb", TINY, {"pearson_correlation": 0.9, "spearman_correlation": 0.8}),
    ],
    ids=["cola", "mnli", "mrpc, roberta", "stsb"],
)
def test_it_learns_the_labels_of_a_file(task: str, config: BertConfig, figures: dict[str, float], tmp_path: Path) -> None:
    options = Glue(task=task, sequence_length=64, batch_size=2, epochs=80, seeds=1, learning_rate=2e-3)
    tuned = Tuned(learner(tmp_path / "model", config), tmp_path, options, how=SELDOM)
    found = tuned.run()
    assert {name: found[name] >= least for name, least in figures.items()} == dict.fromkeys(figures, True), found
    assert (found["examples"], found["seeds"]) == (len(EXAMPLES[task]), 1)
    (answers,) = tuned.runs.glob("seed-*/predictions.json")
    predicted = json.loads(answers.read_text())["dev"]
    labels = [row[-1] for row in EXAMPLES[task]]
    if TASKS[task].classes:
        assert predicted == [TASKS[task].classes[label] for label in labels]
    else:
        assert np.corrcoef(predicted, labels)[0, 1] == pytest.approx(found["pearson_correlation"])


@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_its_figures(task: str, models: dict[str, Path], tmp_path: Path) -> None:
    family = "roberta" if task in ("rte", "stsb") else "bert"
    options = Glue(task=task, sequence_length=24, batch_size=2, epochs=1, seeds=1)
    found = Tuned(models[family], tmp_path, options).run()
    expected = {f"{name}{suffix}" for name in TASKS[task].metrics for suffix in ("", "_std", "_0")}
    assert set(found) == {*expected, "seeds", "examples"}


@pytest.fixture(scope="module")
def whole(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """An undisturbed evaluation on MNLI, with both development files."""
    tuned = Tuned(models["bert"], tmp_path_factory.mktemp("whole"), SHORT, mismatched=True)
    assert tuned.attempt("") == 0
    return tuned


def test_the_figures_are_means_over_seeds_that_differ(whole: Tuned) -> None:
    found = whole.figures()
    names = ("accuracy", "accuracy_mismatched")
    assert set(found) == {f"{name}{suffix}" for name in names for suffix in ("", "_std", "_0", "_1")} | {
        *("seeds", "examples", "examples_mismatched")
    }
    for name in names:
        assert found[name] == pytest.approx((found[f"{name}_0"] + found[f"{name}_1"]) / 2)
        assert found[f"{name}_std"] == pytest.approx(abs(found[f"{name}_0"] - found[f"{name}_1"]) / 2**0.5)
    # The second file has the same examples as the first.
    assert [found[f"accuracy{suffix}"] for suffix in ("_0", "_1")] == [
        found[f"accuracy_mismatched{suffix}"] for suffix in ("_0", "_1")
    ]
    weights = [sha256_of(whole.trained(seed) / "model.safetensors") for seed in (5, 6)]
    assert weights[0] != weights[1]
    assert not (whole.runs / "seed-5" / "glue" / "checkpoints").exists()


def test_the_figures_are_those_of_the_folder_that_transformers_loads(whole: Tuned) -> None:
    theirs, report = AutoModelForSequenceClassification.from_pretrained(whole.trained(5), output_loading_info=True)
    assert not any(report.values()), report
    assert theirs.config.num_labels == 3
    objective = Objective(objective="three_classes", sequence_length=32)
    examples = open_examples(whole.runs / "examples" / "manifest.json", "train", objective, 0)
    batch = examples.batch(np.arange(len(examples)), np.zeros(len(examples), np.int64))
    labels = batch.pop("class_labels")
    with torch.inference_mode():
        logits = theirs.eval()(**{name: torch.from_numpy(array) for name, array in batch.items()}).logits.numpy()
    assert METRICS["accuracy"](logits.argmax(1), labels) == whole.figures()["accuracy_0"]
    answers = json.loads((whole.runs / "seed-5" / "predictions.json").read_text())
    assert answers["dev"] == answers["dev_mismatched"] == [TASKS["mnli"].classes[each] for each in logits.argmax(1)]


def test_the_protocol_has_all_files_and_options(whole: Tuned) -> None:
    protocol = json.loads((whole.folder / "result.json").read_text())["protocol"]
    assert protocol["in_words"].startswith("Fine-tuned on the Multi-Genre Natural Language Inference Corpus, a task of GLUE,")
    files = {"file": "train.parquet", "training_file": "train.parquet", "mismatched_file": "other.tsv"}
    for key, name in files.items():
        assert protocol[key] == name
        assert protocol[f"{key.removesuffix('_file')}_sha256"] == sha256_of(whole.folder / name)
    assert (protocol["task"], protocol["epochs"], protocol["sequence_length"]) == ("mnli", 4, 32)


# While an input is prepared, a checkpoint written, a gradient computed, and after a model has been written.
@pytest.mark.full
@pytest.mark.parametrize("kills", [("data:8", "checkpoint-renamed:1"), ("model-written:1", "gradient:5")], ids=str)
def test_it_is_killed_and_resumed_to_the_same_bytes(kills: tuple[str, ...], whole: Tuned, tmp_path: Path) -> None:
    tuned = Tuned(whole.model, tmp_path, SHORT, mismatched=True)
    for kill in kills:
        assert tuned.attempt(kill) == -signal.SIGKILL, kill
        assert not (tmp_path / "result.json").exists()
    assert tuned.attempt("") == 0
    assert tuned.content() == whole.content()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_fine_tunes_and_is_resumed_to_the_same_bytes(models: dict[str, Path], tmp_path: Path) -> None:
    learning = Glue(task="mnli", sequence_length=32, batch_size=2, epochs=80, seeds=1, learning_rate=2e-3)
    how = TuningRun(micro_batch_size=1, checkpoint_interval=20, keep_models=True)
    whole = Tuned(learner(tmp_path / "model", TINY), tmp_path / "whole", learning, Execution("cuda", threads=1), how)
    assert whole.attempt("") == 0
    assert whole.figures()["accuracy"] == 1
    killed = replace(whole, folder=tmp_path / "killed")
    for kill in ("checkpoint-renamed:2", "gradient:5", "model-written:1"):
        assert killed.attempt(kill) == -signal.SIGKILL, kill
    assert killed.attempt("") == 0
    assert killed.content() == whole.content()


def test_another_development_file_gets_its_own_figures(models: dict[str, Path], tmp_path: Path) -> None:
    tuned = Tuned(models["bert"], tmp_path, SHORT.model_copy(update={"seeds": 1}))
    tuned.run()
    other = write_parquet(tmp_path / "other.parquet", "mnli", EXAMPLES["mnli"][:2])
    found = tuned.run(file=other)
    assert found["examples"] == 2
    counts = [len(json.loads(path.read_text())["dev"]) for path in (tmp_path / "result").glob("*/seed-5/predictions.json")]
    assert sorted(counts) == [2, 5]
    assert tuned.run(limit=3)["examples"] == 3
    assert len(list((tmp_path / "result").glob("*/"))) == 3


def test_what_does_not_fit_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    tuned = Tuned(models["bert"], tmp_path, Glue(task="rte", sequence_length=32, seeds=1))
    with pytest.raises(RelmError, match=r"other.tsv: only mnli has a second development file, found task rte; leave it out"):
        replace(tuned, mismatched=True).run()
    with pytest.raises(RelmError, match="has sha256"):
        tuned.run(file_sha256="0" * 64)
    with pytest.raises(RelmError, match="has sha256"):
        tuned.run(training_sha256="0" * 64)
    with pytest.raises(RelmError, match="has sha256"):
        Tuned(models["bert"], tmp_path, SHORT, mismatched=True).run(mismatched_sha256="0" * 64)
    with pytest.raises(
        RelmError, match=r"train.parquet: lacks the column 'sentence', found 'sentence1, sentence2, label, idx'"
    ):
        replace(tuned, options=Glue(task="cola", seeds=1)).run()
    assert not (tmp_path / "result").exists()


@pytest.mark.parametrize(
    ("task", "config"),
    [("mnli", TINY), ("stsb", TINY_ROBERTA), ("cola", TINY_ROBERTA), ("stsb", TINY)],
    ids=["mnli, bert", "stsb, roberta", "cola, roberta", "stsb, bert"],
)
def test_it_takes_the_steps_of_transformers_own_model_from_identical_weights(
    task: str, config: BertConfig, tmp_path: Path
) -> None:
    labels = TASKS[task].labels
    options = Glue(task=task, sequence_length=48, batch_size=2, epochs=8, seeds=1, learning_rate=1e-3, bias_correction=True)
    tuned = Tuned(learner(tmp_path / "model", config), tmp_path, options, how=SELDOM)
    tuned.run()
    generator = torch.Generator().manual_seed(derived_seed(0, "head of classes"))
    start = BertForClassification.on_encoder(tuned.model, generator, labels=labels)
    names = {"labels": "class_labels" if labels > 1 else "scores"}
    steps = TransformersSteps(tuned, start, AutoModelForSequenceClassification, OBJECTIVES[labels], "glue", names)
    steps.require_same(steps=len(EXAMPLES[task]) * 4)


@pytest.mark.parametrize("lost", ["train.arrow", "train.arrow.json", "manifest.json"])
def test_lost_examples_are_written_again(lost: str, models: dict[str, Path], tmp_path: Path) -> None:
    tuned = Tuned(models["bert"], tmp_path, SHORT.model_copy(update={"epochs": 1, "seeds": 1}))
    tuned.run()
    (tmp_path / "result.json").unlink()
    (tuned.runs / "seed-5" / "figures.json").unlink()
    (tuned.runs / "examples" / lost).unlink()
    tuned.run()
    assert (tuned.runs / "examples" / lost).exists()
