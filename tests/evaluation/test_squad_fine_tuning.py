"""A tiny BERT is fine-tuned by the ordinary loop: it learns, seeds differ, and an interrupted run ends with the same bytes."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from transformers import BertForQuestionAnswering

from question_files import SAMPLE, misplaced_file
from relm.errors import RelmError
from relm.evaluation.fine_tuning.seeds import TuningRun
from relm.models.bert_span import BertForSpans
from relm.recipes.evaluation.fine_tuning import Squad
from relm.training.interruption import Preempted, run_lock
from relm.training.phase_run import derived_seed
from tiny_encoders import TINY, write_model
from tuned_runs import TransformersSteps, Tuned, learner

SMALL = {"sequence_length": 48, "doc_stride": 16, "max_query_length": 12}
SHORT = Squad(**SMALL, batch_size=4, epochs=10, seeds=2, seed=5, learning_rate=1e-3)
WHOLE_BATCH = TuningRun(checkpoint_interval=500, keep_models=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return write_model(tmp_path_factory.mktemp("model"), TINY)


def test_it_learns_the_answers_of_a_file(tmp_path: Path) -> None:
    options = Squad(sequence_length=128, doc_stride=64, batch_size=6, epochs=150, seeds=1, learning_rate=3e-3)
    found = Tuned(learner(tmp_path / "model", TINY), tmp_path, options, how=WHOLE_BATCH).run()
    assert found["f1"] > 0.6
    assert (found["questions"], found["seeds"], found["f1_std"]) == (5, 1, 0)


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """An undisturbed evaluation."""
    tuned = Tuned(model, tmp_path_factory.mktemp("whole"), SHORT)
    assert tuned.attempt("") == 0
    return tuned


# Between the answers of a seed and their record, outside the training loop.
def test_it_is_stopped_while_it_scores_and_resumed_to_the_same_bytes(whole: Tuned, tmp_path: Path) -> None:
    tuned = Tuned(whole.model, tmp_path, SHORT)
    for stop, expected in (
        ("1:SIGKILL", -signal.SIGKILL),
        ("1:SIGTERM", Preempted.exit_code),
        ("2:SIGINT", Preempted.exit_code),
    ):
        assert tuned.attempt(f"answers-written:{stop}") == expected, stop
        assert len(list(tmp_path.rglob("figures.json"))) == int(stop[0]) - 1, "figures are written last"
    assert tuned.attempt("") == 0
    assert tuned.content() == whole.content()


def test_a_signal_after_the_last_step_ends_before_the_next_seed(whole: Tuned, tmp_path: Path) -> None:
    tuned = Tuned(whole.model, tmp_path, SHORT)
    assert tuned.attempt("model-written:1:SIGTERM") == Preempted.exit_code
    assert not list(tmp_path.rglob("seed-6"))
    assert not list(tmp_path.rglob("figures.json"))


def test_another_process_with_the_same_output_is_named(whole: Tuned, tmp_path: Path) -> None:
    tuned = Tuned(whole.model, tmp_path, SHORT.model_copy(update={"seeds": 1}))
    with run_lock(tmp_path / "result" / "lock"), pytest.raises(RelmError, match=r"another process .* \(pid \d+\)"):
        tuned.run()
    assert not list(tmp_path.glob("result/*/"))


def test_faults_of_the_development_file_are_found_before_training(model: Path, tmp_path: Path) -> None:
    for context in (" \n", "\u0000\u0001 "):  # white space; characters that BERT's tokenizer removes
        content = json.loads(SAMPLE.read_text())
        paragraph = content["data"][0]["paragraphs"][0]
        paragraph["context"] = context * 400
        (tmp_path / "dev.json").write_text(json.dumps(content))
        with pytest.raises(RelmError, match="context"):
            Tuned(model, tmp_path, SHORT).run(file=tmp_path / "dev.json", training_file=SAMPLE)
    assert not (tmp_path / "result").exists()


def test_training_questions_that_are_left_out_are_counted(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "train.json").write_text(json.dumps(misplaced_file()))
    options = SHORT.model_copy(update={"seeds": 1, "epochs": 1.0})
    found = Tuned(model, tmp_path, options).run(file=SAMPLE, training_file=tmp_path / "train.json")
    assert (found["training_questions"], found["skipped_training_questions"]) == (12, 1)
    assert "skipped 1 of 13 training questions, whose answer is not at its offset; check" in caplog.text


def test_seeds_of_another_configuration_are_not_averaged(
    whole: Tuned, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(whole.folder, tmp_path / "eval")
    edited = shutil.copytree(whole.model, tmp_path / "model")
    config = json.loads((edited / "config.json").read_text())
    (edited / "config.json").write_text(json.dumps(config | {"hidden_dropout_prob": 0.5}))
    tuned = Tuned(edited, tmp_path / "eval", SHORT.model_copy(update={"seeds": 1}))
    tuned.run()
    assert len(list((tmp_path / "eval" / "result").glob("*/"))) == 2
    assert "keeps seeds of other options, files, weights or versions" in caplog.text


def test_an_output_that_is_a_folder_is_refused_before_training(model: Path, tmp_path: Path) -> None:
    (tmp_path / "result.json").mkdir()
    with pytest.raises(RelmError, match=r"result\.json: is a folder, expected a file"):
        Tuned(model, tmp_path, SHORT).run()
    assert not (tmp_path / "result").exists()


def test_a_model_of_another_kind_is_refused(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "model"
    other.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        content = (model / name).read_bytes()
        (other / name).write_bytes(content.replace(b'"model_type": "bert"', b'"model_type": "gpt2"'))
    with pytest.raises(RelmError, match=r"cannot be read as a BERT or RoBERTa: config.json: model_type is 'gpt2'"):
        Tuned(other, tmp_path, SHORT).run()


def test_it_takes_the_steps_of_transformers_own_model_from_identical_weights(tmp_path: Path) -> None:
    options = Squad(**SMALL, batch_size=4, epochs=10, seeds=1, learning_rate=1e-3, bias_correction=True)
    tuned = Tuned(learner(tmp_path / "model", TINY), tmp_path, options, how=WHOLE_BATCH)
    tuned.run()
    start = BertForSpans.on_encoder(tuned.model, torch.Generator().manual_seed(derived_seed(0, "head of answers")))
    TransformersSteps(tuned, start, BertForQuestionAnswering, "spans", "squad").require_same(steps=12)
