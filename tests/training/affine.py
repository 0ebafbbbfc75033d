"""A tiny model, and a step of it with one gradient for every number."""

import torch
from torch import nn


class Affine(nn.Module):
    """One matrix and one vector."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))
        self.bias = nn.Parameter(torch.ones(2))


def take_step(optimizer: torch.optim.Optimizer, model: nn.Module, gradient: float) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step()
