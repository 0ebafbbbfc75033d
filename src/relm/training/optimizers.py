"""Optimizers and their state as named tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from relm.recipe import Optimizer


def build_optimizer(model: nn.Module, settings: Optimizer) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019) over float32 weights, with its state in float32.

    Weight decay is for matrices and embeddings; vectors (biases, normalisation) are never decayed.
    """
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=settings.betas, eps=settings.epsilon, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Take the next step with this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Everything that the optimizer remembers, as PARAMETER.KEY -> tensor."""
    return {
        f"{name}.{key}": tensor
        for name, parameter in model.named_parameters()
        for key, tensor in optimizer.state[parameter].items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put back copies of what `optimizer_tensors` gave, on each parameter's device."""
    parameters = dict(model.named_parameters())
    for entry, tensor in tensors.items():
        name, _, key = entry.rpartition(".")
        optimizer.state[parameters[name]][key] = tensor.to(parameters[name].device, copy=True)
