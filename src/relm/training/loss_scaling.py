"""Loss scaling, and unscaling and clipping of gradients before the optimizer's step; nothing is read back to the host.

In float16 small gradients underflow and large ones overflow. So the loss is multiplied by a scale, and an update is skipped
if its gradients overflow (Micikevicius et al. 2018).
"""

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from relm.errors import RelmError
from relm.recipes.optimization import LossScaling

# Factors of the automatic scale after an overflow, and after `growth_interval` updates without one.
BACKOFF, GROWTH = 0.5, 2.0
# Training stops with an error after this many skipped updates in a row.
HOPELESS = 50
_TENSORS = ("scale", "good_updates", "skipped", "skipped_in_a_row")
_PREFIX = "loss_scaler."


class LossScaler:
    """The loss scale and the counts that decide it, as scalars on the device."""

    def __init__(self, settings: LossScaling, device: torch.device) -> None:
        """Start with the scale of `settings`."""
        self.settings = settings
        self.scale = torch.full((), settings.scale, dtype=torch.float32, device=device)
        """The factor of the loss."""
        self.found_inf = torch.zeros((), dtype=torch.float32, device=device)
        """1 after `judge` found an overflow, otherwise 0; the optimizer reads it."""
        self.good_updates, self.skipped, self.skipped_in_a_row = (torch.zeros_like(self.scale) for _ in range(3))

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the optimizer skip its step if an overflow was found."""
        optimizer.found_inf = self.found_inf  # type: ignore[attr-defined]

    def begin_step(self, step: int, make_scalar: Callable[[float], float | Tensor] = float) -> None:
        """Set the scale of an update, counted from 1, from the table if there is one."""
        if self.settings.name == "by_step":
            scale = make_scalar(initial_scale(self.settings, step))
            given = scale if isinstance(scale, Tensor) else torch.tensor(scale, dtype=torch.float32)
            self.scale.copy_(given, non_blocking=True)

    def judge(self, scaled_norm: Tensor) -> None:
        """Decide whether this update is skipped, and set the scale of the next.

        The norm of the scaled gradient is not finite if any element overflowed.
        """
        overflow = ~torch.isfinite(scaled_norm)
        self.found_inf.copy_(overflow)
        self.skipped.add_(self.found_inf)
        self.skipped_in_a_row.add_(1).mul_(self.found_inf)
        self.good_updates.add_(1).mul_(1 - self.found_inf)
        if self.settings.name == "automatic":
            grows = self.good_updates >= self.settings.growth_interval
            self.scale.mul_(torch.where(overflow, BACKOFF, torch.where(grows, GROWTH, 1.0)))
            self.good_updates.mul_(~grows)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state that a checkpoint keeps, by name."""
        return {_PREFIX + name: getattr(self, name) for name in _TENSORS}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state from the result of `tensors`."""
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])

    def readings(self) -> dict[str, Tensor]:
        """Return the scalars on the device that `line` needs."""
        return {"loss_scale": self.scale, "skipped_updates": self.skipped, "skipped_in_a_row": self.skipped_in_a_row}

    def line(self, read: Mapping[str, float]) -> dict[str, float]:
        """Return the columns of a line of the run log: the next update's scale, and the count of updates skipped so far.

        Raise RelmError if the last `HOPELESS` updates were all skipped.
        """
        if read["skipped_in_a_row"] >= HOPELESS:
            raise RelmError(
                f"loss_scaling: the last {read['skipped_in_a_row']:.0f} updates were skipped, because their "
                f"gradients overflowed with scale {read['loss_scale']:g}. Lower loss_scaling.scale, or choose "
                "loss_scaling.name: automatic or precision: bfloat16"
            )
        return {key: read[key] for key in ("loss_scale", "skipped_updates")}


def initial_scale(settings: LossScaling, step: int) -> float:
    """Return the scale of an update, counted from 1, by the table if there is one, and before any automatic change.

    >>> [initial_scale(LossScaling(name="by_step", scale=8, by_step={3: 2}), step) for step in (2, 3)]
    [8.0, 2.0]
    """
    reached = [begin for begin in settings.by_step if begin <= step]
    return settings.by_step[max(reached)] if reached else settings.scale


def build_loss_scaler(settings: LossScaling, precision: str, device: torch.device) -> LossScaler | None:
    """Return the scaler of a phase; None: the loss is not scaled, and an overflow is an error."""
    return LossScaler(settings, device) if precision == "float16" or settings != LossScaling() else None


def finish_gradients(parameters: Iterable[nn.Parameter], scaler: LossScaler | None, clipping: float | None) -> Tensor:
    """Unscale the gradients, clip their norm to `clipping`, and return the norm before clipping, a scalar on the device.

    If they overflowed, they and the norm become 0, and `scaler.found_inf` 1.
    """
    parameters = list(parameters)
    if scaler is None and clipping is not None:
        return nn.utils.clip_grad_norm_(parameters, clipping)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if scaler is None:
        return nn.utils.get_total_norm(gradients)
    most = math.inf if clipping is None else clipping
    unscale = 1 / scaler.scale
    scaled_norm = nn.utils.get_total_norm(gradients)
    scaler.judge(scaled_norm)
    norm = scaled_norm * unscale
    # As in torch's clip_grad_norm_, so that a scale of a power of two changes nothing.
    share = torch.clamp(most / (norm + 1e-6), max=1.0) * unscale
    torch._foreach_mul_(gradients, share)
    overflow = scaler.found_inf > 0
    for gradient in gradients:
        gradient.masked_fill_(overflow, 0.0)
    return norm.masked_fill(overflow, 0.0)
