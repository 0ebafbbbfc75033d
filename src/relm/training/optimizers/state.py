"""An optimizer's memory as named tensors, to be saved and put back bit for bit."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from relm.training.optimizers.adam import Adam
from relm.training.optimizers.tensor_optimizer import TensorOptimizer

# Of a `TensorOptimizer`, beside PARAMETER.KEY: how many updates it has taken.
UPDATES = "updates"
# What torch's AdamW has in its place, for each parameter.
_STEP = ".step"


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Everything that the optimizer remembers, as PARAMETER.KEY -> tensor, and the count of its updates."""
    tensors = {
        f"{name}.{key}": tensor
        for name, parameter in model.named_parameters()
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }
    return {**tensors, UPDATES: optimizer.updates} if isinstance(optimizer, TensorOptimizer) else tensors


def restore_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor], copy: bool = True
) -> None:
    """Put back copies of what `optimizer_tensors` gave, on each parameter's device.

    Args:
        copy: False: the tensors may become the optimizer's own, where nobody else needs them; that saves their memory.

    Raises:
        ValueError: they are of another optimizer or model; nothing has been put back then.
    """
    parameters = dict(model.named_parameters())
    if isinstance(optimizer, TensorOptimizer):
        own = optimizer_tensors(optimizer, model)
        if faults := [name for name in {**own, **tensors} if not _fits(own.get(name), tensors.get(name))]:
            raise ValueError(f"not the state of this {type(optimizer).__name__}: {', '.join(sorted(faults)[:5])}")
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
        return
    places = {entry: entry.rpartition(".") for entry in tensors}
    if strange := [entry for entry, (name, _, _) in places.items() if name not in parameters]:
        raise ValueError(f"not the state of this model's {type(optimizer).__name__}: {', '.join(sorted(strange)[:5])}")
    for entry, (name, _, key) in places.items():
        optimizer.state[parameters[name]][key] = tensors[entry].to(parameters[name].device, copy=copy)


def as_kept_here(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The memory of an AdamW as this one keeps it, where another kind of device counted its updates in another way.

    Torch's fused AdamW, which not all devices have, counts them for each parameter; ours once. The means are the same.
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
