"""Stochastic rounding: small updates of weights in half precision survive on average (Gupta et al. 2015, section 2).

Imports only torch, and runs on Python 3.8 with torch 2.0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def round_stochastically(values: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Round each float32 value to one of its two neighbours in `dtype`, with the closer one more probable in proportion.

    The mean of many roundings is the value, even for subnormal values. Representable values, infinities and NaN stay, and
    larger finite values become the largest of `dtype`. The generator draws one number for each value.
    """
    exact = values.double()
    nearest = values.to(dtype)
    # The bits of a number, read as an integer, count the numbers of its sign from zero.
    is_too_far = nearest.double().abs() > exact.abs()
    lower = nearest.view(torch.int16) - is_too_far.to(torch.int16)
    start, end = lower.view(dtype).double(), (lower + 1).view(dtype).double()
    share = (exact - start) / (end - start)
    draws = torch.rand(values.shape, dtype=torch.float64, generator=generator, device=values.device)
    return (lower + (draws < share).to(torch.int16)).view(dtype)
