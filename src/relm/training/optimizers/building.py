"""Build a recipe's optimizer for a model's parameters."""

import torch
from torch import Tensor, nn

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

    Weight decay is for matrices and embeddings alone, or with ``decayed: all_but_biases`` for normalisation too.

    Args:
        traced: `traces` of the model's device; see `relm.devices.contract.Device`.
        elements_per_operation: `elements_per_operation` of that device.
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
    """Set the learning rate of the next step, a number or, for one of our own optimizers, a scalar on its device."""
    if isinstance(optimizer, TensorOptimizer):
        # Copied from a tensor: a Python number would be a constant of a traced program.
        given = learning_rate if isinstance(learning_rate, Tensor) else torch.tensor(learning_rate, dtype=torch.float32)
        optimizer.learning_rate.copy_(given, non_blocking=True)
    else:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate


def parameter_groups(model: nn.Module, settings: Optimizer) -> Groups:
    """Return the trainable parameters in groups with the same settings.

    Each group has `params`, `weight_decay`, and `adapted`, which is true where LAMB gives its parameters a trust ratio.
    """
    together: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_matrix = parameter.dim() >= 2
            decayed = is_decayed(name, is_matrix, settings)
            adapted = is_matrix or settings.lamb.adapted == "all"
            together.setdefault((decayed, adapted), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": settings.weight_decay if decayed else 0.0, "adapted": adapted}
        for (decayed, adapted), parameters in together.items()
    ]


def is_decayed(name: str, is_matrix: bool, settings: Optimizer) -> bool:
    """Return True for a parameter with weight decay, as `decayed` of the section selects."""
    if settings.decayed == "all_but_biases":
        return not name.endswith("bias")
    return is_matrix or (settings.decayed == "tpu_pretrain" and name.endswith("transform.LayerNorm.weight"))
