"""`relm squad` and `relm glue` fine-tune a folder and write its figures, and refuse what does not fit by their options."""

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

Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    bert = Bert(BertConfig(layers=1, heads=2, hidden_size=8, intermediate_size=16, positions=96, vocabulary_size=318))
    bert.initialise(torch.Generator().manual_seed(0))
    bert.save_folder(folder, {})
    vocabulary = SAMPLE.with_name("prose-vocabulary.txt")
    import_tokenizer("bert_wordpiece_uncased", {"vocab.txt": vocabulary}, folder / "tokenizer.json")
    return folder


def run(task: str, model: Path, output: Path, *more: str) -> int:
    """Fine-tune on SQuAD or a task of GLUE, and return the exit status; MODEL in the options is the model's folder."""
    train = dev = SAMPLE
    if task != "squad":
        train, dev = write_parquet(output.with_name("train.parquet"), task), write_tsv(output.with_name("dev.tsv"), task)
    command = ["squad"] if task == "squad" else ["glue", "--task", task]
    files = ["--model", str(model), "--train", str(train), "--dev", str(dev), "--output", str(output)]
    words = [word.replace("MODEL", str(model)) for word in more]
    return main([*command, *files, "--threads", "1", "--seeds", "2", "--batch-size", "4", *words])


def answers_of(output: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(output.with_suffix("").rglob("predictions.json"))]


def test_squad_writes_figures_of_each_seed_and_answers_in_the_official_format(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "squad11.json"
    assert run("squad", model, output, "--sequence-length", "96", "--epochs", "1") == 0
    found = json.loads(output.read_text())
    assert (found["figures"]["seeds"], found["figures"]["questions"], found["protocol"]["epochs"]) == (2, 5, 1)
    assert list(map(len, answers_of(output))) == [5, 5]
    assert not list(tmp_path.rglob("*.safetensors")), "weights are not kept"


def test_glue_writes_figures_of_each_seed_and_predictions_of_both_files(model: Path, tmp_path: Path, capsys: Printed) -> None:
    output, other = tmp_path / "mnli.json", write_tsv(tmp_path / "mismatched.tsv", "mnli")
    assert run("mnli", model, output, "--sequence-length", "96", "--epochs", "1", "--mismatched", str(other)) == 0
    found = json.loads(output.read_text())
    assert found["figures"].keys() >= {"accuracy", "accuracy_std", "accuracy_1", "accuracy_mismatched_1"}
    assert (found["figures"]["seeds"], found["figures"]["examples"], found["protocol"]["epochs"]) == (2, 5, 1)
    predicted = [{name: len(labels) for name, labels in each.items()} for each in answers_of(output)]
    assert predicted == [{"dev": 5, "dev_mismatched": 5}] * 2
    said = capsys.readouterr().out
    assert "fine-tuned 2 times on mnli and labelled 10 examples: accuracy " in said
    assert ", accuracy mismatched " in said
    record = json.loads((tmp_path / "mnli.json.record.json").read_text())
    assert {Path(file["path"]).name for file in record["inputs"]} >= {"train.parquet", "dev.tsv", "mismatched.tsv"}


WHOLE = ["--sequence-length", "96"]
NO_POSITIONS = "sequence_length is 128, but MODEL has 96 positions; shorten it"
FAULTS = {
    "sequences": ("squad", ["--sequence-length", "128"], NO_POSITIONS),
    "sequences of GLUE": ("rte", ["--sequence-length", "128"], NO_POSITIONS),
    "micro-batches": ("squad", [*WHOLE, "--micro-batch-size", "3"], "run.micro_batch_size (3) must divide"),
    "an option": ("rte", ["--epochs", "0"], "epochs: expected greater than 0; found 0.0"),
    "a short sequence": ("rte", ["--sequence-length", "5"], "sequence_length: expected greater than 5; found 5"),
    "a hash": ("squad", ["--sha256", f"{SAMPLE.name}={'0' * 64}"], "sha256"),
    "a hash of GLUE": ("stsb", ["--sha256", f"dev.tsv={'0' * 64}"], "sha256"),
    "a second file": ("rte", ["--mismatched", "MODEL/config.json"], "config.json: only mnli has a second development file"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_is_refused(fault: str, model: Path, tmp_path: Path, capsys: Printed) -> None:
    task, words, message = FAULTS[fault]
    assert run(task, model, tmp_path / "task.json", *words) == 1
    assert message.replace("MODEL", str(model)) in capsys.readouterr().err
    assert not (tmp_path / "task.json").exists()


def pipeline(**keys: object) -> list[str]:
    return ["--pipeline", json.dumps({"layers_per_ipu": [1], **keys})]


ON_IPUS = {
    "no pipeline": ([], "--pipeline is missing: ipu needs the split of the model, such as --pipeline '{"),
    "an unknown key": (pipeline(replica=2), "replica: unknown key; did you mean replicas?"),
    "a batch that is no multiple": (pipeline(replicas=3), "--batch-size is 4, but --pipeline has micro_batch_size 1 x"),
    "another batch": (pipeline(gradient_accumulation=8), "--batch-size is 4, but --pipeline has micro_batch_size 1 x"),
    "too few micro-batches": (pipeline(layers_per_ipu=[0, 1], position_embedding=0), "3 forward stages need at least 2 * 3 -"),
    "several hosts": (pipeline(replicas=2, instances=2), "--pipeline: instances is 2, but one process on one host fine-tunes"),
    "several updates a call": (pipeline(device_iterations=2), "--pipeline: device_iterations is 2, but in fine-tuning each"),
    "other layers": (pipeline(layers_per_ipu=[2]), "--pipeline: layers_per_ipu has 2 layers, but MODEL has 1; make the sum"),
    "micro-batches of its own": ([*pipeline(), "--micro-batch-size", "2"], "--micro-batch-size is 2, but --pipeline has a"),
    "a precision beside": ([*pipeline(), "--precision", "bfloat16"], "--precision is bfloat16, but on an IPU"),
    "a norm in float16": (pipeline(first_moment_precision="float16"), "--pipeline: first_moment_precision is float16, but the"),
    "a part of the optimizer state each": (
        pipeline(replicas=2, replicated_tensor_sharding=True),
        "--pipeline: replicated_tensor_sharding is true, but the gradient is clipped, for which each replica needs the whole",
    ),
    "another device": ([*pipeline(), "--device", "cpu"], "--pipeline: needs --device ipu or ipu_simulator, found cpu"),
}


@pytest.mark.parametrize(("task", "fault"), [*(("squad", fault) for fault in ON_IPUS), ("rte", "no pipeline")])
def test_what_ipus_cannot_fine_tune_is_refused_before_anything_is_written(
    task: str, fault: str, model: Path, tmp_path: Path, capsys: Printed
) -> None:
    words, message = ON_IPUS[fault]
    (tmp_path / "output").mkdir()
    output = tmp_path / "output" / "squad11.json"
    assert run(task, model, output, "--device", "ipu", *WHOLE, *words) == 1
    assert message.replace("MODEL", str(model)) in capsys.readouterr().err
    assert not output.with_suffix("").exists()


@pytest.mark.usefixtures("forked_workers")
def test_a_pipeline_is_yaml_as_in_a_recipe(model: Path, tmp_path: Path, capsys: Printed) -> None:
    output, words = tmp_path / "squad11.json", ["--device", "ipu_simulator", "--seeds", "1", "--epochs", "1", "--pipeline"]
    with pytest.raises(SystemExit):
        run("squad", model, output, *WHOLE, *words, "pipeline.yaml")
    assert "--pipeline: expected a mapping such as '{layers_per_ipu: [3, 9]}', found pipeline.yaml" in capsys.readouterr().err
    assert run("squad", model, output, *WHOLE, *words, "layers_per_ipu: [1]\nreplicas: 2\nprecision: float32\n") == 0
    assert json.loads(output.read_text())["figures"]["questions"] == 5


def test_a_task_must_be_named_and_a_tests_file_has_it_with_the_hashes(model: Path, tmp_path: Path, capsys: Printed) -> None:
    (tmp_path / "dev.json").write_bytes(SAMPLE.read_bytes())
    files = ["--train", str(SAMPLE), "--dev", str(tmp_path / "dev.json"), "--model", str(model)]
    for command, test, message in (
        ("glue", [], "--task is missing; give it, or the test's file with --test"),
        ("glue", ["--test", "recipes/evaluations/glue_rte.yaml"], "give a file of GLUE's rte"),
        ("squad", ["--test", "recipes/evaluations/squad11.yaml"], f"{SAMPLE}: sha256 is "),
    ):
        assert main([command, *files, *test, "--output", str(tmp_path / "a.json")]) == 1
        assert message in capsys.readouterr().err


def test_weights_that_are_cut_off_are_named(model: Path, tmp_path: Path, capsys: Printed) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((model / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:-100])
    assert run("rte", tmp_path, tmp_path / "task.json", *WHOLE) == 1
    assert f"{tmp_path}: lacks the weights of an encoder: " in capsys.readouterr().err
