"""Texts that one simulated IPU writes by a loop on the device: those of `transformers`, cut on the host, and their times."""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from uncached_texts import ALL, GREEDY, PENALISED, uncached

from relm.cli import main
from relm.devices.ipu.worker_process import INTERPRETER
from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.generation.ipu_continuation import IpuContinuer, choose_rule, draw_noise
from relm.evaluation.generation.sampling import Sampling, random_stream
from relm.evaluation.generation.stop import Stop
from relm.evaluation.generation.texts import Prompt, Writer, Writing
from relm.evaluation.ipu_model import IpuCausalModel, WritingProgram
from relm.evaluation.models import load_causal
from relm.examples.tokenization.tokenizer_files import load_tokenizer
from relm.models.gpt2 import Gpt2, Gpt2Config

STAND_IN = Path(__file__).parents[1] / "devices" / "ipu"
POSITIONS = 144
TEXTS = [[0, 50, 51], [7], [9, 2, 6, 5, 3, 200], [4, 4]]
SAMPLED = Sampling(0.9, 20, 0.9)
ON_ONE_IPU = Execution("ipu_simulator", threads=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with more positions than a long text has, whose greedy texts do not repeat themselves at once."""
    model = Gpt2(Gpt2Config(2, 2, 32, positions=POSITIONS, vocabulary_size=257, initializer_range=0.3))
    model.initialise(torch.Generator().manual_seed(0))
    path = tmp_path_factory.mktemp("model")
    model.save_folder(path, {"bos_token_id": 0, "eos_token_id": 0})
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[IpuCausalModel]:
    loaded = load_causal(folder, 257, ON_ONE_IPU)
    assert isinstance(loaded, IpuCausalModel)
    yield loaded
    loaded._worker.close()


@pytest.fixture(scope="module")
def writer(folder: Path, evaluated: Any) -> Iterator[Writer]:
    made = Writer(folder, evaluated.tokenizer, ON_ONE_IPU)
    yield made
    assert isinstance(made.model, IpuCausalModel)
    made.model._worker.close()


@pytest.fixture(scope="module")
def on_cpu(folder: Path, evaluated: Any) -> Writer:
    return Writer(folder, evaluated.tokenizer, Execution(threads=1))


def streams(count: int) -> list[torch.Generator]:
    return [random_stream(0, number) for number in range(count)]


@pytest.fixture(scope="module")
def endless(evaluated: Any) -> Stop:
    """A rule by which no text ends."""
    return Stop(load_tokenizer(evaluated.tokenizer), None, ())


def written(model: IpuCausalModel, texts: list[list[int]], length: int, stop: Stop) -> list[list[int]]:
    continuer = IpuContinuer(model)
    continuer.prepare(texts, length, GREEDY)
    return [text[:length] for text in continuer.write(texts, length, GREEDY, streams(len(texts)), stop)]


def test_greedy_texts_of_120_tokens_are_those_without_a_loop_or_cache(
    folder: Path, model: IpuCausalModel, endless: Stop
) -> None:
    expected = uncached(load_causal(folder, 257, Execution(threads=1)), TEXTS, 120)
    assert written(model, TEXTS, 120, endless) == expected
    assert len({token for text in expected for token in text}) > 30, "the texts are not one token again and again"


@pytest.mark.usefixtures("forked_workers")
def test_one_call_of_the_device_writes_a_batch_and_a_shorter_batch_runs_the_same_program(folder: Path, endless: Stop) -> None:
    loaded = load_causal(folder, 257, ON_ONE_IPU)
    assert isinstance(loaded, IpuCausalModel)
    requested: list[str] = []
    request = loaded._worker.request
    loaded._worker.request = lambda kind, *given, **named: requested.append(kind) or request(kind, *given, **named)  # type: ignore[method-assign]
    texts = written(loaded, TEXTS[:2], 8, endless)
    assert requested == ["write", "write"], "the program runs once before, in which it would be compiled"
    assert written(loaded, TEXTS[:1], 5, endless) == [texts[0][:5]]
    assert written(loaded, TEXTS, 3, endless)[:2] == [text[:3] for text in texts], (
        "in two parts, since the program has two rows"
    )
    assert requested == ["write"] * 5
    assert loaded.writing == WritingProgram(2, 64, 8, choose_rule(GREEDY, 257))
    written(loaded, TEXTS[:1], 9, endless)
    assert loaded.writing == WritingProgram(1, 64, 9, choose_rule(GREEDY, 257))
    loaded._worker.close()


def test_a_program_has_as_many_prompt_tokens_as_the_positions_allow(model: IpuCausalModel) -> None:
    assert [model._round_up(*shape) for shape in ((1, 10), (64, 10), (65, 10), (70, 75), (1, 120))] == [64, 64, 128, 70, 25]


def test_a_sampled_text_depends_only_on_the_seed_and_its_number(writer: Writer) -> None:
    prompts = [writer.prompt(text) for text in ("The ", "x", "A longer one", "", "The ")]
    texts = {size: list(writer.texts(prompts, Writing(14, SAMPLED, batch_size=size))) for size in (1, 2, 5)}
    assert texts[1] == texts[2] == texts[5]
    assert texts[1][0].text != texts[1][4].text
    assert list(writer.texts(prompts, Writing(14, SAMPLED, seed=1))) != texts[1]


def test_noise_is_the_standard_gumbel_distribution() -> None:
    noise = draw_noise(streams(2), 1000, 50)
    assert noise.shape == (2, 1000, 50)
    assert noise.mean() == pytest.approx(0.5772, abs=0.02)
    assert noise.std() == pytest.approx(1.2825, abs=0.02)
    assert not torch.equal(noise[0], noise[1])


def test_the_host_cuts_texts_at_their_end(writer: Writer, on_cpu: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts end as those of the CPU do: at a text to stop at, or at an end of text."""
    prompts = [writer.prompt(text) for text in ("x", "yz", "the", "b")]
    plain = list(on_cpu.texts(prompts, Writing(40, GREEDY)))
    stop = plain[0].text[-5]
    writing = Writing(40, GREEDY, stop=stop)
    found = list(writer.texts(prompts, writing))
    assert found == list(on_cpu.texts(prompts, writing))
    assert found[0].ended == "stop"
    ends = frozenset(writer.loaded.tokenizer.encode(stop).ids)
    for each in (writer, on_cpu):
        monkeypatch.setattr(each, "special", dataclasses.replace(each.special, ends=ends))
    found = list(writer.texts(prompts, Writing(40, GREEDY)))
    assert found == list(on_cpu.texts(prompts, Writing(40, GREEDY)))
    assert found[0].ended == "end_of_text"


@pytest.mark.parametrize(
    ("ipus", "longest", "sampling", "loops"),
    [
        (1, 145, GREEDY, True),  # the last of them is not read
        (1, 145, SAMPLED, True),
        (1, 145, Sampling(uniform_top_k=4), True),
        (2, 20, GREEDY, False),
        (1, 146, GREEDY, False),
        (1, 20, PENALISED, False),
        (1, 20, ALL, False),
    ],
)
def test_a_loop_writes_what_fits_into_one_ipu_and_its_positions(
    ipus: int, longest: int, sampling: Sampling, loops: bool, model: IpuCausalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "ipus", ipus)
    assert IpuContinuer(model).loops(longest, sampling) == loops


@pytest.mark.parametrize(
    ("ids", "length", "sampling"), [([3, 4], 6, PENALISED), ([3, 4], 6, ALL), (list(range(1, 141)), 8, GREEDY)]
)
def test_where_a_loop_cannot_write_each_token_takes_a_call_and_a_warning_says_so(
    ids: list[int], length: int, sampling: Sampling, writer: Writer, on_cpu: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(writer.model, IpuCausalModel)
    writer.model.length = 0  # no program yet
    given = [Prompt("", [5]), Prompt("", ids)], Writing(length, sampling, batch_size=1)
    assert list(writer.texts(*given)) == list(on_cpu.texts(*given))
    assert "each token takes a call of the device" in caplog.records[0].getMessage()


def test_logits_that_are_not_finite_are_refused(model: IpuCausalModel, endless: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    request = model._worker.request

    def diverged(kind: str, *given: Any, **named: Any) -> Any:
        answer = request(kind, *given, **named)
        answer.arrays["largest"][0] = float("nan")
        return answer

    monkeypatch.setattr(model._worker, "request", diverged)
    with pytest.raises(RelmError, match="the model's logits are not finite: training diverged"):
        written(model, TEXTS, 4, endless)


def generate(folder: Path, evaluated: Any, *words: str) -> int:
    given = ["--model", str(folder), "--tokenizer", str(evaluated.tokenizer), "--prompt", "ab", "cde", "--threads", "1"]
    return main(["generate", *given, *words])


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_command_prints_latencies_and_writes_the_texts_of_the_cpu(
    precision: str, folder: Path, evaluated: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {}
    for device, more in (("ipu_simulator", ["--layers-per-ipu", "2", "--available-memory-proportion", "0.2"]), ("cpu", [])):
        output = tmp_path / f"{device}.jsonl"
        words = ["--greedy", "--length", "100", "--precision", precision, "--device", device, *more, "--output", str(output)]
        assert generate(folder, evaluated, *words) == 0
        texts[device] = [json.loads(line) for line in output.read_text().splitlines()]
        if device == "ipu_simulator":
            printed = capsys.readouterr().err
    if precision == "float32":
        assert texts["ipu_simulator"] == texts["cpu"]
    lines = printed[printed.index("latency avg per sentence: ") :].split("\n")
    assert lines[1].startswith("Per-token latency avg: ")
    assert lines[2].startswith("Batch size: 2; Input length 2.5; Output length ")
    assert lines[3].endswith(" tokens/s")
    assert "each token takes a call of the device" not in printed


def test_the_command_writes_the_same_texts_through_poptorch(
    folder: Path, evaluated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in computes for PopTorch on the CPU; the command, the worker and the program are the real ones."""
    (tmp_path / "poptorch.py").write_text(
        "import sys, torch, poptorch_stand_in\ntorch.__version__ = '2.0.1'\nsys.modules['poptorch'] = poptorch_stand_in\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(STAND_IN)]))
    monkeypatch.setenv(INTERPRETER, sys.executable)
    words = ["--greedy", "--length", "100", "--output"]
    cache = ["--device", "ipu", "--executable-cache", str(tmp_path / "compiled")]
    assert generate(folder, evaluated, *words, str(tmp_path / "ipu.jsonl"), *cache) == 0
    assert (tmp_path / "compiled").is_dir()
    assert generate(folder, evaluated, *words, str(tmp_path / "cpu.jsonl")) == 0
    assert (tmp_path / "ipu.jsonl").read_text() == (tmp_path / "cpu.jsonl").read_text()
    assert generate(folder, evaluated, *words, str(tmp_path / "half.jsonl"), "--device", "ipu", "--precision", "float16") == 0
