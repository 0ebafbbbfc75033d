"""The distributions of initial weights: mean, standard deviation and kurtosis of every kind of matrix."""

import math
from dataclasses import replace

import pytest
import torch
from t5_cases import FORMS
from torch import Tensor
from transformers import AutoConfig

from relm.models.t5 import T5, T5Config

GATED = T5Config(
    layers=2, heads=6, head_size=25, hidden_size=100, intermediate_size=400, vocabulary_size=300, initializer_factor=0.5
)  # fmt: skip
RELU = replace(GATED, tied_head=True, feed_forward="relu")
# Standard deviation of each kind, before the factor: 100 wide, 6 heads of 25, 400 in between.
SPREADS = {
    "shared": 1.0,
    "lm_head": 1.0,
    "q": 1 / 50,
    "k": 1 / 10,
    "v": 1 / 10,
    "o": 150**-0.5,
    "relative_attention_bias": 1 / 10,
    "wi_0": 1 / 10,
    "wi_1": 1 / 10,
    "wi": 1 / 10,
    "wo": 1 / 20,
}


def initialised(config: T5Config, seed: int = 0) -> T5:
    model = T5(config)
    model.initialise(torch.Generator().manual_seed(seed))
    return model


def numbers(model: T5, kind: str) -> Tensor:
    found = [parameter.flatten() for name, parameter in model.named_parameters() if f".{name}".endswith(f".{kind}.weight")]
    return torch.cat(found).detach().double()


@pytest.mark.parametrize("kind", SPREADS)
def test_every_kind_of_matrix_has_the_moments_of_its_distribution(kind: str) -> None:
    values = numbers(initialised(RELU if kind == "wi" else GATED), kind)
    std, n = 0.5 * SPREADS[kind], len(values)
    # Five standard errors of each estimate: with so many numbers, which are fixed by the seed, a wrong width shows.
    assert values.mean().item() == pytest.approx(0.0, abs=5 * std / math.sqrt(n))
    assert values.std().item() == pytest.approx(std, rel=5 * math.sqrt(0.5 / n))
    standardised = (values - values.mean()) / values.std()
    assert (standardised**4).mean().item() == pytest.approx(3.0, abs=5 * math.sqrt(24 / n))


@pytest.mark.parametrize("config", [GATED, RELU], ids=["gated", "relu"])
def test_every_matrix_is_of_a_kind_and_normalisation_is_the_factor(config: T5Config) -> None:
    for name, parameter in initialised(config).named_parameters():
        if parameter.dim() == 1:
            assert parameter.eq(0.5).all(), name
        else:
            assert name.split(".")[-2] in SPREADS, name


@pytest.mark.parametrize("form", ["1.0", "mt5-tied"])
def test_transformers_spreads_every_parameter_alike(form: str) -> None:
    """The head is tied, since transformers 5 draws no other."""
    config = replace(GATED, feed_forward=FORMS[form][0].feed_forward, tied_head=True, family=FORMS[form][0].family)
    torch.manual_seed(0)
    theirs = dict(FORMS[form][1](AutoConfig.for_model(**config.to_huggingface())).named_parameters())
    ours = dict(initialised(config).named_parameters())
    assert set(ours) == set(theirs)
    for name, parameter in ours.items():
        sizes = [tensor.detach().double().square().mean().sqrt().item() for tensor in (parameter, theirs[name])]
        tolerance = 0.0 if parameter.dim() == 1 else 5 / math.sqrt(parameter.numel())
        assert sizes[0] == pytest.approx(sizes[1], rel=tolerance), name
