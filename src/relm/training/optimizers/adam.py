"""Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019) in the forms of several programs."""

from typing import Any

import torch
from torch import Tensor

from relm.recipes.optimization import Optimizer
from relm.training.optimizers.eager import AdamW
from relm.training.optimizers.tensor_optimizer import Groups, TensorOptimizer, Tensors, one_minus_power


class MomentOptimizer(TensorOptimizer):
    """An optimizer with moving averages of the gradient and its square: `exp_avg` and `exp_avg_sq` of every parameter."""

    def __init__(self, groups: Groups, settings: Optimizer) -> None:
        super().__init__(groups, settings)
        self.betas, self.epsilon, self.bias_correction = settings.betas, settings.epsilon, settings.bias_correction

    def state_shapes(self, parameter: Tensor) -> dict[str, tuple[int, ...]]:
        return {"exp_avg": tuple(parameter.shape), "exp_avg_sq": tuple(parameter.shape)}

    def advance(
        self, parameters: Tensors, gradients: Tensors, betas: tuple[float, float] | None = None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Update both moving averages with the gradients, and return them."""
        beta1, beta2 = betas or self.betas
        means, squares = self.states("exp_avg", parameters), self.states("exp_avg_sq", parameters)
        self.approach(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, self.unless_skipped(beta2, 1.0))
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        return means, squares

    def roots(self, squares: Tensors, epsilon: float | Tensor) -> Tensors:
        """Return sqrt(v) + epsilon for each v in `squares`."""
        roots = torch._foreach_sqrt(squares)
        if isinstance(epsilon, Tensor):
            # Without alpha torch would take the overload for Python numbers, which reads the tensor on the host.
            torch._foreach_add_(roots, epsilon, alpha=1.0)
        else:
            torch._foreach_add_(roots, epsilon)
        return roots

    def corrections(self, ahead: int = 0, betas: tuple[float, float] | None = None) -> tuple[Tensor, Tensor]:
        """Return the bias corrections (sqrt(1 - beta2 ** t) / (1 - beta1 ** t), sqrt(1 - beta2 ** t)) of update t + `ahead`.

        With m and v the stored averages, the corrected m / (sqrt(v) + epsilon) is the first, times
        m / (sqrt(v) + epsilon times the second).
        """
        beta1, beta2 = betas or self.betas
        number = self.update_number() + ahead
        root = one_minus_power(beta2, number).sqrt()
        return root / one_minus_power(beta1, number), root


class Adam(MomentOptimizer):
    """Adam, which adds weight decay to the gradient, and AdamW, in the forms of `relm.recipes.optimization.Optimizer.form`."""

    def __init__(self, groups: Groups, settings: Optimizer) -> None:
        """Create the state."""
        super().__init__(groups, settings)
        self.form, self.decoupled = settings.form, settings.name != "adam"

    def begin_step(self) -> None:
        self._sizes = {key: self._step_sizes(*key) for key in map(_settings_of, self.param_groups)}

    def _step_sizes(self, ratio: float, betas: tuple[float, float] | None) -> tuple[Tensor, Tensor, float | Tensor]:
        """Return a group's step size, its learning rate for weight decay, and its epsilon."""
        size = decaying = self.rate() if ratio == 1 else self.rate() * ratio
        epsilon: float | Tensor = self.epsilon
        if self.bias_correction:
            correction, root = self.corrections(1 if self.form == "graphcore_bert" else 0, betas)
            size = size * correction
            if self.form == "pytorch":
                epsilon = self.epsilon * root
            if self.form == "graphcore_bert":
                decaying = size
        return size, decaying, epsilon

    def update(self, group: dict[str, Any], parameters: Tensors, gradients: Tensors) -> None:
        size, decaying, epsilon = self._sizes[_settings_of(group)]
        decay = group["weight_decay"] if self.decoupled else 0.0
        if not self.decoupled:
            gradients = self.with_decay(group, parameters, gradients)
        means, squares = self.advance(parameters, gradients, group.get("betas"))
        if decay and self.form != "transformers":
            torch._foreach_mul_(parameters, 1 - decaying * decay)
        roots = self.roots(squares, epsilon)
        # A learning rate of 0 makes this infinite, and the update 0: epsilon keeps the roots above 0.
        torch._foreach_div_(roots, size)
        torch._foreach_addcdiv_(parameters, means, roots, -1.0)
        if decay and self.form == "transformers":
            torch._foreach_mul_(parameters, 1 - decaying * decay)


def _settings_of(group: dict[str, Any]) -> tuple[float, tuple[float, float] | None]:
    return group["rate_ratio"], group.get("betas")


def build_adamw(groups: Groups, settings: Optimizer) -> torch.optim.Optimizer:
    """Return a recipe's AdamW: torch's fused one if it is equivalent and the device does not trace, otherwise ours."""
    plain = settings.bias_correction and settings.form == "pytorch" and settings.state_precision == "float32"
    if plain and not any(group["traced"] for group in groups):
        return AdamW(groups, lr=settings.learning_rate, betas=settings.betas, eps=settings.epsilon, fused=True)
    return Adam(groups, settings)
