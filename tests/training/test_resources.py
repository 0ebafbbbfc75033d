"""Memory and disk before a run: counted by hand where they are small, and beside a real process."""

import math
import subprocess
import time
from pathlib import Path

import pytest
import torch
from small_phases import cases, phase

from relm.errors import RelmError
from relm.models.gpt2 import Gpt2Config
from relm.recipes.optimization import Optimizer
from relm.recipes.recipe import Phase, Run
from relm.training.architecture import unset_model
from relm.training.optimizers import build_optimizer, optimizer_tensors, weight_type
from relm.training.resources import BASE, LARGE, disk, memory, optimizer_bytes, require_resources
from tiny_runs import TinyRun

OPTIMIZERS = {
    "adamw": {},
    "adam": {},
    "lamb": {},
    "adafactor": {},
    "adafactor with a first moment": {"name": "adafactor", "adafactor": {"beta1": 0.9}},
    "sgd": {},
    "sgd with momentum": {"name": "sgd", "sgd": {"momentum": 0.9}},
    "bfloat16": {"name": "lamb", "state_precision": "bfloat16"},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("case", ["gpt2", "t5, gated, deeper decoder"])
def test_the_optimizers_state_is_what_it_remembers(name: str, case: str) -> None:
    config, _ = cases()[case]
    settings = Optimizer.model_validate({"name": name, "learning_rate": 0.1, **OPTIMIZERS[name]})
    model = unset_model(config).to(weight_type(settings))
    model.initialise(torch.Generator().manual_seed(0))
    optimizer = build_optimizer(model, settings)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    tensors = optimizer_tensors(optimizer, model).values()
    assert optimizer_bytes(config, settings) == sum(tensor.nbytes for tensor in tensors if tensor.dim())


def test_small_tensors_take_the_place_of_gradients_and_activations_both() -> None:
    config, settings = cases()["gpt2"]
    found = memory(config, settings, Run())
    assert set(found.large.values()) == {0}
    pairs = 4 * 3 * 4 * 48**2  # of one matrix of attention, which is wider than the logits
    assert found.small == found.gradients + found.activations + 2 * pairs
    assert found.peak == BASE + found.weights + found.optimizer + found.small
    accumulated = memory(config, settings, Run(micro_batch_size=1))
    assert accumulated.activations == found.activations / 3
    assert accumulated.small == found.gradients + 2 * accumulated.activations + 2 * pairs / 3


def test_large_tensors_count_when_they_are_there() -> None:
    vocabulary, width, length = 70_000, 128, 128
    config = Gpt2Config(1, 2, width, length, vocabulary)
    settings = phase("causal", sequence_length=length, global_batch_size=1)
    embedding, logits = 4 * vocabulary * width, 4 * vocabulary * length
    assert embedding > LARGE
    assert memory(config, settings, Run()).large == {
        "the head's backward pass": 3 * logits,
        "the last layer's backward pass": embedding,
        "the end of the backward pass": 3 * embedding,
        "the update": embedding,
    }
    twice = memory(config, settings.model_copy(update={"global_batch_size": 2}), Run(micro_batch_size=1)).large
    assert twice["the head's backward pass"] == embedding + 3 * logits
    assert twice["the end of the backward pass"] == 4 * embedding


def test_processes_share_the_batch_and_each_has_the_weights() -> None:
    config, settings = cases()["gpt2"]
    one, three = (memory(config, settings, Run(processes=count)) for count in (1, 3))
    assert three.activations == one.activations / 3
    assert (three.weights, three.optimizer, three.gradients) == (one.weights, one.optimizer, one.gradients)


def test_checkpointing_and_half_precision_take_less() -> None:
    config, settings = cases()["gpt2"]
    plain = memory(config, settings, Run()).activations
    assert memory(config, settings, Run(activation_checkpointing=True)).activations < 0.6 * plain
    half = settings.model_copy(update={"precision": "bfloat16"})
    assert memory(config, half, Run()).activations < plain


@pytest.mark.parametrize(
    ("steps", "run", "checkpoints"),
    [
        (10, {"checkpoint_interval": 100, "keep_every": 1}, 4),
        (1000, {"checkpoint_interval": 100}, 4),
        (1000, {"checkpoint_interval": 100, "keep_checkpoints": 4}, 6),
        (1000, {"checkpoint_interval": 100, "keep_every": 2}, 9),
        (1000, {"checkpoint_interval": 100, "keep_every": 3}, 7),
    ],
)
def test_disk_is_asked_for_as_many_checkpoints_as_there_may_be(steps: int, run: dict[str, int], checkpoints: int) -> None:
    config, settings = cases()["gpt2"]
    settings = Phase.model_validate(settings.model_dump() | {"steps": steps})
    found = disk(config, settings, Run.model_validate(run))
    parameters = unset_model(config).parameter_count()
    assert (found.checkpoint, found.checkpoints, found.model) == (12 * parameters, checkpoints, 4 * parameters)
    assert found.total == (12 * checkpoints + 4) * parameters


def test_what_does_not_fit_is_refused_with_what_it_is(tmp_path: Path) -> None:
    config = Gpt2Config(12, 12, 768, 1024, 50_257)
    settings = phase("causal", sequence_length=1024, global_batch_size=100_000, steps=10**6)
    with pytest.raises(
        RelmError, match=r"training 124,439,808 parameters, 100,000 sequences at once .*: needs \d.* TB of memory"
    ):
        require_resources(config, settings, Run(), tmp_path)
    forever = Run(micro_batch_size=1, keep_every=1, checkpoint_interval=1)
    with pytest.raises(RelmError, match=r"1,000,004 checkpoints .*: needs \d.* TB on the disk"):
        require_resources(config, settings, forever, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("micro_batch_size", [None, 4])
def test_a_real_process_holds_as_much_as_was_estimated(tmp_path: Path, examples: Path, micro_batch_size: int | None) -> None:
    vocabulary, width = 24_000, 384
    run = TinyRun(
        tmp_path / "run",
        examples,
        {
            "model": {"layers": 6, "heads": 6, "hidden_size": width, "positions": 128, "vocabulary_size": vocabulary},
            "pretrain": {"main": {"sequence_length": 128, "steps": 4}},
            "run": {"micro_batch_size": micro_batch_size, "log_interval": 1},
        },
    )
    process, peak = run.start(), 0
    assert process.stdout is not None
    while process.poll() is None:
        peak = max(peak, high_water_mark(process))
        time.sleep(0.01)
    assert process.returncode == 0, process.stderr
    recipe = run.recipe
    config = Gpt2Config(6, 6, width, 128, vocabulary)
    assert math.isclose(memory(config, recipe.pretrain["main"], recipe.run).peak, peak, rel_tol=0.15)


def high_water_mark(process: subprocess.Popen[str]) -> int:
    """Most bytes that a process had in memory so far."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
