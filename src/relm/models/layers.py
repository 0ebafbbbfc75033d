"""Modules that all models share. None draws initial weights: a model's `initialise` does, or a state dict sets them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# Activation -> its name in `torch.nn.functional.gelu`.
GELU = {"gelu_tanh": "tanh", "gelu_erf": "none"}


class TracedModule(nn.Module):
    """A module whose operations take another form for a compiler that turns a whole step into one program."""

    traced: bool = False
    """True: such a compiler runs it. Gathers, attention and losses are then plain operations, mostly matrix products, which
    it fuses and distributes better than torch's kernels (docs/tpu.md)."""


def set_traced(model: nn.Module, traced: bool) -> None:
    """Set `traced` on all modules of a model, as a device does when it takes the model."""
    for module in model.modules():
        if isinstance(module, TracedModule):
            module.traced = traced


class Linear(nn.Module):
    """An affine map with its weight stored (out, in)."""

    bias: nn.Parameter | None

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)"""
        return F.linear(x, self.weight, self.bias)


def serialised_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, slices: int = 1) -> Tensor:
    """Return `F.linear(x, weight, bias)`, computed in `slices` of the outputs one after the other, all but the last equal.

    A device with little memory then holds the temporary values of one slice at a time.
    """
    biases = [None] * slices if bias is None else bias.chunk(slices)
    return torch.cat([F.linear(x, rows, some) for rows, some in zip(weight.chunk(slices), biases)], dim=-1)


def embedding(rows: int, width: int) -> nn.Embedding:
    """Return an embedding of (rows, width), without the draw from the global generator that `nn.Embedding` makes."""
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))


def layer_norm(width: int, epsilon: float, bias: bool = True) -> nn.LayerNorm:
    """Return a layer normalisation (Ba et al. 2016), with or without a bias; torch 2.0 has no argument for that."""
    norm = nn.LayerNorm(width, eps=epsilon)
    if not bias:
        norm.bias = None  # type: ignore[assignment]
    return norm


def root_mean_square_normalised(x: Tensor, epsilon: float) -> Tensor:
    """(..., width) divided by its root mean square, computed in float32 -> the same shape and type"""
    numbers = x.float()
    return (numbers * torch.rsqrt(numbers.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype)


def softcapped(logits: Tensor, limit: float) -> Tensor:
    """Bend logits smoothly into -limit to limit, in float32: limit * x / sqrt(x ** 2 + limit ** 2)"""
    numbers = logits.float()
    return limit * numbers * (numbers.square() + limit**2).rsqrt()


class RmsNorm(nn.Module):
    """A normalisation by the root mean square (Zhang and Sennrich 2019), computed in float32."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same shape"""
        return self.weight * root_mean_square_normalised(x, self.epsilon)


def rotary_angles(positions: Tensor, head_size: int, base: float) -> Tensor:
    """Return cosine and sine of the angles by which rotary encoding turns the pairs of a head (Su et al. 2021, section 3.2).

    (...) whole numbers -> (2, ..., head_size / 2) float32. Pair n turns by base ** (-2 n / head_size) from one position to the
    next.
    """
    exponents = torch.arange(0, head_size, 2, device=positions.device).float() / head_size
    angles = positions[..., None].float() * (1.0 / base**exponents)
    return torch.stack([angles.cos(), angles.sin()])


def half_rotary_angles(positions: Tensor, head_size: int, base: float) -> Tensor:
    """Return cosine and sine as `rotary_angles` does, for modded-nanogpt's half-truncated rotary encoding.

    The first half of the pairs turns, the other way round than in Su et al.: pair n of them by
    -base ** (-n / (head_size / 4 - 1)). The second half stays.
    """
    turning = head_size // 4
    frequencies = (1 / base) ** torch.linspace(0, 1, turning, device=positions.device)
    angles = positions[..., None].float() * torch.cat([frequencies, frequencies.new_zeros(turning)])
    return torch.stack([angles.cos(), -angles.sin()])


def rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn the pairs of queries or keys, (batch, heads, sequence, head_size), in float32.

    Number n of a head is paired with number n + head_size / 2, as in `transformers` (llama2.c's file has the two of a pair side
    by side). `rotation` is from `rotary_angles`, or of a shape that fits after its first size.
    """
    cosine, sine = rotation[0], rotation[1]
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)


def recomputed(layer: nn.Module, *inputs: Any) -> Tensor:
    """Return `layer(*inputs)`, keeping only the inputs.

    The backward pass computes the rest again with the same random numbers (Chen et al. 2016): a third more work, a fraction
    of the memory, the same values and gradients.
    """
    output: Tensor = checkpoint(layer, *inputs, use_reentrant=False)
    return output


def through_layers(layers: Iterable[nn.Module], x: Tensor, *others: Any, recompute: Callable[..., Tensor] | None) -> Tensor:
    """Return `x` after all layers, each called as `layer(x, *others)`, by `recompute` where their activations are not kept."""
    for layer in layers:
        x = recompute(layer, x, *others) if recompute is not None else layer(x, *others)
    return x


def truncated_normal(shape: torch.Size, std: float, generator: torch.Generator) -> Tensor:
    """Draw values from a normal distribution truncated at two sigma; values beyond are drawn again.

    As in TensorFlow's `truncated_normal_initializer`, `std` is that before truncation; afterwards it is 0.8796 times as much.
    """
    values = torch.empty(shape).normal_(generator=generator).view(-1)
    beyond = (values.abs() > 2).nonzero()[:, 0]
    while len(beyond):
        values[beyond] = torch.empty(len(beyond)).normal_(generator=generator)
        beyond = beyond[values[beyond].abs() > 2]
    return values.view(shape) * std
