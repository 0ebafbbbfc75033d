"""Stochastic gradient descent with momentum (Sutskever et al. 2013)."""

from typing import Any

import torch
from torch import Tensor

from relm.recipes.optimization import Optimizer
from relm.training.optimizers.tensor_optimizer import Groups, TensorOptimizer, Tensors


class Sgd(TensorOptimizer):
    """SGD: velocity = momentum * velocity + gradient; weight -= learning rate * velocity; weight decay is in the gradient."""

    def __init__(self, groups: Groups, settings: Optimizer) -> None:
        """Create the state: `momentum_buffer` of every parameter, if there is momentum."""
        self.momentum = settings.sgd.momentum
        super().__init__(groups, settings)

    def state_shapes(self, parameter: Tensor) -> dict[str, tuple[int, ...]]:
        return {"momentum_buffer": tuple(parameter.shape)} if self.momentum else {}

    def begin_step(self) -> None:
        self._rate = self.rate()

    def update(self, group: dict[str, Any], parameters: Tensors, gradients: Tensors) -> None:
        velocities = gradients = self.with_decay(group, parameters, gradients)
        if self.momentum:
            velocities = self.states("momentum_buffer", parameters)
            torch._foreach_mul_(velocities, self.unless_skipped(self.momentum, 1.0))
            torch._foreach_add_(velocities, gradients)
        torch._foreach_addcmul_(parameters, velocities, [self._rate] * len(parameters), -1.0)
