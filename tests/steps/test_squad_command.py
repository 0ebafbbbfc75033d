"""`relm squad` fine-tunes a folder and writes its figures, and refuses what does not fit in words of its options."""

import json
from pathlib import Path

import pytest
import torch

from question_files import SAMPLE
from relm.cli import main
from relm.examples.tokenizers import import_tokenizer
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


def run(model: Path, output: Path, *more: str) -> int:
    files = ["--train", str(SAMPLE), "--dev", str(SAMPLE), "--output", str(output)]
    return main(["squad", "--model", str(model), *files, "--threads", "1", "--seeds", "2", "--batch-size", "4", *more])


def test_it_writes_figures_of_each_seed_and_answers_in_the_official_format(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "squad11.json"
    assert run(model, output, "--sequence-length", "96", "--epochs", "1") == 0
    found = json.loads(output.read_text())
    assert (found["figures"]["seeds"], found["figures"]["questions"], found["protocol"]["epochs"]) == (2, 5, 1)
    answers = [json.loads(path.read_text()) for path in sorted((tmp_path / "squad11").rglob("predictions.json"))]
    assert len(answers) == 2
    assert all(len(each) == 5 for each in answers)
    assert not list(tmp_path.rglob("*.safetensors")), "weights are not kept"


FAULTS = {
    "sequences": (["--sequence-length", "128"], "sequence_length is 128, but MODEL has 96 positions; give no more"),
    "micro-batches": (["--sequence-length", "96", "--micro-batch-size", "3"], "run.micro_batch_size (3) must divide"),
    "an option": (["--epochs", "0"], "--epochs: Input should be greater than 0; found 0.0"),
    "a hash": (["--sha256", f"{SAMPLE.name}={'0' * 64}"], "sha256"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_is_refused(fault: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, message = FAULTS[fault]
    assert run(model, tmp_path / "squad11.json", *words) == 1
    assert message.replace("MODEL", str(model)) in capsys.readouterr().err
    assert not (tmp_path / "squad11.json").exists()


def test_an_ipu_is_no_device_of_fine_tuning(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(model, tmp_path / "task.json", "--device", "ipu")
    assert "argument --device: invalid choice: 'ipu' (choose from" in capsys.readouterr().err
