"""A phase on a machine that is not its recipe's own takes the micro-batch that fits there, and keeps it when it resumes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from relm.errors import RelmError
from relm.forecast.compilation.compiling import sizes_to_compile
from relm.forecast.estimate import describe_estimate
from relm.forecast.expected_tokenizer import vocabulary
from relm.recipes.project import Project
from relm.recipes.run_folder import CHECKPOINT_FILES
from relm.training.architecture import configuration
from relm.training.checkpoint_state import write_state
from relm.training.machine.fitting_micro_batch import GIB, compiled_size, fill_in_micro_batch, memory_of_device, needed_bytes
from small_project import CHECKOUT
from tiny_runs import RECIPE, write_examples


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The shipped recipes, and a tiny recipe for the CPU with the machine `small`, into which two sequences fit."""
    shutil.copytree(CHECKOUT / "recipes", tmp_path / "recipes")
    recipe = {**RECIPE, "data": {"dataset": "enwik8"}, "run": {"threads": 1, "checkpoint_interval": 3}}
    (tmp_path / "recipes" / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    write_machine(tmp_path, 64)
    plan = Project(tmp_path).plan("tiny@small")
    config = configuration(plan.recipe, vocabulary(plan)[0])
    needed = needed_bytes(config, plan.recipe.pretrain["main"], plan.recipe.run, 2)
    write_machine(tmp_path, (needed / GIB + 0.5) / 0.9 + 1e-7)
    return tmp_path


def write_machine(folder: Path, gib: float) -> None:
    text = f"title: A small machine\ndevice: cpu\nmemory_gib: {gib:.12f}\n"
    (folder / "recipes" / "machines" / "small.yaml").write_text(text)


def fitted(folder: Path, name: str, resumed: Path | None = None) -> tuple[int | None, str | None]:
    plan = Project(folder).plan(name)
    found, sentence = fill_in_micro_batch(plan, "main", vocabulary(plan)[0], resumed)
    assert found.fingerprint == plan.fingerprint
    return found.recipe.run.micro_batch_size, sentence


def test_the_own_machine_and_a_given_size_stay_as_they_are(folder: Path) -> None:
    assert fitted(folder, "tiny") == fitted(folder, "tiny@cpu") == (None, None)
    assert fitted(folder, "bert_large_wikitext103_v3-8_bf16") == (None, None)
    path = folder / "recipes" / "tiny.yaml"
    path.write_text(path.read_text() + "on: {small: {micro_batch_size: 8}}\n")
    assert fitted(folder, "tiny@small") == (8, None)


def test_another_machine_gets_the_size_that_fits_or_a_refusal(folder: Path) -> None:
    size, sentence = fitted(folder, "tiny@small")
    assert size == 2
    assert sentence is not None
    assert sentence.startswith("micro-batch of phase main: 2 sequences at once: ")
    assert fitted(folder, "tiny@h100")[0] == 8
    write_machine(folder, 0.5)
    with pytest.raises(RelmError, match=r"one sequence on each device of small needs .* are usable"):
        fitted(folder, "tiny@small")


def test_a_cpu_without_a_stated_memory_has_what_is_available_here(folder: Path) -> None:
    path = folder / "recipes" / "tiny.yaml"
    path.write_text(path.read_text().replace("threads: 1", "machine: h100"))
    memory = memory_of_device(Project(folder).plan("tiny@cpu"))
    assert memory is not None
    assert memory > GIB // 8
    (folder / "recipes" / "machines" / "unstated.yaml").write_text("title: A GPU\ndevice: cuda\n")
    assert memory_of_device(Project(folder).plan("tiny@unstated")) is None
    assert memory_of_device(Project(folder).plan("gpt2_small_pod16")) == int(0.838 * GIB)


def test_training_records_the_chosen_size_and_resumes_with_it(folder: Path) -> None:
    examples = write_examples(folder / "examples", 0)
    with (folder / "recipes" / "machines" / "small.yaml").open("a") as file:
        file.write("peak: {float32: 0.001, source: 'https://example.org'}\n")
    weights = folder / "run" / "main" / "model" / "model.safetensors"
    command = [sys.executable, "-m", "relm", "pretrain", "tiny@small", "--phase", "main", "--output", str(weights)]
    command += ["--manifest", str(examples / "manifest.json"), "--tokenizer", str(examples / "tokenizer.json")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = done.stdout + done.stderr
    assert "This run is on small (A small machine; device cpu), and the recipe's own machine is cpu" in printed
    assert "micro-batch of phase main: 2 sequences at once" in printed
    checkpoints = weights.parent.parent / "checkpoints"
    assert json.loads(checkpoints.with_name("train.jsonl").read_text().splitlines()[-1])["mfu"] > 0
    states = sorted(checkpoints.glob("step-*/state.json"))
    assert [json.loads(state.read_text())["made_on"]["micro_batch_size"] for state in states] == [2] * len(states)
    write_machine(folder, 64)
    assert fitted(folder, "tiny@small")[0] == 8
    assert fitted(folder, "tiny@small", checkpoints)[0] == 2
    states[-1].write_text("{")
    assert fitted(folder, "tiny@small", checkpoints)[0] == 8


def test_an_estimate_tells_of_the_size_or_that_none_fits(folder: Path) -> None:
    found = describe_estimate(Project(folder).plan("tiny@small"), None)
    assert "activations of 2 sequences at once" in found
    assert "activations at most" in found
    assert "fits         yes: 2 sequences at once: " in found
    write_machine(folder, 0.5)
    refused = describe_estimate(Project(folder).plan("tiny@small"), None)
    assert "fits         NO: one sequence on each device of small needs" in refused
    assert "  fits" not in describe_estimate(Project(folder).plan("tiny"), None)


def test_the_compiler_is_asked_about_the_size_that_training_would_choose(folder: Path) -> None:
    project = Project(folder)
    name = "bert_large_wikitext103_v3-8_bf16"
    assert sizes_to_compile(project.plan(name)) == {}
    assert sizes_to_compile(project.plan(f"{name}@h100")) == {}
    plan = project.plan(f"{name}@v6e-8")
    chosen = fill_in_micro_batch(plan, "main", vocabulary(plan)[0])[0].recipe.run.micro_batch_size
    assert sizes_to_compile(plan) == {"main": chosen}
    path = folder / "recipes" / "machines" / "v6e-8.yaml"
    path.write_text(path.read_text().replace("memory_gib: 32", "memory_gib: 2"))
    if compiled_size(plan, "main") is None:
        assert sizes_to_compile(Project(folder).plan(f"{name}@v6e-8")) == {"main": 8}


@pytest.mark.parametrize(("made_by", "expected"), [("small", 4), (None, 4), ("cpu", 2)])
def test_the_size_of_a_checkpoint_that_another_machine_made_is_not_kept(
    folder: Path, made_by: str | None, expected: int
) -> None:
    checkpoint = folder / "checkpoints" / "step-00000003"
    checkpoint.mkdir(parents=True)
    listed = {"machines": [{"after_step": 0, "machine": made_by}]} if made_by else {}
    hashes = dict.fromkeys(CHECKPOINT_FILES, "0" * 64)
    state = {"step": 3, "fingerprint": "f", "phase": "main", "sha256": hashes, "made_on": {"micro_batch_size": 4}}
    write_state(checkpoint, {**state, **listed})
    assert fitted(folder, "tiny@small", checkpoint.parent)[0] == expected
