"""GPT-2 on simulated IPUs: evaluations have the figures of the CPU, and texts are those of a model without a pipeline."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from uncached_texts import ALL, GREEDY, PENALISED, uncached

from relm.cli import main
from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.generation.ipu_continuation import IpuContinuer
from relm.evaluation.generation.sampling import Sampling, random_stream
from relm.evaluation.generation.stop import Stop
from relm.evaluation.ipu_model import IpuCausalModel
from relm.evaluation.models import load_causal
from relm.evaluation.scoring import ScoredSequences, score
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.recipes.devices import find_evaluation_device, list_inference_devices

CPU = Execution(threads=1)
TEXTS = [[0, 50, 51], [7], [9, 2, 6, 5, 3, 200], [4, 4]]

pytestmark = pytest.mark.usefixtures("forked_workers")


def simulated(**options: Any) -> Execution:
    return Execution("ipu_simulator", threads=1, **options)


@pytest.fixture(scope="module")
def own(evaluated: Any) -> Any:
    return load_causal(evaluated.model, 257, CPU)


@pytest.fixture(scope="module")
def divided(evaluated: Any) -> Iterator[Any]:
    model = load_causal(evaluated.model, 257, simulated(layers_per_ipu=(0, 1, 1)))
    assert isinstance(model, IpuCausalModel)
    yield model
    model._worker.close()


def test_ipus_are_for_commands_and_never_for_a_graphs_evaluations() -> None:
    assert list_inference_devices() == ["cpu", "cuda", "ipu", "ipu_simulator"]
    assert find_evaluation_device("ipu") == "cpu"


def test_the_heads_input_and_logits_are_those_of_the_whole_model(own: Any, divided: Any) -> None:
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, 257, (3, 16)))
    with torch.inference_mode():
        expected = own.hidden(ids)
        torch.testing.assert_close(divided.hidden(ids), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(divided.head(expected[0]), own.head(expected[0]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("batch_tokens", [1, 40, 1000])
def test_scores_of_sequences_of_any_length_are_those_of_the_cpu(own: Any, divided: Any, batch_tokens: int) -> None:
    tokens = np.random.default_rng(2).integers(0, 257, 90)
    starts = np.array([0, 3, 20, 41, 50, 60, 61])
    ends = np.array([17, 9, 37, 44, 53, 77, 70])
    sequences = ScoredSequences(tokens, starts, ends, scored=np.array([16, 2, 5, 1, 2, 16, 3]))
    expected, found = (score(model, sequences, batch_tokens, lambda _: None) for model in (own, divided))
    np.testing.assert_allclose(found.nats, expected.nats, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found.likeliest, expected.likeliest)


def test_shorter_batches_and_larger_ones_run_the_program_of_the_first(evaluated: Any, own: Any) -> None:
    model = load_causal(evaluated.model, 257, simulated())
    shapes = []
    for sequences, length in ((2, 12), (5, 7), (1, 12), (3, 1)):
        ids = torch.arange(sequences * length).reshape(sequences, length) % 257
        with torch.inference_mode():
            torch.testing.assert_close(model.hidden(ids), own.hidden(ids), rtol=1e-5, atol=1e-5)
        shapes.append((model.sequences, model.length))
    assert shapes == [(2, 12)] * 4
    model._worker.close()


@pytest.mark.parametrize("sampling", [GREEDY, ALL, PENALISED, Sampling(uniform_top_k=4)], ids=str)
def test_texts_are_those_of_a_model_that_reads_each_window_by_itself(
    evaluated: Any, own: Any, divided: Any, sampling: Sampling
) -> None:
    """Also beyond the model's 16 positions, where the window moves."""
    texts = TEXTS[:1] if sampling is PENALISED else TEXTS  # a writer never pads where it penalises
    streams = [random_stream(0, number) for number in range(len(texts))]
    endless = Stop(load_tokenizer(evaluated.tokenizer), None, ())
    assert IpuContinuer(divided).write(texts, 20, sampling, streams, endless) == uncached(own, texts, 20, sampling)


def test_a_program_is_compiled_before_the_time_is_taken_and_once(divided: Any) -> None:
    continuer = IpuContinuer(divided)
    continuer.prepare([[1], [2, 3]], 30, GREEDY)
    assert divided.length == divided.positions, "no text is longer"
    sequences = divided.sequences
    continuer.prepare([[1]], 3, GREEDY)
    assert (divided.sequences, divided.length) == (sequences, divided.positions)


JOBS: dict[str, dict[str, Any]] = {
    "held_out": {"evaluation": "held_out", "context": 16},
    "wikitext": {"evaluation": "perplexity", "options": {"detokeniser": "gpt2_wikitext", "stride": 4}},
    "lambada": {"evaluation": "lambada", "options": {}},
}
TEXT = {
    "wikitext": " = A page = \n\nthe cat , which sat on the mat , saw a dog .\n" * 3,
    "lambada": "".join(json.dumps({"text": f"the {n} cats sat on it"}) + "\n" for n in range(5)),
}


@pytest.mark.parametrize("task", JOBS)
def test_the_evaluate_command_has_the_same_figures_on_simulated_ipus(task: str, evaluated: Any, tmp_path: Path) -> None:
    inputs = ["--manifest", str(evaluated.manifest)]
    if task in TEXT:
        (tmp_path / "text").write_text(TEXT[task])
        inputs = ["--file", str(tmp_path / "text"), "--tokenizer", str(evaluated.tokenizer)]
    results = []
    for device, more in (("cpu", []), ("ipu_simulator", ["--layers-per-ipu", "1", "1"])):
        output = tmp_path / f"{device}.json"
        given = ["--job", json.dumps(JOBS[task]), "--model", str(evaluated.model), *inputs, "--output", str(output)]
        assert main([JOBS[task]["evaluation"].replace("_", "-"), *given, "--threads", "1", "--device", device, *more]) == 0
        results.append(json.loads(output.read_text()))
    assert results[1]["figures"] == pytest.approx(results[0]["figures"], rel=1e-6)
    assert results[1]["protocol"] == results[0]["protocol"]


def generate(evaluated: Any, *words: str) -> int:
    given = ["--model", str(evaluated.model), "--tokenizer", str(evaluated.tokenizer), "--prompt", "ab", "--length", "3"]
    return main(["generate", *given, "--threads", "1", *words])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "ipu_simulator", "--layers-per-ipu", "1", "2"], "--layers-per-ipu: 1 2 covers 3 layers, but "),
        (
            ["--device", "ipu_simulator", "--precision", "float16"],
            "--precision: ipu_simulator computes in float32 and bfloat16, f",
        ),
        (["--device", "ipu", "--precision", "bfloat16"], "--precision: ipu computes in float32 and float16, found bfloat16"),
        (["--device", "cpu", "--layers-per-ipu", "2"], "--layers-per-ipu: needs --device ipu or ipu_simulator, found cpu"),
        (
            ["--device", "cpu", "--available-memory-proportion", "0.2"],
            "--available-memory-proportion: needs --device ipu or ipu_simulator, found cpu; remove it",
        ),
        (["--device", "cuda", "--executable-cache", "here"], "--executable-cache: needs --device ipu or ipu_simulator, f"),
        (
            ["--device", "ipu", "--layers-per-ipu", "1", "1", "--available-memory-proportion", "0.2"],
            "--available-memory-proportion: expected a number above 0 and up to 1 for each of 2 IPUs, found 0.2",
        ),
        (
            ["--device", "ipu", "--available-memory-proportion", "1.5"],
            "--available-memory-proportion: expected a number above 0 and up to 1 for the IPU, found 1.5",
        ),
        (["--device", "cpu", "--precision", "float16"], "--precision: cpu computes in float32 and bfloat16, found float16"),
    ],
)
def test_requests_that_do_not_go_together_are_refused(
    words: list[str], message: str, evaluated: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(evaluated, *words) == 1
    assert capsys.readouterr().err.startswith(f"relm generate: {message}")


def test_other_models_and_the_harness_are_refused(tmp_path: Path) -> None:
    message = "--device: ipu_simulator evaluates only relm's own GPT-2, BERT and RoBERTa, and not this model or task; give"
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=61, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
        )
    ).save_pretrained(tmp_path)
    with pytest.raises(RelmError, match=message):
        load_causal(tmp_path, 61, simulated())
    with pytest.raises(RelmError, match=message):
        simulated().open()


def test_a_python_without_poptorch_is_named(evaluated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELM_IPU_PYTHON", sys.executable)
    with pytest.raises(RelmError, match=r"poptorch.*enable Graphcore's SDK"):
        load_causal(evaluated.model, 257, Execution("ipu", threads=1))
