"""From a recipe's section to an optimizer of a model's parameters."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from relm.recipes.optimization import Optimizer
from relm.training.optimizers.adafactor import Adafactor
from relm.training.optimizers.adam import Adam
from relm.training.optimizers.lamb import Lamb
from relm.training.optimizers.sgd import Sgd
from relm.training.optimizers.tensor_optimizer import TensorOptimizer

Groups = list[dict[str, Any]]
# Where torch has a kernel for a whole step of AdamW.
_FUSED_ON = ("cpu", "cuda")


def weight_type(settings: Optimizer) -> torch.dtype:
    """The type in which weights and optimizer state are kept: convert the model to it before the optimizer is built."""
    return torch.bfloat16 if settings.state_precision == "bfloat16" else torch.float32


def build_optimizer(model: nn.Module, settings: Optimizer) -> torch.optim.Optimizer:
    """The optimizer of a recipe for the parameters of `model`, which stay where they are.

    Weight decay is for matrices and embeddings alone, or with ``decayed: all_but_biases`` for normalisation too.

    Raises:
        ValueError: a parameter is not of `weight_type`.
    """
    expected = weight_type(settings)
    for name, parameter in model.named_parameters():
        if parameter.dtype != expected:
            raise ValueError(f"{name} is {parameter.dtype}, expected {expected}: convert the model first")
    groups = parameter_groups(model, settings)
    if _is_library_adamw(settings, groups):
        return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=settings.betas, eps=settings.epsilon, fused=True)
    return _BUILDERS[settings.name](groups, settings)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float | Tensor) -> None:
    """Take the next step with this learning rate, a number or, of one of our own optimizers, a scalar on its device."""
    if isinstance(optimizer, TensorOptimizer):
        # Copied from a tensor: a number would be a part of the program that a tracing compiler sees.
        given = learning_rate if isinstance(learning_rate, Tensor) else torch.tensor(learning_rate, dtype=torch.float32)
        optimizer.learning_rate.copy_(given, non_blocking=True)
    else:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate


def parameter_groups(model: nn.Module, settings: Optimizer) -> Groups:
    """The parameters that learn, together with those that are treated like them.

    Each group has `params`, `weight_decay`, and `adapted`: whether LAMB gives its parameters a trust ratio.
    """
    together: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_matrix = parameter.dim() >= 2
            decayed = is_matrix if settings.decayed == "matrices" else not name.endswith("bias")
            adapted = is_matrix or settings.lamb.adapted == "all"
            together.setdefault((decayed, adapted), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": settings.weight_decay if decayed else 0.0, "adapted": adapted}
        for (decayed, adapted), parameters in together.items()
    ]


def _is_library_adamw(settings: Optimizer, groups: Groups) -> bool:
    """Whether torch's fused AdamW does what is asked for, where the parameters are."""
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    plain = settings.name == "adamw" and settings.bias_correction and settings.form == "pytorch"
    return plain and settings.state_precision == "float32" and devices <= set(_FUSED_ON)


def _adam(groups: Groups, settings: Optimizer) -> Adam:
    return Adam(
        groups,
        settings.learning_rate,
        settings.betas,
        settings.epsilon,
        settings.bias_correction,
        settings.form,
        decoupled=settings.name == "adamw",
    )


def _lamb(groups: Groups, settings: Optimizer) -> Lamb:
    return Lamb(
        groups,
        settings.learning_rate,
        settings.betas,
        settings.epsilon,
        settings.bias_correction,
        settings.lamb.weight_norm_clip,
        settings.lamb.normalise_gradient,
    )


def _adafactor(groups: Groups, settings: Optimizer) -> Adafactor:
    return Adafactor(groups, settings.learning_rate, **dict(settings.adafactor))


def _sgd(groups: Groups, settings: Optimizer) -> Sgd:
    return Sgd(groups, settings.learning_rate, settings.sgd.momentum, settings.sgd.nesterov)


_BUILDERS: dict[str, Callable[[Groups, Optimizer], TensorOptimizer]] = {
    "adamw": _adam,
    "adam": _adam,
    "lamb": _lamb,
    "adafactor": _adafactor,
    "sgd": _sgd,
}
