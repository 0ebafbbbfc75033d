"""LAMB against an implementation in numpy and float64, written from algorithm 2 of You et al. (2020)."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from relm.models.bert import Bert, BertConfig
from relm.recipes.optimization import Optimizer
from relm.training.optimizers import build_optimizer

Array = npt.NDArray[np.float64]
BETAS, EPSILON, DECAY, RATE = (0.9, 0.98), 1e-6, 0.01, 0.02


class Layer(nn.Module):
    """A matrix, its bias, and a normalisation."""

    def __init__(self, weight: Array) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight, dtype=torch.float32))
        self.bias = nn.Parameter(torch.linspace(0.5, 1.5, weight.shape[1]))
        self.norm = nn.LayerNorm(weight.shape[1])


def layer() -> Layer:
    return Layer(np.random.default_rng(0).standard_normal((6, 4)))


def gradients_of(model: nn.Module, step: int) -> dict[str, Array]:
    generator = np.random.default_rng(step)
    # The global norm is below 1 at the first step, and above it later.
    return {name: generator.standard_normal(tuple(p.shape)) * 0.1 * step for name, p in model.named_parameters()}


def train(model: nn.Module, steps: int, **settings: Any) -> None:
    given = {"name": "lamb", "learning_rate": RATE, "betas": BETAS, "epsilon": EPSILON, "weight_decay": DECAY}
    optimizer = build_optimizer(model, Optimizer.model_validate(given | settings))
    for step in range(1, steps + 1):
        gradients = gradients_of(model, step)
        for name, parameter in model.named_parameters():
            parameter.grad = torch.tensor(gradients[name], dtype=torch.float32)
        optimizer.step()


def trust_ratio(weight: Array, update: Array, clip: float) -> float:
    weight_norm, update_norm = min(float(np.linalg.norm(weight)), clip), float(np.linalg.norm(update))
    return weight_norm / update_norm if weight_norm > 0 and update_norm > 0 else 1.0


def expected(
    model: nn.Module,
    steps: int,
    corrects: bool = True,
    undecayed: tuple[str, ...] = ("bias", "norm"),
    unadapted: tuple[str, ...] = ("bias", "norm"),
    clip: float = np.inf,
    normalises: bool = False,
) -> dict[str, Array]:
    """Return the weights after some steps; parameters with one of the words in their name are not decayed or adapted."""
    weights = {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}
    first, second = ({name: np.zeros_like(w) for name, w in weights.items()} for _ in range(2))
    for t in range(1, steps + 1):
        gradients = gradients_of(model, t)
        if normalises:
            norm = np.sqrt(sum((g**2).sum() for g in gradients.values()))
            gradients = {name: g / max(norm, 1.0) for name, g in gradients.items()}
        for name, weight in weights.items():
            first[name] = BETAS[0] * first[name] + (1 - BETAS[0]) * gradients[name]
            second[name] = BETAS[1] * second[name] + (1 - BETAS[1]) * gradients[name] ** 2
            m, v = first[name], second[name]
            if corrects:
                m, v = m / (1 - BETAS[0] ** t), v / (1 - BETAS[1] ** t)
            update = m / (np.sqrt(v) + EPSILON)
            if not any(word in name for word in undecayed):
                update = update + DECAY * weight
            ratio = 1.0 if any(word in name for word in unadapted) else trust_ratio(weight, update, clip)
            weights[name] = weight - RATE * ratio * update
    return weights


def test_a_berts_parameters_are_in_the_groups_of_the_originals_patterns() -> None:
    """Graphcore's BERT for TensorFlow 1, ipu_optimizer.py: names with these words are not decayed, or not adapted."""
    undecayed, unadapted = ("bias", "beta"), ("bias", "beta", "gamma")
    sizes = {"layers": 1, "heads": 2, "hidden_size": 4, "intermediate_size": 6, "positions": 5, "vocabulary_size": 7}
    model = Bert(BertConfig(**sizes, next_sentence=True))
    model.initialise(torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)  # so that biases would decay, too
    before = {name: parameter.detach().double().numpy().copy() for name, parameter in model.named_parameters()}
    first = gradients_of(model, 1)
    train(model, 1, bias_correction=False, decayed="all_but_biases")
    groups = set()
    for name, parameter in model.named_parameters():
        variable = name.replace("LayerNorm.weight", "gamma").replace("LayerNorm.bias", "beta")
        is_decayed, is_adapted = (not any(word in variable for word in words) for words in (undecayed, unadapted))
        groups.add((is_decayed, is_adapted))
        m, v = (1 - BETAS[0]) * first[name], (1 - BETAS[1]) * first[name] ** 2
        update = m / (np.sqrt(v) + EPSILON) + (DECAY * before[name] if is_decayed else 0.0)
        ratio = trust_ratio(before[name], update, np.inf) if is_adapted else 1.0
        wanted = before[name] - RATE * ratio * update
        np.testing.assert_allclose(parameter.detach().numpy(), wanted, rtol=2e-5, atol=2e-7, err_msg=name)
    assert groups == {(True, True), (True, False), (False, False)}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "right": ({}, {}),
    "without bias correction": ({"bias_correction": False}, {"corrects": False}),
    "graphcore bert": (
        {"bias_correction": False, "decayed": "all_but_biases"},
        {"corrects": False, "undecayed": ("bias",)},
    ),
    "graphcore gpt-2": ({"lamb": {"adapted": "all"}}, {"unadapted": ()}),
    "graphcore gpt-2 without bias correction": (
        {"lamb": {"adapted": "all"}, "bias_correction": False},
        {"unadapted": (), "corrects": False},
    ),
    "clipped weight norm": ({"lamb": {"weight_norm_clip": 1.5}}, {"clip": 1.5}),
    "nvlamb": ({"lamb": {"normalise_gradient": True}}, {"normalises": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_weights_are_those_of_an_independent_lamb(case: str) -> None:
    settings, options = CASES[case]
    model = layer()
    wanted = expected(model, 5, **options)
    train(model, 5, **settings)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), wanted[name], rtol=2e-6, atol=2e-7, err_msg=name)


def test_a_weight_of_norm_0_and_a_step_of_norm_0_have_the_ratio_1() -> None:
    model = Layer(np.zeros((2, 2)))
    optimizer = build_optimizer(model, Optimizer(name="lamb", learning_rate=0.1, epsilon=1e-6))
    model.weight.grad = torch.full((2, 2), 3.0)
    optimizer.step()
    np.testing.assert_allclose(model.weight.detach().numpy(), -0.1, rtol=1e-5)  # as Adam's first step

    resting = layer()
    before = resting.weight.detach().clone()
    optimizer = build_optimizer(resting, Optimizer(name="lamb", learning_rate=0.1, epsilon=1e-6))
    resting.weight.grad = torch.zeros(6, 4)
    optimizer.step()
    assert torch.equal(resting.weight, before)


def test_separate_query_key_and_value_have_the_three_ratios_of_a_fused_matrix() -> None:
    """Graphcore's BERT keeps them side by side in one (hidden, 3 hidden) matrix, and takes the norm of each third."""
    hidden = 4
    generator = np.random.default_rng(1)
    fused, gradient = (generator.standard_normal((hidden, 3 * hidden)) for _ in range(2))
    fused[:, hidden : 2 * hidden] *= 10  # the thirds have norms of their own
    m, v = (1 - BETAS[0]) * gradient, (1 - BETAS[1]) * gradient**2
    update = (m / (np.sqrt(v) + EPSILON) + DECAY * fused).reshape(hidden, 3, hidden)
    thirds = fused.reshape(hidden, 3, hidden)
    ratios = np.sqrt((thirds**2).sum(axis=(0, 2)) / (update**2).sum(axis=(0, 2)))
    wanted = fused - RATE * (update * ratios[None, :, None]).reshape(hidden, 3 * hidden)

    parts = [torch.tensor(part, dtype=torch.float32) for part in np.split(fused, 3, axis=1)]
    model = nn.ParameterList([nn.Parameter(part) for part in parts])
    given = {"name": "lamb", "learning_rate": RATE, "betas": BETAS, "epsilon": EPSILON, "weight_decay": DECAY}
    optimizer = build_optimizer(model, Optimizer.model_validate(given | {"bias_correction": False}))
    for parameter, part in zip(model, np.split(gradient, 3, axis=1), strict=True):
        parameter.grad = torch.tensor(part, dtype=torch.float32)
    optimizer.step()
    together = np.concatenate([parameter.detach().numpy() for parameter in model], axis=1)
    np.testing.assert_allclose(together, wanted, rtol=1e-5, atol=1e-6)
