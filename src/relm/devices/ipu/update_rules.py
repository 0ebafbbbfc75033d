"""The weight updates that PopTorch's optimizers make, in plain torch: AdamW, Adam and LAMB.

`relm.training.optimizers` has the same rules, but imports more than the worker has; a test compares both. Recipes reject what
PopTorch computes in another way (`relm.recipes.machine.pipeline_rules`).
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping

import torch
from torch import Tensor

from relm.devices.ipu.backend import BackendError

MOMENTS = ("exp_avg", "exp_avg_sq")
UPDATES = "updates"


class UpdateRule:
    """The optimizer state of a model's parameters, and their update rule."""

    def __init__(self, optimizer: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> None:
        """Create the state as zeros; `take` changes the float32 parameters in place."""
        self.optimizer, self.parameters = optimizer, dict(parameters)
        self.state: dict[str, Tensor] = {
            f"{name}.{moment}": torch.zeros_like(parameter.detach())
            for name, parameter in parameters.items()
            for moment in MOMENTS
        }
        self.updates = 0

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of the state: PARAMETER.exp_avg, PARAMETER.exp_avg_sq and the scalar `updates`, all float32."""
        state = {name: tensor.clone() for name, tensor in self.state.items()}
        return {**state, UPDATES: torch.tensor(float(self.updates))}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the state from tensors that `tensors` returned."""
        if faults := sorted({*self.state, UPDATES} ^ set(tensors)):
            raise BackendError(
                f"the state belongs to another model or optimizer: {', '.join(faults[:5])}; use a checkpoint of this run"
            )
        for name, tensor in self.state.items():
            tensor.copy_(tensors[name])
        self.updates = int(tensors[UPDATES])

    @torch.no_grad()
    def take(self, gradients: Mapping[str, Tensor], learning_rate: float) -> None:
        """Update all parameters with their gradients, which stay unchanged."""
        self.updates += 1
        shares = _common_share(self.optimizer, gradients.values())
        for name, parameter in self.parameters.items():
            self._update(name, parameter, gradients[name] * shares, learning_rate)

    def _update(self, name: str, parameter: Tensor, gradient: Tensor, learning_rate: float) -> None:
        settings = self.optimizer
        decay = settings["weight_decay"] if is_decayed(settings["decayed"], name, parameter.dim()) else 0.0
        if settings["name"] == "adam":  # whose decay is part of the gradient, as in torch.optim.Adam
            gradient, decay = gradient + decay * parameter, 0.0
        step = self._moments_step(name, gradient) + decay * parameter
        if settings["name"] == "lamb" and is_adapted(settings, parameter.dim()):
            step = step * _trust_ratio(parameter, step, settings["lamb"]["weight_norm_clip"])
        parameter.sub_(learning_rate * step)

    def _moments_step(self, name: str, gradient: Tensor) -> Tensor:
        """Return m / (sqrt(v) + epsilon) after both moments have moved towards the gradient."""
        mean, square = (self.state[f"{name}.{moment}"] for moment in MOMENTS)
        first, second = self.optimizer["betas"]
        mean.mul_(first).add_(gradient, alpha=1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        if self.optimizer["bias_correction"]:
            mean, square = mean / (1 - first**self.updates), square / (1 - second**self.updates)
        step: Tensor = mean / (square.sqrt() + self.optimizer["epsilon"])
        return step


def is_decayed(selected: str, name: str, dimensions: int) -> bool:
    """Return True if a parameter has weight decay; `selected` is `decayed` in the optimizer's section."""
    if selected == "all_but_biases":
        return not name.endswith("bias")
    return dimensions >= 2 or (selected == "tpu_pretrain" and name.endswith("transform.LayerNorm.weight"))


def is_adapted(optimizer: Mapping[str, Any], dimensions: int) -> bool:
    """Return True if LAMB scales a parameter's update by a trust ratio, as `lamb.adapted` selects."""
    return dimensions >= 2 or bool(optimizer["lamb"]["adapted"] == "all")


def _common_share(optimizer: Mapping[str, Any], gradients: Iterable[Tensor]) -> Tensor:
    """Return the factor that clips the common norm of all gradients."""
    if optimizer["gradient_clipping"] is None:
        return torch.tensor(1.0)
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    share: Tensor = (optimizer["gradient_clipping"] / (norm + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
    return share


def _trust_ratio(parameter: Tensor, step: Tensor, clip: float | None) -> Tensor:
    """Return the norm of the weight / norm of the step, or 1 if either is 0."""
    weight, length = parameter.norm(), step.norm()
    weight = weight if clip is None else weight.clamp(max=clip)
    return torch.where((weight > 0) & (length > 0), weight / length, torch.ones_like(weight))
