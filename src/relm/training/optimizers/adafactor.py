"""Adafactor: Adam with a second moment factored into means of rows and columns (Shazeer and Stern 2018, algorithms 4 and 5)."""

import math
from typing import Any

import torch
from torch import Tensor

from relm.recipes.optimization import Optimizer
from relm.training.optimizers.tensor_optimizer import Groups, TensorOptimizer, Tensors


class Adafactor(TensorOptimizer):
    """Adafactor with the update and all options of transformers' optimizer of that name.

    Its state for a parameter with two or more dimensions is `exp_avg_sq_row` and `exp_avg_sq_col`, over the last two; for a
    vector `exp_avg_sq`; with `beta1` also `exp_avg`, a mean of updates.
    """

    def __init__(self, groups: Groups, settings: Optimizer) -> None:
        """Create the state."""
        self.options = settings.adafactor
        super().__init__(groups, settings)
        for state in self.state.values():
            for key in state.keys() - {"exp_avg"}:
                # The first update replaces them; if it were skipped, a mean of 0 would be divided by 0.
                state[key].fill_(1.0)

    def state_shapes(self, parameter: Tensor) -> dict[str, tuple[int, ...]]:
        shape = tuple(parameter.shape)
        shapes = {"exp_avg": shape} if self.options.beta1 is not None else {}
        if len(shape) < 2:
            return {**shapes, "exp_avg_sq": shape}
        return {**shapes, "exp_avg_sq_row": shape[:-1], "exp_avg_sq_col": (*shape[:-2], shape[-1])}

    def begin_step(self) -> None:
        number = self.update_number()
        self._rate = self.rate()
        if self.options.relative_step:
            # 1e-2 as a tensor, so that the minimum is taken on the device.
            most = 1e-6 * number if self.options.warmup_init else torch.full_like(number, 1e-2)
            self._rate = self._rate * torch.minimum(most, number.rsqrt())
        # 1 - (1 - t ** decay_rate), and exactly 1 at the first update.
        self._share = torch.exp(self.options.decay_rate * number.log())

    def update(self, group: dict[str, Any], parameters: Tensors, gradients: Tensors) -> None:
        matrices = [i for i, parameter in enumerate(parameters) if parameter.dim() >= 2]
        vectors = [i for i, parameter in enumerate(parameters) if parameter.dim() < 2]
        for precondition, indices in ((self._by_rows_and_columns, matrices), (self._by_elements, vectors)):
            if indices:
                some = [parameters[i] for i in indices]
                self._apply(group, some, precondition(some, [gradients[i] for i in indices]))

    def _by_rows_and_columns(self, parameters: Tensors, gradients: Tensors) -> list[Tensor]:
        rows, columns = self.states("exp_avg_sq_row", parameters), self.states("exp_avg_sq_col", parameters)
        squares = torch._foreach_mul(gradients, gradients)
        torch._foreach_add_(squares, self.options.epsilons[0])
        self.approach(rows, [square.mean(-1) for square in squares], self._share)
        self.approach(columns, [square.mean(-2) for square in squares], self._share)
        row_factors = [(row / row.mean(-1, keepdim=True)).rsqrt_().unsqueeze(-1) for row in rows]
        updates = torch._foreach_mul(gradients, row_factors)
        torch._foreach_mul_(updates, [column.rsqrt().unsqueeze(-2) for column in columns])
        return list(updates)

    def _by_elements(self, parameters: Tensors, gradients: Tensors) -> list[Tensor]:
        squares = torch._foreach_mul(gradients, gradients)
        torch._foreach_add_(squares, self.options.epsilons[0])
        means = self.states("exp_avg_sq", parameters)
        self.approach(means, squares, self._share)
        return [mean.rsqrt().mul_(gradient) for mean, gradient in zip(means, gradients, strict=True)]

    def _apply(self, group: dict[str, Any], parameters: Tensors, updates: list[Tensor]) -> None:
        rates = self._rate.expand(len(parameters))
        if self.options.scale_parameter:
            rates = rates * torch.stack(root_mean_squares(parameters)).clamp(min=self.options.epsilons[1])
        clipping = torch.stack(root_mean_squares(updates)).div(self.options.clip_threshold).clamp(min=1.0)
        torch._foreach_mul_(updates, (rates / clipping).unbind())
        if self.options.beta1 is not None:
            means = self.states("exp_avg", parameters)
            self.approach(means, updates, 1 - self.options.beta1)
            updates = means if self.found_inf is None else list(torch._foreach_mul(means, self.unless_skipped(1.0, 0.0)))
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, (1 - group["weight_decay"] * rates).unbind())
        torch._foreach_sub_(parameters, updates)


def root_mean_squares(tensors: Tensors) -> list[Tensor]:
    """Return the root mean square of each tensor, a float32 scalar."""
    norms = torch._foreach_norm(tensors, 2, torch.float32)
    return list(torch._foreach_div(norms, [math.sqrt(tensor.numel()) for tensor in tensors]))
