"""A rehearsal takes real steps of any recipe on generated examples, reports their measurements, and leaves nothing behind."""

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from relm.cli import main
from relm.errors import RelmError
from relm.examples.manifest import TokenizerFacts
from relm.forecast.prepared_run import Rehearsal
from relm.forecast.rehearsal import rehearse
from relm.forecast.rehearsal_lines import memory_line
from relm.recipes.section import merge
from tiny_runs import OBJECTIVES, TinyRun, recipe_of

TOKENS = 300
SPECIAL = {"pad": 0, "end_of_text": 1, "unk": 2, "cls": 3, "sep": 4, "mask": 5}
TOKENIZER = TokenizerFacts("", TOKENS, 1, dict(SPECIAL))
PHASE = {
    "sequence_length": 24,
    "steps": 1000,
    "precision": "float32",
    "loss_scaling": {"name": "static", "scale": 1.0, "growth_interval": 2000},
    "optimizer": {"learning_rate": 0.001, "gradient_clipping": 1.0},
    "schedule": {"name": "linear", "warmup_steps": 10, "floor": 0.0},
}
LARGE_ENOUGH = {"pretrain": {"main": PHASE}, "run": {"micro_batch_size": 2, "checkpoint_interval": 1000}}


def rehearsal(objective: str = "causal", changes: dict[str, Any] | None = None, **options: Any) -> Rehearsal:
    positions = {"model": {"positions": 24}} if objective in ("causal", "masked") else {}
    recipe = recipe_of(objective, merge(merge(LARGE_ENOUGH, positions), changes or {}))
    return Rehearsal(recipe, "main", TOKENIZER, **options)


def number(pattern: str, text: str) -> float:
    """Return the number in an output that a pattern's group matches."""
    found = re.search(pattern, text)
    assert found, text
    return float(found[1].replace(",", ""))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_takes_steps_on_generated_examples(objective: str) -> None:
    output = rehearse(rehearsal(objective, steps=5))
    assert "8 sequences of 24 tokens a step in 4 micro-batches, float32; the examples are generated" in output
    rate = number(r"speed: ([\d,.e+]+) steps/s", output)
    assert number(r" ([\d,]+) tokens/s", output) == pytest.approx(rate * 8 * 24, rel=0.01)
    assert number(r" ([\d,.]+) samples/s, over 2 steps", output) == pytest.approx(rate * 8, rel=0.01)
    # Memory of the whole process, in which other tests may have run.
    assert re.search(r"memory: (\d{2,3}\.?\d* MB|[\d.]+ GB) at most", output), output


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_the_first_loss_is_that_of_a_guess(objective: str) -> None:
    output = rehearse(rehearsal(objective, compile_only=True))
    term = {"causal": "next_token", "masked": "masked_token"}[objective]
    assert f"{term} " in output
    assert f"(a guess among 300: {math.log(300):.3f})" in output
    assert number(rf"{term} ([\d.]+)", output) == pytest.approx(math.log(300), abs=0.05)
    if objective == "masked":
        assert number(r"next_sentence ([\d.]+) \(a guess among 2: 0.693\)", output) == pytest.approx(math.log(2), abs=0.05)


def test_compile_only_takes_one_step_of_at_most_two_micro_batches() -> None:
    shares = {"pretrain": {"main": {"loss_shares": 4, "loss_normalisation": "per_micro_batch"}}}
    for changes in ({}, shares):
        output = rehearse(rehearsal(changes=changes, compile_only=True))
        assert "4 sequences of 24 tokens a step in 2 micro-batches" in output
        assert "the first step took" in output
        assert "speed" not in output
    output = rehearse(rehearsal(changes={**shares, "run": {"micro_batch_size": None}}, compile_only=True))
    assert "4 sequences of 24 tokens a step in 2 micro-batches" in output, "a micro-batch is one share"
    output = rehearse(rehearsal(changes={"run": {"micro_batch_size": 8}}, compile_only=True))
    assert "8 sequences of 24 tokens a step in 1 micro-batch" in output


def test_the_trace_has_our_steps_and_the_output_its_operations(tmp_path: Path) -> None:
    output = rehearse(rehearsal("masked", steps=4, trace=tmp_path / "traces" / "t.json"))
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["t.json"]
    events = json.loads((tmp_path / "traces" / "t.json").read_text())["traceEvents"]
    names = [event.get("name", "") for event in events]
    assert [name for name in names if re.fullmatch(r"step \d", name)] == ["step 1", "step 2", "step 3"]
    assert names.count("forward") == 3 * 4
    assert names.count("input") == 3
    assert "Optimizer.step#Lamb.step" in names

    assert len([line for line in output.splitlines() if " s a step " in line and line.endswith(" times")]) == 12
    # Memory of the whole process, in which other tests may have run.
    assert re.search(r"memory: (\d{2,3}\.?\d* MB|[\d.]+ GB) at most", output), output


@pytest.mark.full
def test_a_compiled_step_is_rehearsed() -> None:
    output = rehearse(rehearsal(changes={"run": {"compile": True}}, compile_only=True))
    assert number(r"; (\d+) compiled programs", output) >= 1


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)
    rehearse(rehearsal(steps=4))
    rehearse(rehearsal(compile_only=True))
    assert [path.name for path in tmp_path.rglob("*")] == ["tmp"]


REHEARSAL = """
import sys
from pathlib import Path
from relm.examples.manifest import TokenizerFacts
from relm.recipes.recipe import Recipe
from relm.forecast.prepared_run import Rehearsal
from relm.forecast.rehearsal import rehearse
recipe = Recipe.model_validate_json(Path(sys.argv[1]).read_text())
print(rehearse(Rehearsal(recipe, "main", TokenizerFacts("", 257, 256, {"end_of_text": 256}), steps=4)))
"""


@pytest.mark.full
@pytest.mark.parametrize("micro_batch_size", [None, 4])
def test_a_rehearsal_holds_as_much_memory_as_a_real_run(tmp_path: Path, examples: Path, micro_batch_size: int | None) -> None:
    model = {"layers": 6, "heads": 6, "hidden_size": 384, "positions": 128, "vocabulary_size": 24_000}
    pretrain = {"main": {"sequence_length": 128, "steps": 4}}
    changes = {"model": model, "pretrain": pretrain, "run": {"micro_batch_size": micro_batch_size, "log_interval": 1}}
    run = TinyRun(tmp_path / "run", examples, changes)
    process, peak = run.start(), 0
    while process.poll() is None:
        peak = max(peak, high_water_mark(process.pid))
        time.sleep(0.01)
    assert process.returncode == 0
    (tmp_path / "recipe.json").write_text(run.recipe.model_dump_json())
    command = [sys.executable, "-c", REHEARSAL, tmp_path / "recipe.json"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    number, unit = re.search(r"memory: ([\d.]+) ([MG]B) at most", output).groups()
    assert float(number) * {"MB": 1e6, "GB": 1e9}[unit] == pytest.approx(peak, rel=0.15)


def high_water_mark(process: int) -> int:
    """Return the most bytes that a process had in memory so far; 0 when it is gone."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_gpu_rehearses(tmp_path: Path) -> None:
    output = rehearse(rehearsal(changes={"run": {"device": "cuda"}}, steps=8, trace=tmp_path / "t.json"))
    assert "device: cuda" in output
    assert number(r"; (\d+) compiled programs", output) >= 1
    assert "cuLaunch" in (tmp_path / "t.json").read_text() or "cudaLaunch" in (tmp_path / "t.json").read_text()


def test_a_loss_that_is_no_number_is_reported() -> None:
    wild = {"optimizer": {"learning_rate": 1e30, "gradient_clipping": None}, "schedule": {"warmup_steps": 0}}
    with pytest.raises(RelmError, match=r"step \d+: the (loss|norm of the gradient) is (nan|inf)"):
        rehearse(rehearsal(changes={"pretrain": {"main": wild}}, steps=8))


def run_in(project: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command in this process, in a project's folder, and return its status and output."""
    before = Path.cwd()
    os.chdir(project)
    try:
        status = main(["rehearse", *arguments])
    finally:
        os.chdir(before)
    return status, *capsys.readouterr()


def test_the_command_rehearses_a_recipe_before_anything_was_made(project, capsys) -> None:
    before = sorted(project.folder.rglob("*"))
    status, out, _ = run_in(project.folder, capsys, "tiny", "--steps", "4")
    assert status == 0
    assert "rehearsal of tiny\ntokenizer: 400 tokens, taken from tokenizer.vocabulary_size; it is not made yet\n" in out
    assert "phase main: " in out
    status, out, _ = run_in(project.folder, capsys, "smoke/tiny", "--compile-only")
    assert status == 0
    assert "rehearsal of smoke/tiny" in out
    assert sorted(project.folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny", "--phase", "mian"], "recipe tiny has no phase 'mian'; it has main"),
        (["tiny", "--steps", "3"], "--steps 3: the first 3 steps are the warm-up; take more, or use --compile-only"),
        (["tiny", "--compile-only", "--steps", "9"], "leave --steps or --compile-only out"),
        (["tiny", "--compile-only", "--profile", "t.json"], "leave --profile or --compile-only out"),
        (["tiny", "--profile", "recipes"], "--profile recipes: cannot write this file"),
        (["tiny", "--profile", "recipes/tiny.yaml/t.json"], "t.json: cannot write this file"),
        (["tyni"], "did you mean results/tiny?"),
    ],
    ids=" ".join,
)
def test_a_mistake_is_reported_before_the_first_step(arguments: list[str], message: str, project, capsys) -> None:
    status, out, error = run_in(project.folder, capsys, *arguments)
    assert status == 1
    assert message in error
    assert out == ""


def test_memory_that_a_device_does_not_report_is_reported_as_unknown_and_not_as_0() -> None:
    assert memory_line(None) == "not reported by this device, which had enough; `relm compile NAME` reports what a step needs"
    assert memory_line(3 * 10**9).endswith(" at most")


PIPELINE = {
    "model": {"dropout": 0.0},
    "pretrain": {
        "main": {
            "global_batch_size": 12,
            "optimizer": {"gradient_clipping": None},
            "schedule": {"updates_per_step": 4, "warmup_steps": 1},
        }
    },
    "run": {
        "device": "ipu_simulator",
        "micro_batch_size": 1,
        "pipeline": {"layers_per_ipu": [1, 1], "gradient_accumulation": 12, "device_iterations": 4},
    },
}


@pytest.mark.usefixtures("forked_workers")
def test_a_pipeline_is_rehearsed_in_whole_calls() -> None:
    output = rehearse(rehearsal(changes=PIPELINE, steps=6))
    assert "12 sequences of 24 tokens a step in 12 micro-batches" in output
    assert "device: ipu_simulator" in output
    assert re.search(r"the first 4 steps took [0-9.]+ s, [0-9.]+ s more than later ones", output)
    assert "over 4 steps of" in output
    assert "`relm estimate NAME` prints the memory of each IPU" in output


@pytest.mark.usefixtures("forked_workers")
def test_compile_only_takes_no_update_on_a_device_that_takes_whole_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    from relm.devices.ipu.device import IpuDevice

    monkeypatch.setattr(IpuDevice, "take_updates", lambda device, call: pytest.fail("an update was taken"))
    monkeypatch.setattr(IpuDevice, "load_updates", lambda device, *tensors: pytest.fail("there may be no IPU to load"))
    output = rehearse(rehearsal(changes=PIPELINE, compile_only=True))
    assert "in 12 micro-batches" in output, "the program depends on their count"
    assert output.splitlines()[-1] == "compiled in 0.0 s; no update was taken"


@pytest.mark.usefixtures("forked_workers")
def test_a_profile_of_an_ipu_is_refused_with_the_way_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=r"torch's profiler cannot see an IPU; .* POPLAR_ENGINE_OPTIONS="):
        rehearse(rehearsal(changes=PIPELINE, steps=4, trace=tmp_path / "trace.json"))
