"""Weights and gradients for comparisons."""

from typing import TypeVar

import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def randomised(model: Model, spread: float = 0.5) -> Model:
    """Return the model with every parameter random and large, biases and normalisation too, so that none can be ignored."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, spread, generator=generator)
    return model


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the gradient of each parameter that has one."""
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_same_gradients(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], atol: float = 1e-6) -> None:
    assert set(ours) == set(theirs)
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-4, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
