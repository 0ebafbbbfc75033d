"""Muon and groups of parameters: the steps are the original's, and settings reach the parameters that they name."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from relm.errors import RelmError
from relm.models.gpt2 import Gpt2, Gpt2Config
from relm.models.modded_gpt import ModdedGpt
from relm.models.modded_gpt_configuration import ModdedGptConfig
from relm.recipes.optimization import Optimizer
from relm.training.optimizers import build_optimizer, set_learning_rate
from relm.training.optimizers.building import parameter_groups
from relm.training.optimizers.muon import orthogonalise

MODDED = ModdedGptConfig(layers=1, heads=2, hidden_size=16, positions=8, vocabulary_size=11)
GROUPS = {"embeddings": {"learning_rate": 0.4}, "head": {"learning_rate": 0.2, "betas": (0.8, 0.9)}}
SHAPES = [(8, 8), (8, 32), (32, 8)]


def settings(**keys: Any) -> Optimizer:
    return Optimizer.model_validate({"learning_rate": 0.1, **keys})


def initialised() -> ModdedGpt:
    model = ModdedGpt(MODDED)
    model.initialise(torch.Generator().manual_seed(1))
    return model


@pytest.mark.parametrize("shape", SHAPES)
def test_newton_schulz_steps_leave_orthogonal_rows_or_columns(shape: tuple[int, int]) -> None:
    found = orthogonalise(torch.randn(shape, generator=torch.Generator().manual_seed(1)), 1e-7).float()
    square = found @ found.T if shape[0] <= shape[1] else found.T @ found
    assert (square - torch.eye(min(shape))).abs().max() < 0.1
    assert not orthogonalise(torch.zeros(shape), 1e-7).any()


@pytest.mark.skipif("MODDED_NANOGPT" not in os.environ, reason="MODDED_NANOGPT names no checkout of the original")
@pytest.mark.parametrize("shape", SHAPES)
def test_newton_schulz_steps_are_the_originals_bit_for_bit(shape: tuple[int, int]) -> None:
    text = Path(os.environ["MODDED_NANOGPT"], "records/track_3_optimization/train_gpt_simple.py").read_text()
    definition = re.search(r"^def zeropower_via_newtonschulz5.*?(?=^@)", text, re.M | re.S)
    assert definition
    names: dict[str, Any] = {"Tensor": torch.Tensor}
    exec(definition[0], names)
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    assert torch.equal(orthogonalise(matrix, 1e-7), names["zeropower_via_newtonschulz5"](matrix))


def test_groups_have_their_own_rates_and_muon_takes_the_matrices_of_layers() -> None:
    model = initialised()
    groups = parameter_groups(model, settings(name="muon", weight_decay=0.3, groups=GROUPS))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {
        names[id(parameter)]: (round(group["rate_ratio"], 6), group["weight_decay"], group["betas"], width)
        for group in groups
        for parameter, width in zip(group["params"], group["widths"] or [None] * len(group["params"]), strict=True)
    }
    layer = "transformer.h.0."
    assert found["transformer.wte.weight"] == (4.0, 0.0, (0.9, 0.999), None)
    assert found["lm_head.weight"] == (2.0, 0.0, (0.8, 0.9), None)
    assert found["lm_head.bias"] == (1.0, 0.0, (0.9, 0.999), None)
    assert found[layer + "attn.c_attn.weight"] == (1.0, 0.3, (0.9, 0.999), (16, 16, 16))
    assert found[layer + "mlp.c_fc.weight"] == (1.0, 0.3, (0.9, 0.999), (64,))


@pytest.mark.parametrize("form", ["pytorch", "transformers"])
def test_adamw_steps_each_group_as_a_separate_optimizer(form: str) -> None:
    together, apart = initialised(), initialised()
    optimizers = [build_optimizer(together, settings(form=form, groups=GROUPS))]
    for name, parameter in apart.named_parameters():
        kind = {"transformer.wte.weight": "embeddings", "lm_head.weight": "head"}.get(name)
        holder = torch.nn.Module()
        holder.weight = parameter
        keys = {"learning_rate": 0.1, "betas": (0.9, 0.999), **(GROUPS[kind] if kind else {})}
        optimizers.append(build_optimizer(holder, settings(form=form, **keys)))
    for step in range(3):
        for model in (together, apart):
            generator = torch.Generator().manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        set_learning_rate(optimizers[0], 0.1)  # from here on its groups have rates of their own
        for optimizer in optimizers:
            optimizer.step()
    for found, expected in zip(together.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_a_group_of_parameters_that_the_model_lacks_is_refused() -> None:
    model = Gpt2(Gpt2Config(1, 2, 16, 8, 11))
    with pytest.raises(RelmError, match=r"groups\.head: the model has only embeddings, matrices, vectors"):
        build_optimizer(model, settings(name="muon", groups=GROUPS))
