"""Every optimizer computes its published updates, is restored bit for bit, and never waits for the device."""

import copy
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from affine import Affine, take_step
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from relm.recipes.optimization import Optimizer
from relm.training.optimizers import (
    build_optimizer,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
    weight_type,
)
from tiny_runs import FORKS, TinyRun

# One of each kind of update rule, every option used at least once.
SETTINGS: dict[str, dict[str, Any]] = {
    "adamw": {"name": "adamw", "weight_decay": 0.1},
    "adamw without correction": {"name": "adamw", "weight_decay": 0.1, "bias_correction": False},
    "adamw of transformers": {"name": "adamw", "weight_decay": 0.1, "form": "transformers"},
    "adamw of graphcore": {"name": "adamw", "weight_decay": 0.1, "form": "graphcore_bert"},
    "adam": {"name": "adam", "weight_decay": 0.1},
    "lamb": {"name": "lamb", "weight_decay": 0.1},
    "lamb without correction": {
        "name": "lamb",
        "weight_decay": 0.1,
        "bias_correction": False,
        "lamb": {"adapted": "all", "weight_norm_clip": 2.0, "normalise_gradient": True},
    },
    "adafactor": {"name": "adafactor", "weight_decay": 0.1},
    "adafactor with momentum": {
        "name": "adafactor",
        "learning_rate": 1.0,
        "weight_decay": 0.1,
        "adafactor": {"beta1": 0.9, "relative_step": True},
    },
    "sgd": {"name": "sgd", "weight_decay": 0.1},
    "sgd with momentum": {"name": "sgd", "weight_decay": 0.1, "sgd": {"momentum": 0.9}},
}
every_optimizer = pytest.mark.parametrize("name", SETTINGS)


def settings_of(name: str, **changes: Any) -> Optimizer:
    return Optimizer.model_validate({"learning_rate": 0.01, **SETTINGS[name], **changes})


class Mixed(nn.Module):
    """Return a model with parameters of one, two and three dimensions, including a normalisation."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator))

        self.weight, self.bias, self.kernel = parameter(5, 3), parameter(3), parameter(2, 3, 4)
        self.norm = nn.LayerNorm(3)


def take_random_step(optimizer: torch.optim.Optimizer, model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter)
    set_learning_rate(optimizer, 0.01 * seed)
    optimizer.step()


def test_the_scale_of_a_normalisation_is_decayed_only_where_all_but_biases_are() -> None:
    for decayed, scale in (("matrices", 1.0), ("all_but_biases", 0.95)):
        model = Mixed()
        bias = model.bias.tolist()
        settings = Optimizer.model_validate({"learning_rate": 0.1, "weight_decay": 0.5, "decayed": decayed})
        take_step(build_optimizer(model, settings), model, 0.0)
        assert model.norm.weight.tolist() == pytest.approx([scale] * 3)
        assert model.norm.bias.tolist() == [0.0] * 3
        assert model.bias.tolist() == bias


def expected_adamw(weight: float, gradients: list[float], settings: Optimizer) -> float:
    """Return one decayed weight after the steps, in float64, written out from each program's own code."""
    (beta1, beta2), eps, decay, lr = settings.betas, settings.epsilon, settings.weight_decay, settings.learning_rate
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        if settings.form == "graphcore_bert":
            correction = math.sqrt(1 - beta2 ** (t + 1)) / (1 - beta1 ** (t + 1)) if settings.bias_correction else 1.0
            weight -= lr * (m / (math.sqrt(v) + eps) + decay * weight) * correction
        elif settings.form == "transformers":
            size = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t) if settings.bias_correction else lr
            weight -= size * m / (math.sqrt(v) + eps)
            weight -= lr * decay * weight
        else:
            lack1, lack2 = (1 - beta1**t, 1 - beta2**t) if settings.bias_correction else (1.0, 1.0)
            weight -= lr * decay * weight
            weight -= lr * (m / lack1) / (math.sqrt(v / lack2) + eps)
    return weight


@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("form", ["pytorch", "transformers", "graphcore_bert"])
def test_every_form_of_adamw_is_its_programs_own(form: str, bias_correction: bool) -> None:
    """Gradients are as small as epsilon, so that its position in the formula matters."""
    given = {"learning_rate": 0.05, "epsilon": 1e-4, "weight_decay": 0.3, "betas": (0.9, 0.98)}
    settings = Optimizer.model_validate({**given, "form": form, "bias_correction": bias_correction})
    model = Affine()
    optimizer = build_optimizer(model, settings)
    gradients = [1e-4, -3e-4, 2e-5, 5e-4]
    for gradient in gradients:
        take_step(optimizer, model, gradient)
    expected = expected_adamw(1.0, gradients, settings)
    assert model.weight.tolist() == [pytest.approx([expected] * 2, abs=3e-7)] * 2


def test_the_fused_adamw_is_torchs_to_the_bit() -> None:
    model, other = Mixed(), Mixed()
    ours = build_optimizer(model, settings_of("adamw"))
    groups = [{"params": [p for p in other.parameters() if (p.dim() > 1) == matrix]} for matrix in (True, False)]
    theirs = torch.optim.AdamW([groups[0] | {"weight_decay": 0.1}, groups[1] | {"weight_decay": 0.0}], lr=0.01, fused=True)
    for seed in range(1, 4):
        take_random_step(ours, model, seed)
        take_random_step(theirs, other, seed)
    assert all(parameter.grad is not None for parameter in model.parameters())
    ours.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, tensor in optimizer_tensors(theirs, other).items():
        assert torch.equal(optimizer_tensors(ours, model)[name], tensor)
    assert all(map(torch.equal, model.parameters(), other.parameters()))


@pytest.mark.parametrize("objective", ["causal", "masked", "seq2seq"])
def test_no_run_imports_the_compiler(objective: str, examples_of: Callable[[str], Path], tmp_path: Path) -> None:
    """With AdamW, LAMB and Adafactor."""
    changes = {"pretrain": {"main": {"steps": 4}}}
    run = TinyRun(tmp_path / "run", examples_of(objective), changes, objective=objective)
    process = FORKS.Process(target=train_and_look_for_the_compiler, args=(run,))
    process.start()
    process.join()
    assert process.exitcode == 0


def train_and_look_for_the_compiler(run: TinyRun) -> None:
    """Train, and end with status 2 if torch's compiler was imported."""
    run.train()
    sys.exit(2 if "torch._dynamo" in sys.modules else 0)


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("adamw", lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)),
        ("adam", lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1)),
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.1)),
        ("sgd with momentum", lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.1, momentum=0.9)),
    ],
)
def test_our_own_adamw_adam_and_sgd_are_torchs(name: str, peer: Any) -> None:
    """Ours are for devices that torch has no kernel for."""
    model, other = Affine(), Affine()
    settings = settings_of(name, decayed="all_but_biases")
    ours, torchs = build_optimizer(model, settings, traced=True), peer([other.weight])
    for seed in range(1, 8):
        take_random_step(ours, model, seed)
        take_random_step(torchs, other, seed)
    torch.testing.assert_close(model.weight, other.weight, rtol=1e-6, atol=1e-7)


@every_optimizer
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_interrupted_run_ends_with_the_same_bits(name: str, precision: str) -> None:
    settings = settings_of(name, state_precision=precision)
    model = Mixed().to(weight_type(settings))
    optimizer = build_optimizer(model, settings)
    for seed in (1, 2, 3):
        take_random_step(optimizer, model, seed)
    weights = copy.deepcopy(model.state_dict())
    saved = {key: tensor.clone() for key, tensor in optimizer_tensors(optimizer, model).items()}
    assert len({tensor.data_ptr() for tensor in optimizer_tensors(optimizer, model).values()}) == len(saved)
    assert precision == "bfloat16" or {tensor.dtype for tensor in saved.values()} == {torch.float32}
    for seed in (4, 5):
        take_random_step(optimizer, model, seed)

    resumed = Mixed(seed=9).to(weight_type(settings))
    going_on = build_optimizer(resumed, settings)
    resumed.load_state_dict(weights)
    restore_optimizer(going_on, resumed, saved)
    for seed in (4, 5):
        take_random_step(going_on, resumed, seed)
    for parameter, expected in zip(resumed.parameters(), model.parameters(), strict=True):
        assert torch.equal(parameter, expected)
    later = optimizer_tensors(optimizer, model)
    assert all(torch.equal(tensor, later[key]) for key, tensor in optimizer_tensors(going_on, resumed).items())
    assert any(not torch.equal(tensor, saved[key]) for key, tensor in later.items())


def test_the_state_of_another_optimizer_is_refused_by_name() -> None:
    model = Affine()
    adam, sgd = build_optimizer(model, settings_of("adam")), build_optimizer(model, settings_of("sgd with momentum"))
    with pytest.raises(ValueError, match=r"not the state of this Adam: .*weight\.exp_avg"):
        restore_optimizer(adam, model, optimizer_tensors(sgd, model))
    library = build_optimizer(model, settings_of("adamw"))
    with pytest.raises(ValueError, match="not the state of this model's AdamW: updates"):
        restore_optimizer(library, model, optimizer_tensors(sgd, model))


class HostReads(TorchDispatchMode):
    """A mode that raises where a tensor's value is read on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.is_nonzero, torch.ops.aten.equal):
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


@every_optimizer
@pytest.mark.parametrize("skips", [False, True])
def test_no_step_reads_a_value_back(name: str, skips: bool) -> None:
    model = Mixed()
    optimizer = build_optimizer(model, settings_of(name))
    if skips:
        optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    with HostReads():
        for seed in (1, 2, 3):
            take_random_step(optimizer, model, seed)


class Program(TorchDispatchMode):
    """A mode that records operations, and all of their arguments but tensors' values."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten":  # and not the profiler
            without_values = tree_map(lambda x: tuple(x.shape) if isinstance(x, Tensor) else x, (args, kwargs))
            self.lines.append(f"{func} {without_values}")
        return func(*args, **(kwargs or {}))


@every_optimizer
def test_every_step_is_the_same_program_for_every_learning_rate(name: str) -> None:
    """So a compiler that traces steps compiles one program. torch's own AdamW is for devices that do not trace."""
    model = Mixed().to("meta")
    optimizer = build_optimizer(model, settings_of(name), traced=True)
    programs = []
    for learning_rate in (0.5, 0.25, 0.0):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        with Program() as program:
            set_learning_rate(optimizer, learning_rate)
            optimizer.step()
        programs.append(program.lines)
    assert programs[0]
    assert programs[0] == programs[1] == programs[2]


def test_the_mode_that_forbids_host_reads_raises_at_one() -> None:
    from transformers.optimization import Adafactor

    model = Mixed()
    optimizer = Adafactor(model.parameters(), scale_parameter=True, relative_step=True)
    take_step(optimizer, model, 0.5)
    with pytest.raises(AssertionError, match="waits for the device"), HostReads():
        take_step(optimizer, model, 0.5)


@every_optimizer
def test_an_overflow_changes_nothing(name: str) -> None:
    model, untouched = Mixed(), Mixed()
    optimizers = [build_optimizer(each, settings_of(name)) for each in (model, untouched)]
    found = torch.zeros(())
    optimizers[0].found_inf = found  # type: ignore[attr-defined]

    def skip() -> None:
        found.fill_(1.0)
        take_step(optimizers[0], model, 0.0)
        found.fill_(0.0)

    skip()
    for seed in (1, 2):
        take_random_step(optimizers[0], model, seed)
        take_random_step(optimizers[1], untouched, seed)
        skip()
        skip()
    assert not torch.equal(model.weight, Mixed().weight)
    for parameter, expected in zip(model.parameters(), untouched.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-6, atol=1e-7)
    states = [optimizer_tensors(o, m) for o, m in zip(optimizers, (model, untouched), strict=True)]
    for key, tensor in states[1].items():
        torch.testing.assert_close(states[0][key], tensor, rtol=1e-6, atol=1e-9)


@every_optimizer
def test_a_learning_rate_of_0_leaves_the_weights_unchanged(name: str) -> None:
    model = Mixed()
    optimizer = build_optimizer(model, settings_of(name))
    before = copy.deepcopy(model.state_dict())
    take_random_step(optimizer, model, 0)
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[key])


@every_optimizer
def test_frozen_parameters_and_those_without_a_gradient_stay_unchanged(name: str) -> None:
    model = Mixed()
    model.kernel.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    optimizer = build_optimizer(model, settings_of(name))
    model.weight.grad = torch.ones(5, 3)
    optimizer.step()
    assert not torch.equal(model.weight, before["weight"])
    assert torch.equal(model.kernel, before["kernel"])
    assert not [key for key in optimizer_tensors(optimizer, model) if key.startswith("kernel")]
    assert torch.equal(model.bias, before["bias"])


def test_large_and_many_parameters_are_all_updated() -> None:
    """They are more than one operation updates."""
    model = nn.ParameterList([nn.Parameter(torch.ones(n)) for n in (3, 300_000, 200_000, 100_000, 5)])
    optimizer = build_optimizer(model, settings_of("sgd"))
    take_step(optimizer, model, 1.0)
    assert [p.unique().tolist() for p in model] == [pytest.approx([0.99])] * 5
