"""Every benchmark runs to its end at its smallest size; the figures that it prints are not looked at."""

import json
import lzma
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest

from small_project import CHECKOUT, Commands

BENCHMARKS = CHECKOUT / "benchmarks"
TINY_LOOP = "--length 16 --batch 2 --steps 10 --repeats 1 --tiny"
SMALL_MODEL = json.dumps({"model": {"layers": 1, "hidden_size": 32, "heads": 2, "vocabulary_size": 600}})
# Command lines of the benchmarks that need nothing but themselves.
ALONE = {
    "estimate-gpt2": f"estimate.py gpt2 --steps 40 --changes '{SMALL_MODEL}'",
    "estimate-bert": f"estimate.py bert --steps 40 --changes '{SMALL_MODEL}'",
    "extraction": "extraction.py tests/data/enwiki-sample.xml.bz2",
    "gathering": "gathering.py --rows 2000 --rounds 2",
    "generation": "generation.py gpt2 --batch 1 --prompt 4 --length 2 --layers 1 --repeats 1",
    "generation-ipu": "generation.py quickstart --ipu-simulator --batch 2 --prompt 4 --length 2 --layers 1 --repeats 1",
    "input-causal": "input.py causal --length 16 --batch 2 --inputs 2 --steps 1 --repeats 1",
    "input-masked": "input.py masked --length 16 --batch 2 --inputs 2 --steps 1 --repeats 1",
    "input-seq2seq": "input.py seq2seq --length 16 --batch 2 --inputs 2 --steps 1 --repeats 1",
    "input-span_corruption": "input.py span_corruption --length 16 --batch 2 --inputs 2 --steps 1 --repeats 1",
    "overhead-causal": f"loop.py overhead causal {TINY_LOOP}",
    "overhead-masked": f"loop.py overhead masked {TINY_LOOP}",
    "overhead-seq2seq": f"loop.py overhead seq2seq {TINY_LOOP}",
    "masking": "masking.py --runs 1 --documents 20",
    "models-bert": "models.py bert-base --length 16 --masked 2 --batch 1 --layers 1 --repeats 1",
    "optimizers": "optimizers.py --layers 1 --hidden 32 --repeats 2",
    "order": "order.py --positions 4096",
    "parsing": "parsing.py --runs 1",
    "resume": "resume.py --tokens 10000000 --layers 1 --hidden 32 --repeats 1",
    "sample_index": "sample_index.py --documents 1000 --runs 1",
}
# Benchmarks that other tests run, and scripts that a benchmark runs.
ELSEWHERE = {
    "xla.py": "tests/training/xla/test_xla_benchmark.py",
    "xla_host.py": "benchmarks/xla.py",
    "own_step_alone.py": "benchmarks/compiled.py",
    "transformers_step.py": "benchmarks/compiled.py",
}
OF_OTHER_TESTS = ("compiled.py", "defects.py", "evaluation.py", "loop.py", "replay.py", "tokenisation.py")
pytestmark = pytest.mark.timeout(900)


def run(arguments: Sequence[str | Path], folder: Path = CHECKOUT, python: str = sys.executable, **environment: str) -> str:
    """Run a benchmark to its end and return what it printed."""
    script, *others = map(str, arguments)
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT / "src"), **environment}
    command = [python, str(BENCHMARKS / script), *others]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def harness_python() -> str:
    """The interpreter that has the peers which the project's own environment lacks: lm_eval and accelerate."""
    python = CHECKOUT / ".venv" / "harness" / "bin" / "python"
    if not python.exists():
        pytest.skip("the environment of the reference harness is not here: make harness")
    return str(python)


def test_every_benchmark_is_run_by_a_test() -> None:
    scripts = {path.name for path in BENCHMARKS.glob("*.py")}
    assert scripts == {line.split()[0] for line in ALONE.values()} | {*ELSEWHERE, *OF_OTHER_TESTS}
    for script, runner in ELSEWHERE.items():
        assert script in (CHECKOUT / runner).read_text(), f"{runner} does not run {script}"


@pytest.mark.full
@pytest.mark.parametrize("name", ALONE)
def test_a_benchmark_runs_to_its_end(name: str) -> None:
    assert run(shlex.split(ALONE[name]))


@pytest.mark.full
@pytest.mark.parametrize("objective", ["causal", "masked", "seq2seq"])
def test_whole_runs_stand_beside_the_trainer_of_transformers(objective: str, harness_python: str) -> None:
    assert "whole run, clock: relm" in run(["loop.py", objective, *TINY_LOOP.split()], python=harness_python)


@pytest.mark.full
def test_tokenisation_stands_beside_datasets(finished_project: Commands) -> None:
    (documents,) = finished_project.folder.glob("work/documents/*/sample.xml.train.jsonl")
    (tokenizer,) = finished_project.folder.glob("work/tokenizers/*/tokenizer.json")
    assert "datasets.map" in run(["tokenisation.py", documents, "--tokenizer", tokenizer, "--workers", "1", "--runs", "1"])


@pytest.mark.full
def test_a_replayed_segment_is_measured(finished_copy: Commands) -> None:
    printed = run(["replay.py", "--recipe", "tiny", "--start", "6", "--steps", "6"], folder=finished_copy.folder)
    assert "another order" in printed


def beginning(packed: Path, lines: int, target: Path) -> Path:
    """Write the first lines of an .xz file."""
    with lzma.open(packed, "rt", encoding="utf-8") as file:
        target.write_text("".join(islice(file, lines)), encoding="utf-8")
    return target


@pytest.mark.full
def test_evaluation_stands_beside_lm_eval(
    finished_project: Commands, harness_python: str, shared_data: Path, tmp_path: Path
) -> None:
    (tokenizer,) = finished_project.folder.glob("work/tokenizers/*/tokenizer.json")
    lambada = beginning(shared_data / "lambada" / "lambada_test.jsonl.xz", 10, tmp_path / "lambada.jsonl")
    wikitext = beginning(shared_data / "wikitext-103" / "wiki.test.tokens.xz", 40, tmp_path / "wiki.tokens")
    sizes = ["--layers", "1", "--width", "64", "--examples", "2", "--windows", "1", "--pairs", "1", "--batch-sizes", "2"]
    texts: list[str | Path] = ["--tokenizer", tokenizer, "--lambada", lambada, "--wikitext", wikitext]
    printed = run(["evaluation.py", *texts, "--harness-python", harness_python, *sizes])
    assert "another figure" not in printed
    assert printed.count("the same figure") == 6


@pytest.mark.full
def test_defects_are_counted_in_real_text(shared_data: Path, tmp_path: Path) -> None:
    wikitext = beginning(shared_data / "wikitext-2-raw" / "wiki.valid.raw.xz", 400, tmp_path / "wiki.valid.raw")
    folders = {"bert": "bert-base-uncased", "roberta": "roberta-fairseq", "gpt2": "gpt2"}
    named = [word for option, folder in folders.items() for word in (f"--{option}", str(shared_data / "tokenizers" / folder))]
    assert "| defect |" in run(["defects.py", wikitext, *named])


NANOGPT = """
import torch
from relm.models.gpt2 import Gpt2, Gpt2Config

TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


class GPTConfig:
    def __init__(self, **sizes):
        self.sizes = sizes


class GPT(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        sizes = config.sizes
        self.model = Gpt2(Gpt2Config(
            layers=sizes["n_layer"], heads=sizes["n_head"], hidden_size=sizes["n_embd"], positions=sizes["block_size"],
            vocabulary_size=sizes["vocab_size"], biases=sizes["bias"], dropout=0.0,
        ))
        self.model.initialise(torch.Generator().manual_seed(0))

    def state_dict(self):
        return {name: w.t() if name.endswith(TRANSPOSED) else w for name, w in self.model.state_dict().items()}

    def configure_optimizers(self, decay, rate, betas, device):
        return torch.optim.AdamW(self.parameters(), lr=rate, betas=betas, weight_decay=decay)

    def forward(self, inputs, labels):
        term = self.model.terms({"input_ids": inputs, "labels": labels})["next_token"]
        return None, term.nats / term.count
"""


@pytest.mark.full
def test_a_compiled_step_stands_beside_that_of_transformers(tmp_path: Path) -> None:
    if not (CHECKOUT / ".venv-tpu" / "bin" / "python").exists():
        pytest.skip("the TPU's environment is not here: make .venv-tpu/made-from")
    printed = run(["compiled.py", "roberta_base_v3-8", "--alone"], RELM_WORK=str(tmp_path))
    assert printed.count("ratio ") == 2
