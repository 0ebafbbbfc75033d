"""Every benchmark runs to its end at its smallest size; the figures that it prints are not looked at."""

import json
import lzma
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from relm.recipes.curves import load_curve
from relm.recipes.evaluation.reference_runs import ReferenceRuns
from relm.recipes.files.yaml_file import parse_yaml
from small_curves import made_run, write_made_curve
from small_project import CHECKOUT, Commands

BENCHMARKS = CHECKOUT / "benchmarks"
TINY_LOOP = "--length 16 --batch 2 --steps 10 --repeats 1 --tiny"
# Command lines of the benchmarks that need nothing but themselves.
ALONE = {
    "extraction": "extraction.py tests/data/enwiki-sample.xml.bz2 --runs 1 --copies 2",
    "extraction_at_scale": "extraction_at_scale.py tests/data/enwiki-sample.xml.bz2 --copies 1 2 --workers 1 2",
    "gathering": "gathering.py --rows 2000 --rounds 2",
    "generation": "generation.py gpt2 --batch 1 --prompt 4 --length 2 --layers 1 --repeats 1",
    "generation-ipu": "generation.py quickstart --ipu-simulator --batch 2 --prompt 4 --length 2 --layers 1 --repeats 1",
    "gpu_switches-gather": "gpu_switches.py gather --repeats 1",
    "gpu_switches-loss": "gpu_switches.py loss --repeats 1 --positions 8",
    "input-causal": "input.py causal --length 16 --batch 2 --inputs 2 --steps 1 --repeats 1",
    "input-masked": "input.py masked --length 16 --batch 2 --inputs 2 --steps 1 --repeats 1",
    "input-seq2seq": "input.py seq2seq --length 16 --batch 2 --inputs 2 --steps 1 --repeats 1",
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
    "saves": "saves.py --layers 1 --hidden 32 --interval 2 --saves 2 --repeats 1",
    "wikitext": "wikitext.py tests/data/parser_cases.txt tests/data/enwiki-sample.xml.bz2 --without-peers",
    "wikitext_pages": "wikitext_pages.py tests/data/parsoid_page.html --without-peers",
}
# Benchmarks that other tests run, and scripts and modules that a benchmark runs.
ELSEWHERE = {
    "contenders.py": "benchmarks/evaluation.py",
    "xla.py": "tests/training/xla/test_xla_benchmark.py",
    "xla_host.py": "benchmarks/xla.py",
    "own_step_alone.py": "benchmarks/compiled.py",
    "planted_faults.py": "benchmarks/curve_detection.py",
    "transformers_step.py": "benchmarks/compiled.py",
}
OF_OTHER_TESTS = (
    "compiled.py", "curve_detection.py", "defects.py", "evaluation.py", "leave_one_out.py",
    "llama2_c_curves.py", "llm_c_curve.py", "loop.py", "multiple_choice.py", "nanogpt_curves.py", "replay.py",
    "tokenisation.py", "verdict_power.py",
)  # fmt: skip
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
        ways = script, f"from {script.removesuffix('.py')} import"
        assert any(way in (CHECKOUT / runner).read_text() for way in ways), f"{runner} does not run {script}"


@pytest.mark.full
@pytest.mark.parametrize("name", ALONE)
def test_a_benchmark_runs_to_its_end(name: str) -> None:
    assert run(shlex.split(ALONE[name]))


def test_cases_of_a_parser_are_compared_by_what_readers_see() -> None:
    shown = run(shlex.split(f"{ALONE['wikitext']} --differences 1"))
    assert "| relm | all | 3 | 66.7% | 33.3% |" in shown
    assert "MediaWiki: ['3', 'km']" in shown
    assert "| 0.000 |" in shown


def test_paragraphs_of_a_page_are_compared_by_what_readers_see() -> None:
    assert "| parsoid_page | relm | 85.71% | 1 | 1 | 100.00% | 0 | 0 |" in run(shlex.split(ALONE["wikitext_pages"]))


@pytest.mark.full
@pytest.mark.parametrize("objective", ["causal", "masked", "seq2seq"])
def test_whole_runs_are_compared_with_the_trainer_of_transformers(objective: str, harness_python: str) -> None:
    assert "whole run, clock: relm" in run(["loop.py", objective, *TINY_LOOP.split()], python=harness_python)


@pytest.mark.full
def test_tokenisation_is_compared_with_datasets(finished_project: Commands) -> None:
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
def test_evaluation_is_compared_with_lm_eval(
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
def test_choices_are_scored_beside_lm_eval(finished_project: Commands, harness_python: str, tmp_path: Path) -> None:
    (tokenizer,) = finished_project.folder.glob("work/tokenizers/*/tokenizer.json")
    sizes = ["--layers", "1", "--width", "64", "--examples", "6", "--pairs", "1", "--batch-sizes", "2"]
    row = {"goal": "To open a jar,", "sol1": "turn its lid.", "sol2": "freeze the table.", "label": 0}
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps({**row, "id": number}) + "\n" for number in range(6)))
    asked = ["--file", file, "--format", "piqa", "--harness-python", harness_python, *sizes]
    printed = run(["multiple_choice.py", "--tokenizer", tokenizer, *asked])
    assert printed.count("the same log-likelihoods") == 2
    prose = ["--text", CHECKOUT / "tests" / "data" / "prose-sample.txt", "--precisions", "float32", "bfloat16"]
    printed = run(["multiple_choice.py", "--tokenizer", tokenizer, *prose, "--harness-python", harness_python, *sizes])
    assert printed.count("the same log-likelihoods") >= 2
    assert printed.count("other choices") == 4


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
def test_planted_faults_are_watched(tmp_path: Path) -> None:
    """The run without all-reduce has a norm an eighth as large, which shows in runs of any length."""
    text = CHECKOUT / "tests" / "data" / "prose-sample.txt"
    counts = ["--steps", "12", "--repetitions", "4", "--clean", "1", "--faulty", "1", "--orders", "own"]
    printed = run(["curve_detection.py", "--runs", tmp_path, "--text", text, *counts])
    rows = {cells[1].strip(): cells[2:] for line in printed.splitlines() if len(cells := line.split("|")) > 6}
    assert rows["clean"][0].strip() == "0 of 1"
    assert [cell.strip() for cell in rows["no all-reduce over 8 replicas"][:2]] == ["1 of 1", "1"]
    assert "a gradient of one replica only" in rows["no all-reduce over 8 replicas"][4]


# A program with the interface of nanoGPT's train.py, as far as the benchmark touches it from outside.
TRAIN = """
import sys
import torch

options = dict(word.lstrip("-").split("=") for word in sys.argv[2:])
torch.manual_seed(1337)
weights = torch.nn.Parameter(torch.randn(4))
optimizer = torch.optim.AdamW([weights], lr=1e-3)
for update in range(int(options["max_iters"]) + 1):
    optimizer.param_groups[0]["lr"] = 1e-3 * (update + 1)
    if update % 2 == 0:
        print(f"step {update}: train loss 1.0000, val loss 2.0000")
    loss = (weights**2).sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_([weights], 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"iter {update}: loss {loss.item():.4f}, time 1.00ms, mfu -100.00%")
"""


@pytest.mark.full
def test_curves_of_another_program_are_recorded_and_joined(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    both: list[str | Path] = ["--output", tmp_path / "runs", "--seeds", "1337", "5", "--steps", "6"]
    run(["nanogpt_curves.py", "run", "--nanogpt", tmp_path, *both])
    (tmp_path / "made.tsv").write_text(run(["nanogpt_curves.py", "join", *both]))
    curve = load_curve(tmp_path / "made.tsv")
    assert curve.steps == [1, 2, 3, 4, 5, 6]
    assert curve.columns["learning_rate"] == [0.001, 0.002, 0.003, 0.004, 0.005, 0.006]
    assert [value for value in curve.columns["validation_loss"] if value == value] == [2.0, 2.0, 2.0]
    first, second = curve.repetitions("loss")
    assert first[0] != second[0]
    assert curve.columns["loss"][0] == pytest.approx((first[0] + second[0]) / 2, abs=1e-3)
    printed = parse_yaml(run(["nanogpt_curves.py", "figures", *both]), Path("made.yaml"))
    assert printed["runs"] == [{"seed": 1337, "value": 2.0}, {"seed": 5, "value": 2.0}]
    assert set(printed) == set(ReferenceRuns.model_fields)


def test_the_power_of_a_verdict_is_that_of_repeated_experiments() -> None:
    printed = run(["verdict_power.py", *["--tolerance", "0.05", "--standard-deviation", "0.0245", "--reference-runs", "6"]])
    (found,) = re.findall(r"^n = 7, m = 6: power (.*)$", printed, re.M)
    generator = np.random.default_rng(1)
    ours, theirs = (generator.normal(0, 0.0245, (200_000, runs)) for runs in (7, 6))
    # 2.200985 is t(0.975) of 11 degrees of freedom.
    pooled = (6 * ours.var(axis=1, ddof=1) + 5 * theirs.var(axis=1, ddof=1)) / 11
    half_width = 2.200985 * np.sqrt(pooled * (1 / 7 + 1 / 6))
    consistent = abs(ours.mean(axis=1) - theirs.mean(axis=1)) + half_width <= 0.05
    assert float(found) == pytest.approx(consistent.mean(), abs=0.004)


@pytest.mark.full
def test_repetitions_and_our_runs_are_held_against_a_band(tmp_path: Path) -> None:
    curve, results = write_made_curve(tmp_path / "made.tsv"), tmp_path / "results"
    results.mkdir()
    (results / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in made_run(11)))
    (results / "seeds" / "2").mkdir(parents=True)
    faulty = "".join(json.dumps(line) + "\n" for line in made_run(12, factor=2.0))
    (results / "seeds" / "2" / "train.jsonl").write_text(faulty)
    printed = run(["leave_one_out.py", "shakespeare_char", "--curve", curve, "--results", results, "--intervals", "5"])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines() if line.startswith("|")]
    assert ["computed", "5", "0 of 10"] in [row[:3] for row in rows]
    verdicts = {row[0].partition(",")[0]: row[2] for row in rows if row[1] == "computed"}
    assert verdicts["train.jsonl"] == "within the band"
    assert "; as with" in verdicts["seeds/2/train.jsonl"]


@pytest.mark.full
def test_llama2_c_is_compared_with_relm(shared_data: Path, tmp_path: Path) -> None:
    checkout = os.environ.get("RELM_TEST_LLAMA2_C")
    if checkout is None:
        pytest.skip("llama2.c is not part of this repository: RELM_TEST_LLAMA2_C=FOLDER names a checkout of it")
    texts = ["--text", shared_data / "text" / "tinyshakespeare.txt.xz"]
    texts += ["--tokenizer", shared_data / "models" / "stories260K" / "tok512.bin"]
    both: list[str | Path] = ["--output", tmp_path, "--seeds", "1337", "--steps", "3"]
    run(["llama2_c_curves.py", "run", "--llama2-c", checkout, *texts, *both])
    printed = run(["llama2_c_curves.py", "table", *both])
    assert "3 updates; largest difference of learning rates 0.0e+00" in printed
    (away,) = re.findall(r"held-out loss (\S+) away", printed)
    assert abs(float(away)) < 1e-5
    difference = float(printed.partition("| held out |")[2].split("|")[2])
    assert abs(difference) < 0.1


def test_finished_runs_of_llama2_c_become_reference_runs(tmp_path: Path) -> None:
    for seed, loss in ((10, 2.91), (9, 2.9)):
        (tmp_path / f"original-{seed}").mkdir()
        (tmp_path / f"original-{seed}" / "run.json").write_text(json.dumps({"held_out_loss": loss}))
    printed = parse_yaml(run(["llama2_c_curves.py", "figures", "--output", tmp_path]), Path("made.yaml"))
    assert printed["runs"] == [{"seed": 9, "value": 2.9}, {"seed": 10, "value": 2.91}]
    assert set(printed) == set(ReferenceRuns.model_fields)


def test_the_log_of_llm_c_becomes_a_curve(tmp_path: Path) -> None:
    log = "".join(f"s:{step} trl:{9 - step / 1000:.4f} lr:0.000{step % 10}00 norm:1.50\n" for step in range(1021))
    (tmp_path / "main.log").write_text("s:0 tel:9.5000\n" + log + "s:1020 tel:8.0000\n")
    (tmp_path / "made.tsv").write_text(run(["llm_c_curve.py", tmp_path / "main.log"]))
    curve = load_curve(tmp_path / "made.tsv")
    assert curve.steps == [*range(1, 1001), 1010, 1020]
    assert curve.columns["loss"][:2] == [9.0, 8.999]
    assert curve.columns["validation_loss"][-1] == 8.0
    assert curve.rate_rounding == 5e-07


@pytest.mark.full
def test_a_compiled_step_is_compared_with_that_of_transformers(tmp_path: Path) -> None:
    if not (CHECKOUT / ".venv-tpu" / "bin" / "python").exists():
        pytest.skip("the TPU's environment is not here: make .venv-tpu/made-from")
    printed = run(["compiled.py", "roberta_base_v3-8", "--alone"], RELM_WORK=str(tmp_path))
    assert printed.count("ratio ") == 2
