"""Gradients between the backward pass and the optimizer: unscaled, checked for overflow, clipped; nothing is read back.

With float16 small gradients vanish and large ones overflow. So the loss is multiplied by a factor, and an update whose
gradients overflow is skipped (Micikevicius et al. 2018).
"""

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from relm.errors import RelmError
from relm.recipes.optimization import LossScaling

# What the automatic scale is multiplied by after an overflow, and after many updates without.
BACKOFF, GROWTH = 0.5, 2.0
# After so many skipped updates in a row, none will ever be taken.
HOPELESS = 50
_TENSORS = ("scale", "good_updates", "skipped", "skipped_in_a_row")
_PREFIX = "loss_scaler."


class LossScaler:
    """The factor of the loss and what it is decided by, as scalars on the device."""

    def __init__(self, settings: LossScaling, device: torch.device) -> None:
        """Begin with the first factor."""
        self.settings = settings
        self.scale = torch.full((), settings.scale, dtype=torch.float32, device=device)
        """By which the loss is to be multiplied."""
        self.found_inf = torch.zeros((), dtype=torch.float32, device=device)
        """1 after `unscale` found an overflow, for the optimizer; else 0."""
        self.good_updates, self.skipped, self.skipped_in_a_row = (torch.zeros_like(self.scale) for _ in range(3))

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Have the optimizer skip its step where an overflow was found."""
        optimizer.found_inf = self.found_inf  # type: ignore[attr-defined]

    def begin_step(self, step: int, number: Callable[[float], float | Tensor] = float) -> None:
        """Take the factor of an update, counted from 1, from the table if there is one.

        Args:
            number: how the device has a number that changes, see `relm.devices.contract.Device.make_scalar`.
        """
        if self.settings.name == "by_step":
            reached = [begin for begin in self.settings.by_step if begin <= step]
            scale = number(self.settings.by_step[max(reached)] if reached else self.settings.scale)
            given = scale if isinstance(scale, Tensor) else torch.tensor(scale, dtype=torch.float32)
            self.scale.copy_(given, non_blocking=True)

    def judge(self, scaled_norm: Tensor) -> None:
        """Decide whether this update is skipped, and what the next one is scaled by.

        Args:
            scaled_norm: of the whole gradient before it is unscaled; not finite where anything in it overflowed.
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
        """What a checkpoint keeps of it."""
        return {_PREFIX + name: getattr(self, name) for name in _TENSORS}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave."""
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])

    def readings(self) -> dict[str, Tensor]:
        """Scalars on the device that `line` wants to know."""
        return {"loss_scale": self.scale, "skipped_updates": self.skipped, "skipped_in_a_row": self.skipped_in_a_row}

    def line(self, read: Mapping[str, float]) -> dict[str, float]:
        """Columns of a line of the run log: the next update's factor, and how many updates were skipped so far.

        Args:
            read: the values of `readings`.

        Raises:
            RelmError: the last `HOPELESS` updates were all skipped.
        """
        if read["skipped_in_a_row"] >= HOPELESS:
            raise RelmError(
                f"loss_scaling: the gradients of the last {read['skipped_in_a_row']:.0f} updates overflowed with "
                f"loss_scaling.scale {read['loss_scale']:g}, so none was made; lower loss_scaling.scale, or choose "
                "loss_scaling.name: automatic or precision: bfloat16"
            )
        return {key: read[key] for key in ("loss_scale", "skipped_updates")}


def build_loss_scaler(settings: LossScaling, precision: str, device: torch.device) -> LossScaler | None:
    """The scaler of a phase; None where nothing is scaled, and a gradient that overflows is an error and no reason to go on."""
    return LossScaler(settings, device) if precision == "float16" or settings != LossScaling() else None


def finish_gradients(parameters: Iterable[nn.Parameter], scaler: LossScaler | None, clipping: float | None) -> Tensor:
    """Make the gradients those that the optimizer takes: without the loss scale, of a norm of at most `clipping`.

    Where they overflowed they are 0, and `scaler.found_inf` is 1.

    Returns:
        The norm before clipping, a scalar on the device; 0 where the update is skipped.
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
