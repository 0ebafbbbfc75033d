"""Memory and disk before a run: counted by hand for small models, and compared with real optimizers."""

from pathlib import Path

import pytest
import torch
from small_phases import cases, phase

from relm.errors import RelmError
from relm.models.gpt2_configuration import Gpt2Config
from relm.recipes.machine.pipeline import Pipeline
from relm.recipes.optimization import Optimizer
from relm.recipes.phase import Phase
from relm.recipes.run import Run
from relm.training import arithmetic
from relm.training.architecture import unset_model
from relm.training.arithmetic import disk_bytes, require_resources, sequences_per_device, state_bytes
from relm.training.optimizers import build_optimizer, optimizer_tensors, weight_type

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
def test_a_state_has_the_size_of_model_and_optimizer_after_a_step(name: str, case: str) -> None:
    config, _ = cases()[case]
    settings = Optimizer.model_validate({"name": name, "learning_rate": 0.1, **OPTIMIZERS[name]})
    model = unset_model(config).to(weight_type(settings))
    model.initialise(torch.Generator().manual_seed(0))
    optimizer = build_optimizer(model, settings)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    tensors = optimizer_tensors(optimizer, model).values()
    state = state_bytes(config, settings)
    assert state.optimizer == sum(tensor.nbytes for tensor in tensors if tensor.dim())
    assert state.weights == sum(parameter.nbytes for parameter in model.parameters())
    assert state.gradients == sum(parameter.grad.nbytes for parameter in model.parameters() if parameter.grad is not None)
    assert state.total == state.weights + state.gradients + state.optimizer


def test_each_device_of_a_slice_and_each_process_computes_its_part_of_the_sequences() -> None:
    settings = phase("causal", global_batch_size=12)
    assert sequences_per_device(settings, Run()) == 12
    assert sequences_per_device(settings, Run(processes=3)) == 4
    assert sequences_per_device(settings, Run(device="tpu", topology="v5e-4", micro_batch_size=6)) == 2


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
def test_disk_is_required_for_the_largest_count_of_checkpoints(steps: int, run: dict[str, int], checkpoints: int) -> None:
    config, settings = cases()["gpt2"]
    settings = Phase.model_validate(settings.model_dump() | {"steps": steps})
    found = disk_bytes(config, settings, Run.model_validate(run))
    parameters = unset_model(config).parameter_count()
    assert (found.checkpoint, found.checkpoints, found.model) == (12 * parameters, checkpoints, 4 * parameters)
    assert found.total == (12 * checkpoints + 4) * parameters


def test_each_process_needs_memory_for_its_own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, settings = cases()["gpt2"]
    monkeypatch.setattr("relm.limits.available_memory", lambda: 2 * state_bytes(config, settings.optimizer).total)
    require_resources(config, settings, Run(), tmp_path)
    with pytest.raises(RelmError, match=r"3 processes \(run.processes\): needs .* of memory"):
        require_resources(config, settings, Run(processes=3), tmp_path)


def test_a_pipelines_worker_has_its_own_copy_of_weights_and_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    needed: list[int] = []
    monkeypatch.setattr(arithmetic, "require_memory", lambda size, what, remedy: needed.append(size))
    pipeline = Pipeline(layers_per_ipu=[1, 1], gradient_accumulation=12)
    config, settings = Gpt2Config(2, 2, 16, 48, 300), phase("causal", global_batch_size=12)
    state = arithmetic.state_bytes(config, settings.optimizer)
    for device, expected in (
        ("ipu", [2 * (state.weights + state.optimizer)]),
        ("ipu_simulator", [state.total + state.weights + state.optimizer]),
    ):
        needed.clear()
        arithmetic.require_state_memory(config, settings, Run(device=device, pipeline=pipeline, micro_batch_size=1))
        assert needed[: len(expected)] == expected
        assert len(needed) == (1 if device == "ipu" else 3)
