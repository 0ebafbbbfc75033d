"""Muon: momentum made orthogonal (Jordan et al. 2024), as in modded-nanogpt's optimization track, and AdamW for all else.

The original is `records/track_3_optimization/train_gpt_simple.py` of github.com/KellerJordan/modded-nanogpt at f411b3d3.
"""

from typing import Any

import torch
from torch import Tensor

from relm.recipes.optimization import Optimizer
from relm.training.optimizers.adam import Adam
from relm.training.optimizers.tensor_optimizer import Groups, Tensors

# The polynomial a x + b x^3 + c x^5 of a Newton-Schulz step, and the number of steps. Singular values in (0, 1] go to 1.
COEFFICIENTS = (2.0, -1.5, 0.5)
STEPS = 12
# The original's, whatever the precision of the model. Comparisons with the original use float32 on both sides.
PRECISION = torch.bfloat16


class Muon(Adam):
    """Muon for groups with `widths`, whose state is `momentum_buffer`; `Adam` for the others."""

    def __init__(self, groups: Groups, settings: Optimizer) -> None:
        """Create the state."""
        self.momentum, self.norm_epsilon = settings.muon.momentum, settings.muon.norm_epsilon
        self._widths = {p: w for group in groups for p, w in zip(group["params"], group["widths"] or (), strict=False)}
        super().__init__(groups, settings)

    def state_shapes(self, parameter: Tensor) -> dict[str, tuple[int, ...]]:
        return {"momentum_buffer": tuple(parameter.shape)} if parameter in self._widths else super().state_shapes(parameter)

    def update(self, group: dict[str, Any], parameters: Tensors, gradients: Tensors) -> None:
        if group["widths"] is None:
            super().update(group, parameters, gradients)
            return
        averages = self.states("momentum_buffer", parameters)
        self.approach(averages, gradients, 1 - self.momentum)
        rate = self.rate() * group["rate_ratio"]
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])
        for parameter, gradient, average in zip(parameters, gradients, averages, strict=True):
            ahead = torch.lerp(gradient, average, self.momentum)
            widths = self._widths[parameter]
            if widths:  # (in, out) of several maps
                step = torch.cat([self._orthogonal(part.t()).t() for part in torch.split(ahead, widths, dim=1)], dim=1)
            else:
                step = self._orthogonal(ahead)
            parameter.sub_(step * rate)

    def _orthogonal(self, matrix: Tensor) -> Tensor:
        """(out, in) -> the nearest orthogonal matrix, scaled to a root mean square of about 1 / sqrt(in)"""
        found = orthogonalise(matrix, self.norm_epsilon)
        found *= max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5
        return found.to(matrix.dtype)


def orthogonalise(matrix: Tensor, epsilon: float) -> Tensor:
    """Return approximately U V for the singular value decomposition U S V of a matrix, by Newton-Schulz steps in `PRECISION`.

    The matrix is first divided by its norm plus `epsilon`.
    """
    x: Tensor = matrix.to(PRECISION)
    is_high = matrix.shape[0] > matrix.shape[1]
    if is_high:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + epsilon)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if is_high else x
