"""Build a recipe's optimizer for a model's parameters."""

from typing import Any

import torch
from torch import Tensor, nn

from relm.devices.ipu.update_rules import is_decayed
from relm.errors import RelmError
from relm.recipes.declaration import load
from relm.recipes.optimization import OPTIMIZERS, Optimizer
from relm.training.optimizers.tensor_optimizer import ELEMENTS_PER_OPERATION, Groups, TensorOptimizer


def weight_type(settings: Optimizer) -> torch.dtype:
    """Return the dtype of weights and optimizer state; convert the model to it before the optimizer is built."""
    return torch.bfloat16 if settings.state_precision == "bfloat16" else torch.float32


def build_optimizer(
    model: nn.Module, settings: Optimizer, traced: bool = False, elements_per_operation: int = ELEMENTS_PER_OPERATION
) -> torch.optim.Optimizer:
    """Return the optimizer of a recipe for the parameters of `model`, which stay on their device.

    The last two arguments are `traces` and `elements_per_operation` of that device (`relm.devices.contract.Device`).
    """
    expected = weight_type(settings)
    for name, parameter in model.named_parameters():
        if parameter.dtype != expected:
            raise ValueError(f"{name} is {parameter.dtype}, expected {expected}: convert the model first")
    groups = [
        {**group, "traced": traced, "elements_per_operation": elements_per_operation}
        for group in parameter_groups(model, settings)
    ]
    optimizer: torch.optim.Optimizer = load(OPTIMIZERS[settings.name].build)(groups, settings)
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float | Tensor) -> None:
    """Set the learning rate of the next step: a number or, for a `TensorOptimizer`, a scalar on its device."""
    if isinstance(optimizer, TensorOptimizer):
        # Copied from a tensor: a Python number would be a constant of a traced program.
        given = learning_rate if isinstance(learning_rate, Tensor) else torch.tensor(learning_rate, dtype=torch.float32)
        optimizer.learning_rate.copy_(given, non_blocking=True)
    else:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * group.get("rate_ratio", 1.0)


def parameter_groups(model: nn.Module, settings: Optimizer) -> Groups:
    """Return the trainable parameters in groups with the same settings.

    Each group has `params`, `weight_decay`, `rate_ratio` (its learning rate divided by the optimizer's), `betas` and `adapted`,
    true if LAMB gives its parameters a trust ratio. Muon's groups also have `widths`: for each parameter the widths of the maps
    (in, out) that it concatenates, empty for one map stored (out, in); None for a group that Adam trains.
    """
    modules = {f"{name}.weight": module for name, module in model.named_modules()}
    together: dict[tuple[Any, ...], list[str]] = {}
    kinds: set[str] = set()
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name, parameter in parameters.items():
        is_matrix = parameter.dim() >= 2
        kind = kind_of(name, parameter, modules.get(name))
        decay = settings.weight_decay if is_decayed(settings.decayed, name, parameter.dim()) else 0.0
        own = settings.groups.get(kind)  # type: ignore[call-overload]
        rate, betas = settings.learning_rate, settings.betas
        if own is not None:
            rate, decay, betas = own.learning_rate, own.weight_decay, own.betas or betas
        adapted = is_matrix or settings.lamb.adapted == "all"
        orthogonalised = settings.name == "muon" and kind == "matrices"
        together.setdefault((decay, rate / settings.learning_rate, betas, adapted, orthogonalised), []).append(name)
        kinds.add(kind)
    if unused := [kind for kind in settings.groups if kind not in kinds]:
        raise RelmError(f"optimizer.groups.{unused[0]}: the model has only {', '.join(sorted(kinds))}; remove this group")
    return [
        {
            "params": [parameters[name] for name in names],
            "weight_decay": decay,
            "rate_ratio": ratio,
            "betas": betas,
            "adapted": adapted,
            "widths": [getattr(modules.get(name), "widths", ()) for name in names] if orthogonalised else None,
        }
        for (decay, ratio, betas, adapted, orthogonalised), names in together.items()
    ]


def kind_of(name: str, parameter: Tensor, module: nn.Module | None) -> str:
    """Return the kind of a parameter: embeddings, head, vectors or matrices (`relm.recipes.optimization.Optimizer.groups`)."""
    if parameter.dim() < 2:
        return "vectors"
    if isinstance(module, nn.Embedding):
        return "embeddings"
    return "head" if name == "lm_head.weight" else "matrices"
