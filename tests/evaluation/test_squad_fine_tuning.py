"""A tiny BERT is fine-tuned by the ordinary loop: it learns, seeds differ, and an interrupted run ends with the same bytes."""

import json
import os
import shutil
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import BertForQuestionAnswering

from question_files import SAMPLE, made_file, misplaced_file
from relm.artifact import sha256_of
from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.fine_tuning import TuningRun
from relm.evaluation.tuning import evaluate_tuning
from relm.examples.builders import open_examples
from relm.examples.contract import numbers_at
from relm.models.bert_span import BertForSpans
from relm.recipes.fine_tuning import Squad
from relm.recipes.objectives import Objective
from relm.training.interruption import Preempted, ends_when_asked, run_lock
from relm.training.kill_points import KILL_AT
from relm.training.phase_run import derived_seed
from tiny_encoders import TINY, write_model
from tiny_runs import FORKS

SMALL = {"sequence_length": 48, "doc_stride": 16, "max_query_length": 12}
SHORT = Squad(**SMALL, batch_size=4, epochs=10, seeds=2, seed=5, learning_rate=1e-3)
WITH_TIMES = ("train.jsonl", "shards.json", "lock")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return write_model(tmp_path_factory.mktemp("model"), TINY)


@dataclass
class Tuned:
    """An evaluation in a folder."""

    model: Path
    folder: Path
    options: Squad = SHORT
    checkpoint_interval: int = 3

    def run(self, file: Path = SAMPLE, sha256: str | None = None, training_file: Path | None = None) -> dict[str, Any]:
        """Evaluate in this process, and return the figures."""
        evaluate_tuning(
            self.model,
            self.model / "tokenizer.json",
            training_file=training_file or file,
            file=file,
            output=self.folder / "squad11.json",
            task="squad11",
            options=self.options,
            file_sha256=sha256,
            execution=Execution(threads=1),
            how=TuningRun(micro_batch_size=2, checkpoint_interval=self.checkpoint_interval, keep_models=True),
        )
        return self.figures()

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "squad11.json").read_text())["figures"]
        return found

    def attempt(self, kill_at: str) -> int | None:
        """Evaluate in a process of its own, which kills itself at a point, and return its exit code."""
        process = FORKS.Process(target=_attempt, args=(self, kill_at))
        process.start()
        process.join(200)
        process.kill()
        process.join()
        return process.exitcode

    def content(self) -> dict[str, str]:
        """Return the sha256 of each file that is left, without those with times and processes."""
        files = [path for path in sorted(self.folder.rglob("*")) if path.is_file() and path.name not in WITH_TIMES]
        return {str(path.relative_to(self.folder)): sha256_of(path) for path in files}


def _attempt(tuned: Tuned, kill_at: str) -> None:
    os.environ[KILL_AT] = kill_at
    try:
        tuned.run()
    except RelmError as error:
        print(error)
        sys.exit(error.exit_code)


def test_it_learns_the_answers_of_a_file(tmp_path: Path) -> None:
    learner = tmp_path / "model"
    learner.mkdir()
    write_model(learner, replace(TINY, initializer_range=0.2, hidden_dropout=0.0, attention_dropout=0.0))
    options = Squad(sequence_length=128, doc_stride=64, batch_size=6, epochs=150, seeds=1, learning_rate=3e-3)
    found = Tuned(learner, tmp_path, options, checkpoint_interval=500).run()
    assert found["f1"] > 0.6
    assert (found["questions"], found["seeds"], found["f1_std"]) == (5, 1, 0)


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """An undisturbed evaluation."""
    tuned = Tuned(model, tmp_path_factory.mktemp("whole"))
    assert tuned.attempt("") == 0
    return tuned


def test_the_figures_are_means_over_seeds_that_differ(whole: Tuned) -> None:
    found = whole.figures()
    assert found["f1"] == pytest.approx((found["f1_0"] + found["f1_1"]) / 2)
    assert found["f1_std"] == pytest.approx(abs(found["f1_0"] - found["f1_1"]) / 2**0.5)
    (runs,) = (whole.folder / "squad11").glob("*/")
    weights = [sha256_of(runs / f"seed-{seed}" / "squad" / "model" / "model.safetensors") for seed in (5, 6)]
    assert weights[0] != weights[1]
    assert not (runs / "seed-5" / "squad" / "checkpoints").exists()
    _, report = BertForQuestionAnswering.from_pretrained(runs / "seed-5" / "squad" / "model", output_loading_info=True)
    assert not any(report.values()), report


# While an input is prepared, a checkpoint written, a gradient computed, and after a model has been written.
@pytest.mark.full
@pytest.mark.parametrize("kills", [("data:8", "checkpoint-renamed:1"), ("model-written:1", "gradient:5")], ids=str)
def test_it_is_killed_and_resumed_to_the_same_bytes(kills: tuple[str, ...], whole: Tuned, tmp_path: Path) -> None:
    tuned = Tuned(whole.model, tmp_path)
    for kill in kills:
        assert tuned.attempt(kill) == -signal.SIGKILL, kill
        assert not (tmp_path / "squad11.json").exists()
    assert tuned.attempt("") == 0
    assert tuned.content() == whole.content()


# Between the answers of a seed and their record, outside the training loop.
def test_it_is_stopped_while_it_scores_and_resumed_to_the_same_bytes(whole: Tuned, tmp_path: Path) -> None:
    tuned = Tuned(whole.model, tmp_path)
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
    tuned = Tuned(whole.model, tmp_path)
    assert tuned.attempt("model-written:1:SIGTERM") == Preempted.exit_code
    assert not list(tmp_path.rglob("seed-6"))
    assert not list(tmp_path.rglob("figures.json"))


@ends_when_asked()
def handle_errors() -> None:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except Exception:
        pytest.fail("a handler of errors took the signal for one")


def test_a_signal_is_not_taken_for_an_error() -> None:
    with pytest.raises(Preempted, match="stopped by SIGTERM; the same command resumes"):
        handle_errors()


def test_another_process_with_the_same_output_is_named(whole: Tuned, tmp_path: Path) -> None:
    tuned = Tuned(whole.model, tmp_path, SHORT.model_copy(update={"seeds": 1}))
    with run_lock(tmp_path / "squad11" / "lock"), pytest.raises(RelmError, match=r"another process .* \(pid \d+\)"):
        tuned.run()
    assert not list(tmp_path.glob("squad11/*/"))


def test_faults_of_the_development_file_are_found_before_training(model: Path, tmp_path: Path) -> None:
    for context in (" \n", "\u0000\u0001 "):  # white space; characters that BERT's tokenizer removes
        content = json.loads(SAMPLE.read_text())
        paragraph = content["data"][0]["paragraphs"][0]
        paragraph["context"] = context * 400
        (tmp_path / "dev.json").write_text(json.dumps(content))
        with pytest.raises(RelmError, match="context"):
            Tuned(model, tmp_path).run(file=tmp_path / "dev.json", training_file=SAMPLE)
    assert not (tmp_path / "squad11").exists()


def test_training_questions_that_are_left_out_are_counted(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "train.json").write_text(json.dumps(misplaced_file()))
    options = SHORT.model_copy(update={"seeds": 1, "epochs": 1.0})
    found = Tuned(model, tmp_path, options).run(file=SAMPLE, training_file=tmp_path / "train.json")
    assert (found["training_questions"], found["skipped_training_questions"]) == (12, 1)
    assert "1 of 13 training questions left out, whose answer is not at its offset; check" in caplog.text


def test_seeds_of_another_configuration_are_not_averaged(
    whole: Tuned, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(whole.folder, tmp_path / "eval")
    edited = shutil.copytree(whole.model, tmp_path / "model")
    config = json.loads((edited / "config.json").read_text())
    (edited / "config.json").write_text(json.dumps(config | {"hidden_dropout_prob": 0.5}))
    tuned = Tuned(edited, tmp_path / "eval", SHORT.model_copy(update={"seeds": 1}))
    tuned.run()
    assert len(list((tmp_path / "eval" / "squad11").glob("*/"))) == 2
    assert "has seeds of other options, files or weights" in caplog.text


def test_an_output_that_is_a_folder_is_refused_before_training(model: Path, tmp_path: Path) -> None:
    (tmp_path / "squad11.json").mkdir()
    with pytest.raises(RelmError, match=r"squad11\.json: is a folder, expected a file"):
        Tuned(model, tmp_path).run()
    assert not (tmp_path / "squad11").exists()


def test_other_options_begin_another_run(whole: Tuned, model: Path, tmp_path: Path) -> None:
    more = SHORT.model_copy(update={"seeds": 1, "longest_answer": 3})
    again = Tuned(model, tmp_path, more)
    again.run()
    assert {path.name for path in (tmp_path / "squad11").glob("*/")}.isdisjoint(
        path.name for path in (whole.folder / "squad11").glob("*/")
    )


def test_another_development_file_gets_figures_of_its_own(model: Path, tmp_path: Path) -> None:
    content = json.loads(SAMPLE.read_text())
    paragraph = content["data"][0]["paragraphs"][0]
    paragraph["qas"] = paragraph["qas"][:1]
    content["data"][0]["paragraphs"] = [paragraph]
    one = tmp_path / "one.json"
    one.write_text(json.dumps(content))
    tuned = Tuned(model, tmp_path, SHORT.model_copy(update={"seeds": 1}))
    tuned.run()
    tuned.run(file=one, training_file=SAMPLE)
    answered = [len(json.loads(path.read_text())) for path in (tmp_path / "squad11").glob("*/seed-5/predictions.json")]
    assert sorted(answered) == [1, 5]


def test_a_model_of_another_kind_is_refused(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "model"
    other.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        content = (model / name).read_bytes()
        (other / name).write_bytes(content.replace(b'"model_type": "bert"', b'"model_type": "gpt2"'))
    with pytest.raises(RelmError, match=r"cannot be read as a BERT or RoBERTa: config.json: model_type is 'gpt2'"):
        Tuned(other, tmp_path).run()


def test_a_file_with_another_sha256_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "made.json").write_text(json.dumps(made_file()))
    with pytest.raises(RelmError, match="has sha256"):
        evaluate_tuning(
            model,
            model / "tokenizer.json",
            SAMPLE,
            tmp_path / "made.json",
            tmp_path / "e.json",
            "e",
            SHORT,
            file_sha256="0" * 64,
        )


def test_it_takes_the_steps_of_transformers_own_model_from_identical_weights(tmp_path: Path) -> None:
    learner = tmp_path / "model"
    learner.mkdir()
    write_model(learner, replace(TINY, initializer_range=0.2, hidden_dropout=0.0, attention_dropout=0.0))
    options = Squad(**SMALL, batch_size=4, epochs=10, seeds=1, learning_rate=1e-3, bias_correction=True)
    Tuned(learner, tmp_path, options, checkpoint_interval=500).run()
    (runs,) = (tmp_path / "squad11").glob("*/")
    start = BertForSpans.on_encoder(learner, torch.Generator().manual_seed(derived_seed(0, "head of answers")))
    (tmp_path / "start").mkdir()
    start.save_folder(tmp_path / "start", {})

    theirs = BertForQuestionAnswering.from_pretrained(tmp_path / "start").train()
    named = dict(theirs.named_parameters())
    matrices = [weight for weight in named.values() if weight.dim() > 1]
    vectors = [weight for weight in named.values() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    optimizer, steps = torch.optim.AdamW(groups, eps=1e-6), 12
    examples = open_examples(runs / "examples" / "manifest.json", "train", Objective(objective="spans", sequence_length=48), 0)
    for step in range(1, steps + 1):
        order = numbers_at(examples, derived_seed(0, "order", "squad"), np.arange(4 * (step - 1), 4 * step))
        batch = {name: torch.from_numpy(array) for name, array in examples.batch(*order).items()}
        starts, ends = batch.pop("answer_positions").T
        theirs(**batch, start_positions=starts, end_positions=ends).loss.backward()
        torch.nn.utils.clip_grad_norm_(named.values(), 1.0)
        for group in optimizer.param_groups:  # a warm-up of one step, and then a line to 0
            group["lr"] = 1e-3 * (steps - step) / (steps - 1)
        optimizer.step()
        optimizer.zero_grad()
    ours = load_file(runs / "seed-0" / "squad" / "model" / "model.safetensors")
    moved = load_file(tmp_path / "start" / "model.safetensors")
    assert set(ours) == set(named)
    for name, weight in named.items():  # each has moved by 1e-2 at most; processors differ by 1e-5
        torch.testing.assert_close(ours[name], weight.detach(), rtol=1e-4, atol=3e-5, msg=lambda m, n=name: f"{n}: {m}")
        assert name.endswith("key.bias") or not torch.equal(ours[name], moved[name]), name
