"""Adafactor against transformers' and against the paper's algorithm in numpy and float64."""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from relm.recipes.optimization import Optimizer
from relm.training.optimizers import build_optimizer, set_learning_rate

Array = npt.NDArray[np.float64]
SWITCHES = [
    {"scale_parameter": scale, "relative_step": relative, "warmup_init": warmup}
    for scale, relative, warmup in itertools.product([False, True], repeat=3)
    if relative or not warmup
]


def model_of(seed: int = 0) -> nn.ParameterList:
    """Return factored parameters of two and three dimensions, and a vector; one is below scale_parameter's least value."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(5, 3), (2, 3, 4), (7,), (4, 4)]
    tensors = [torch.randn(shape, generator=generator) for shape in shapes]
    tensors[-1] *= 1e-5
    return nn.ParameterList([nn.Parameter(tensor) for tensor in tensors])


def give_gradients(model: nn.ParameterList, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model:
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 10.0 ** (step % 3 - 1)


def build(model: nn.Module, learning_rate: float = 0.02, weight_decay: float = 0.0, **switches: Any) -> torch.optim.Optimizer:
    given = {
        "name": "adafactor",
        "learning_rate": 1.0 if switches.get("relative_step") else learning_rate,
        "weight_decay": weight_decay,
        "decayed": "all_but_biases",  # transformers' decays all; none of these is named a bias
        "adafactor": switches,
    }
    return build_optimizer(model, Optimizer.model_validate(given))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("beta1", [None, 0.9])
@pytest.mark.parametrize("switches", SWITCHES, ids=lambda s: "-".join(k for k, v in s.items() if v) or "none")
def test_it_is_transformers_for_all_switches(switches: dict[str, bool], beta1: float | None, weight_decay: float) -> None:
    from transformers.optimization import Adafactor

    model, other = model_of(), model_of()
    ours = build(model, weight_decay=weight_decay, beta1=beta1, clip_threshold=0.7, decay_rate=-0.6, **switches)
    rate = None if switches["relative_step"] else 0.02
    peer = Adafactor(other, lr=rate, beta1=beta1, weight_decay=weight_decay, clip_threshold=0.7, decay_rate=-0.6, **switches)
    for step in range(1, 8):
        for each in (model, other):
            give_gradients(each, step)
        ours.step()
        peer.step()
        for parameter, expected in zip(model, other, strict=True):
            torch.testing.assert_close(parameter, expected, rtol=3e-6, atol=1e-7)
    assert not torch.equal(model[0], model_of()[0])


def test_it_is_the_papers_algorithm_for_matrices() -> None:
    """Algorithm 4, with the relative step and the decay 1 - t ** -0.8 of section 9, and clipping at 1."""
    model = nn.ParameterList([model_of()[0]])
    optimizer = build(model, relative_step=True, scale_parameter=True)
    weight = model[0].detach().double().numpy().copy()
    rows, columns = np.zeros(5), np.zeros(3)
    for t in range(1, 6):
        give_gradients(model, t)
        gradient = model[0].grad.double().numpy()
        optimizer.step()

        beta2 = 1 - t**-0.8
        squared = gradient**2 + 1e-30
        rows = beta2 * rows + (1 - beta2) * squared.sum(axis=1)
        columns = beta2 * columns + (1 - beta2) * squared.sum(axis=0)
        update = gradient / np.sqrt(np.outer(rows, columns) / rows.sum())
        update /= max(1.0, float(np.sqrt((update**2).mean())))
        step_size = max(1e-3, float(np.sqrt((weight**2).mean()))) * min(1e-2, t**-0.5)
        weight = weight - step_size * update
        np.testing.assert_allclose(model[0].detach().numpy(), weight, rtol=2e-6, atol=2e-7)


def test_an_update_is_clipped_to_a_root_mean_square_of_the_threshold() -> None:
    """At the first step every element of a vector's update is 1 before clipping."""
    model = nn.ParameterList([nn.Parameter(torch.zeros(7))])
    optimizer = build(model, learning_rate=0.1, scale_parameter=False, clip_threshold=0.5)
    give_gradients(model, 1)
    optimizer.step()
    assert model[0].detach().abs().tolist() == pytest.approx([0.05] * 7, rel=1e-5)


def test_the_state_of_a_matrix_is_its_rows_and_columns() -> None:
    model = model_of()
    optimizer = build(model)
    shapes = [{key: tuple(t.shape) for key, t in optimizer.state[p].items()} for p in model]
    assert shapes == [
        {"exp_avg_sq_row": (5,), "exp_avg_sq_col": (3,)},
        {"exp_avg_sq_row": (2, 3), "exp_avg_sq_col": (2, 4)},
        {"exp_avg_sq": (7,)},
        {"exp_avg_sq_row": (4,), "exp_avg_sq_col": (4,)},
    ]


def test_a_parameter_without_any_gradient_stays_finite() -> None:
    model = model_of()
    before = model[0].detach().clone()
    optimizer = build(model, relative_step=True)
    for _ in range(2):
        for parameter in model:
            parameter.grad = torch.zeros_like(parameter)
        set_learning_rate(optimizer, 1.0)
        optimizer.step()
    assert torch.equal(model[0], before)
