"""LAMB: an AdamW step scaled to each parameter's norm (You et al. 2020, algorithm 2)."""

from typing import Any

import torch
from torch import Tensor

from relm.recipes.optimization import Optimizer
from relm.training.optimizers.adam import MomentOptimizer
from relm.training.optimizers.tensor_optimizer import Groups, Tensors


class Lamb(MomentOptimizer):
    """LAMB in which each parameter is a layer: query, key and value have three ratios if they are three parameters.

    Parameters of groups with `adapted` get a trust ratio: norm of the weight / norm of the step, or 1 if either is 0.
    """

    def __init__(self, groups: Groups, settings: Optimizer) -> None:
        """Create the state."""
        super().__init__(groups, settings)
        self.weight_norm_clip, self.normalise_gradient = settings.lamb.weight_norm_clip, settings.lamb.normalise_gradient

    def begin_step(self) -> None:
        self._rate = self.rate()
        self._epsilon: float | Tensor = self.epsilon
        if self.bias_correction:
            self._correction, root = self.corrections()
            self._epsilon = self.epsilon * root
        if self.normalise_gradient:
            gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2, torch.float32)))
            self._share = 1 / norm.clamp(min=1.0)

    def update(self, group: dict[str, Any], parameters: Tensors, gradients: Tensors) -> None:
        if self.normalise_gradient:
            gradients = torch._foreach_mul(gradients, self._share)
        means, squares = self.advance(parameters, gradients)
        steps = self.roots(squares, self._epsilon)
        torch._foreach_reciprocal_(steps)
        torch._foreach_mul_(steps, means)
        if self.bias_correction:
            torch._foreach_mul_(steps, self._correction)
        if group["weight_decay"]:
            torch._foreach_add_(steps, parameters, alpha=group["weight_decay"])
        rates = self._adapted_rates(parameters, steps) if group["adapted"] else [self._rate] * len(steps)
        torch._foreach_addcmul_(parameters, steps, rates, -1.0)

    def _adapted_rates(self, parameters: Tensors, steps: Tensors) -> Tensors:
        """Return the learning rate times each parameter's trust ratio, scalars."""
        weights = torch.stack(torch._foreach_norm(parameters, 2, torch.float32))
        lengths = torch.stack(torch._foreach_norm(steps, 2, torch.float32))
        weights = weights if self.weight_norm_clip is None else weights.clamp(max=self.weight_norm_clip)
        ratios = torch.where((weights > 0) & (lengths > 0), weights / lengths, 1.0)
        return (self._rate * ratios).unbind()
