"""`relm glue` fine-tunes a folder and writes its figures, and refuses what does not fit in words of its options."""

import json
from pathlib import Path

import pytest
import torch

from glue_files import write_parquet, write_tsv
from question_files import SAMPLE
from relm.cli import main
from relm.examples.tokenization.tokenizer_files import import_tokenizer
from relm.models.bert import Bert
from relm.models.bert_configuration import BertConfig


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    bert = Bert(BertConfig(layers=1, heads=2, hidden_size=8, intermediate_size=16, positions=96, vocabulary_size=318))
    bert.initialise(torch.Generator().manual_seed(0))
    bert.save_folder(folder, {})
    vocabulary = SAMPLE.with_name("prose-vocabulary.txt")
    import_tokenizer("bert_wordpiece_uncased", {"vocab.txt": vocabulary}, folder / "tokenizer.json")
    return folder


def run(model: Path, output: Path, task: str, *more: str) -> int:
    train, dev = write_parquet(output.with_name("train.parquet"), task), write_tsv(output.with_name("dev.tsv"), task)
    files = ["--train", str(train), "--dev", str(dev), "--output", str(output), "--task", task]
    return main(["glue", "--model", str(model), *files, "--threads", "1", "--seeds", "2", "--batch-size", "4", *more])


def test_it_writes_figures_of_each_seed_and_predictions_of_both_files(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, other = tmp_path / "mnli.json", write_tsv(tmp_path / "mismatched.tsv", "mnli")
    assert run(model, output, "mnli", "--sequence-length", "96", "--epochs", "1", "--mismatched", str(other)) == 0
    found = json.loads(output.read_text())
    assert found["figures"].keys() >= {"accuracy", "accuracy_std", "accuracy_1", "accuracy_mismatched_1"}
    assert (found["figures"]["seeds"], found["figures"]["examples"], found["protocol"]["epochs"]) == (2, 5, 1)
    answers = [json.loads(path.read_text()) for path in sorted((tmp_path / "mnli").rglob("predictions.json"))]
    assert [{name: len(labels) for name, labels in each.items()} for each in answers] == [{"dev": 5, "dev_mismatched": 5}] * 2
    assert not list(tmp_path.rglob("*.safetensors")), "weights are not kept"
    said = capsys.readouterr().out
    assert "fine-tuned 2 times on mnli and labelled 10 examples: accuracy " in said
    assert ", accuracy mismatched " in said
    record = json.loads((tmp_path / "mnli.json.record.json").read_text())
    assert {Path(file["path"]).name for file in record["inputs"]} >= {"train.parquet", "dev.tsv", "mismatched.tsv"}


FAULTS = {
    "sequences": (
        "rte",
        ["--sequence-length", "128"],
        "sequence_length is 128, but MODEL has 96 positions; give no more",
    ),
    "micro-batches": ("rte", ["--sequence-length", "96", "--micro-batch-size", "3"], "run.micro_batch_size (3) must divide"),
    "an option": ("rte", ["--epochs", "0"], "--epochs: Input should be greater than 0; found 0.0"),
    "a short sequence": ("rte", ["--sequence-length", "5"], "--sequence-length: Input should be greater than 5; found 5"),
    "a hash": ("stsb", ["--sha256", f"dev.tsv={'0' * 64}"], "sha256"),
    "a second file": ("rte", ["--mismatched", "MODEL/config.json"], "config.json: only mnli has a second development file"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_is_refused(fault: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, words, message = FAULTS[fault]
    assert run(model, tmp_path / "task.json", task, *(word.replace("MODEL", str(model)) for word in words)) == 1
    assert message.replace("MODEL", str(model)) in capsys.readouterr().err
    assert not (tmp_path / "task.json").exists()


def test_a_task_must_be_named(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["glue", "--model", str(model), "--train", "a", "--dev", "b", "--output", str(tmp_path / "a.json")]) == 1
    assert "--task is missing; give it, or the test's file with --test" in capsys.readouterr().err


def test_ipus_need_a_pipeline(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, tmp_path / "task.json", "rte", "--device", "ipu") == 1
    assert "--pipeline is missing: ipu needs the split of the model" in capsys.readouterr().err


def test_weights_that_are_cut_off_are_named(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((model / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:-100])
    assert run(tmp_path, tmp_path / "task.json", "rte", "--sequence-length", "96") == 1
    assert f"{tmp_path}: lacks the weights of an encoder: " in capsys.readouterr().err
