"""`relm squad` fine-tunes a folder and writes its figures, and refuses what does not fit in words of its options."""

import json
from pathlib import Path

import pytest
import torch

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


ON_IPUS = {
    "no pipeline": ([], "--pipeline is missing: ipu needs the split of the model, such as --pipeline '{"),
    "no JSON": (["--pipeline", "{'layers_per_ipu': [1]}"], "--pipeline: not valid JSON (Expecting property name"),
    "no file": (["--pipeline", "absent.yaml"], "absent.yaml: no such file"),
    "an unknown key": (["--pipeline", '{"layers_per_ipu": [1], "replica": 2}'], "replica: unknown key; did you mean replicas?"),
    "a batch that is no multiple": (
        ["--pipeline", '{"layers_per_ipu": [1], "replicas": 3}'],
        "--batch-size is 4, but --pipeline has micro_batch_size 1 x replicas 3; give a multiple of 3",
    ),
    "another batch": (
        ["--pipeline", '{"layers_per_ipu": [1], "gradient_accumulation": 8}'],
        "--batch-size is 4, but --pipeline has micro_batch_size 1 x gradient_accumulation 8 x replicas 1 = 8 sequences",
    ),
    "too few micro-batches": (
        ["--pipeline", '{"layers_per_ipu": [0, 1], "position_embedding": 0}'],
        "3 forward stages need at least 2 * 3 - 1 = 5 micro-batches in an update, found 4",
    ),
    "several hosts": (
        ["--pipeline", '{"layers_per_ipu": [1], "replicas": 2, "instances": 2}'],
        "--pipeline: instances is 2, but one process on one host fine-tunes; set it to 1",
    ),
    "several updates a call": (
        ["--pipeline", '{"layers_per_ipu": [1], "device_iterations": 2}'],
        "--pipeline: device_iterations is 2, but each update of fine-tuning has its own learning rate; set it to 1",
    ),
    "other layers": (
        ["--pipeline", '{"layers_per_ipu": [2]}'],
        "--pipeline: layers_per_ipu has 2 layers, but MODEL has 1; make the sum equal",
    ),
    "micro-batches of its own": (
        ["--pipeline", '{"layers_per_ipu": [1]}', "--micro-batch-size", "2"],
        "--micro-batch-size is 2, but --pipeline has a micro_batch_size, 1; leave --micro-batch-size out",
    ),
    "a precision beside": (
        ["--pipeline", '{"layers_per_ipu": [1]}', "--precision", "bfloat16"],
        "--precision is bfloat16, but on an IPU --pipeline's precision counts, found float16; leave --precision out",
    ),
    "a norm in float16": (
        ["--pipeline", '{"layers_per_ipu": [1], "first_moment_precision": "float16"}'],
        "--pipeline: first_moment_precision is float16, but the gradient is clipped, which needs float32; leave it out",
    ),
    "a part of the optimizer state each": (
        ["--pipeline", '{"layers_per_ipu": [1], "replicas": 2, "replicated_tensor_sharding": true}'],
        "--pipeline: replicated_tensor_sharding is true, but the gradient is clipped, for which each replica needs the whole",
    ),
    "another device": (
        ["--pipeline", '{"layers_per_ipu": [1]}', "--device", "cpu"],
        "--pipeline: goes with --device ipu or ipu_simulator, found cpu; leave it out",
    ),
}


@pytest.mark.parametrize("fault", ON_IPUS)
def test_what_ipus_cannot_fine_tune_is_refused_before_anything_is_written(
    fault: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, message = ON_IPUS[fault]
    output = tmp_path / "output" / "squad11.json"
    assert run(model, output, "--device", "ipu", "--sequence-length", "96", *words) == 1
    assert message.replace("MODEL", str(model)) in capsys.readouterr().err
    assert not output.with_suffix("").exists()


@pytest.mark.parametrize(
    ("evaluation", "words", "message"),
    [
        (
            "squad",
            ["--layers-per-ipu", "1"],
            "--layers-per-ipu has no effect when a model is fine-tuned; --pipeline splits it over IPUs",
        ),
        (
            "samples",
            ["--pipeline", "{}"],
            "--pipeline: goes with an evaluation that fine-tunes a model; leave it out",
        ),
    ],
)
def test_an_option_of_another_evaluation_is_refused(
    evaluation: str, words: list[str], message: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--training-file", str(SAMPLE), "--file", str(SAMPLE)] if evaluation == "squad" else []
    job = json.dumps({"evaluation": evaluation})
    given = ["--job", job, "--model", str(model), *files, "--device", "ipu", "--output", str(tmp_path / "task.json")]
    assert main(["evaluate", *given, *words]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("forked_workers")
def test_a_pipeline_is_a_file_as_well(model: Path, tmp_path: Path) -> None:
    file, output = tmp_path / "pipeline.yaml", tmp_path / "squad11.json"
    file.write_text("layers_per_ipu: [1]\nreplicas: 2\nprecision: float32\n")
    words = ["--device", "ipu_simulator", "--pipeline", str(file), "--seeds", "1", "--sequence-length", "96", "--epochs", "1"]
    assert run(model, output, *words) == 0
    assert json.loads(output.read_text())["figures"]["questions"] == 5
