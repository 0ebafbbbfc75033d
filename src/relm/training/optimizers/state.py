"""An optimizer's state as named tensors, saved and restored bit for bit."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from relm.training.optimizers.adam import Adam
from relm.training.optimizers.tensor_optimizer import TensorOptimizer

# Name of a `TensorOptimizer`'s count of updates among tensors named PARAMETER.KEY.
UPDATES = "updates"
# Suffix of the counts that torch's AdamW has instead, one for each parameter.
_STEP = ".step"


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's state as PARAMETER.KEY -> tensor, with the count of its updates."""
    tensors = {
        f"{name}.{key}": tensor
        for name, parameter in model.named_parameters()
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }
    return {**tensors, UPDATES: optimizer.updates} if isinstance(optimizer, TensorOptimizer) else tensors


def restore_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor], copy: bool = True
) -> None:
    """Restore the result of `optimizer_tensors` on each parameter's device; without `copy` it may keep the tensors."""
    parameters = dict(model.named_parameters())
    if isinstance(optimizer, TensorOptimizer):
        own = optimizer_tensors(optimizer, model)
        if faults := [name for name in {**own, **tensors} if not _fits(own.get(name), tensors.get(name))]:
            raise ValueError(f"not the state of this {type(optimizer).__name__}: {', '.join(sorted(faults)[:5])}")
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
        return
    parts = {entry: entry.rpartition(".") for entry in tensors}
    if unknown := [entry for entry, (name, _, _) in parts.items() if name not in parameters]:
        raise ValueError(f"not the state of this model's {type(optimizer).__name__}: {', '.join(sorted(unknown)[:5])}")
    for entry, (name, _, key) in parts.items():
        optimizer.state[parameters[name]][key] = tensors[entry].to(parameters[name].device, copy=copy)


def convert_update_counts(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the state of an AdamW of another device with its updates counted as `optimizer` counts them.

    Torch's fused AdamW, which some devices lack, counts them for each parameter, ours only once; the moving averages are equal.
    """
    steps = {entry: tensor for entry, tensor in tensors.items() if entry.endswith(_STEP)}
    own = isinstance(optimizer, Adam) and optimizer.decoupled and optimizer.bias_correction and optimizer.form == "pytorch"
    if own and UPDATES not in tensors and len({tensor.item() for tensor in steps.values()}) == 1:
        means = {entry: tensor for entry, tensor in tensors.items() if entry not in steps}
        return {**means, UPDATES: next(iter(steps.values())).float()}
    if isinstance(optimizer, torch.optim.AdamW) and UPDATES in tensors:
        means = {entry: tensor for entry, tensor in tensors.items() if entry != UPDATES}
        parameters = {entry.rpartition(".")[0] for entry in means}
        return {**means, **{parameter + _STEP: tensors[UPDATES].clone() for parameter in parameters}}
    return tensors


def _fits(own: Tensor | None, other: Tensor | None) -> bool:
    return own is not None and other is not None and (own.shape, own.dtype) == (other.shape, other.dtype)
