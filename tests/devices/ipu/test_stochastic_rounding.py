"""Stochastic rounding: each result is a neighbour, and their mean is the value."""

import numpy as np
import pytest
import torch

from relm.devices.ipu.stochastic_rounding import round_stochastically

DTYPES = [torch.float16, torch.bfloat16]
# The second value of float16 is subnormal; the fourth is subnormal in float32, too.
VALUES = {
    torch.float16: [1.0003, -3.3e-7, 0.1, 2.0**-130, -2047.75, 65503.0],
    torch.bfloat16: [1.003, -3.3e-7, 0.1, 2.0**-130 * 1.0011, -2047.75, 65503.0],
}
COUNT = 40_000


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def neighbours(value: float, dtype: torch.dtype) -> set[float]:
    """The two representable numbers around a value that is not one, by numpy, or by its upper 16 bits."""
    if dtype == torch.float16:
        nearest = np.float16(value)
        return {float(nearest), float(np.nextafter(nearest, np.float16(np.inf if value > float(nearest) else -np.inf)))}
    bits = np.array([value], dtype=np.float32).view(np.uint32) >> 16
    return {float((np.array([b], dtype=np.uint32) << 16).view(np.float32)[0]) for b in (bits[0], bits[0] + 1)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_result_is_a_neighbour_and_their_mean_is_the_value(dtype: torch.dtype) -> None:
    values = torch.tensor(VALUES[dtype])
    rounded = round_stochastically(values.expand(COUNT, -1), dtype, seeded())
    assert rounded.dtype == dtype
    for value, results in zip(values.tolist(), rounded.double().T, strict=True):
        found = set(results.tolist())
        low, high = sorted(neighbours(value, dtype))
        assert found <= {low, high}
        share = (value - low) / (high - low)
        # Five standard deviations of a share that was drawn COUNT times.
        tolerance = 5 * (share * (1 - share) / COUNT) ** 0.5
        assert (results == high).double().mean().item() == pytest.approx(share, abs=max(tolerance, 1e-12))
        assert results.mean().item() == pytest.approx(value, abs=max(tolerance, 1e-12) * (high - low))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_representable_value_stays(dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    every = every[~every.isnan()]
    rounded = round_stochastically(every.float(), dtype, seeded())
    assert torch.equal(rounded.view(torch.int16), every.view(torch.int16)), "also the sign of zero, and infinities"


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float16, 65504.0), (torch.bfloat16, 3.3895313892515355e38)])
def test_beyond_the_largest_number_is_the_largest_and_nan_stays(dtype: torch.dtype, largest: float) -> None:
    high = torch.tensor([largest * 1.0005, -largest * 1.0005, largest * 1.003])
    rounded = round_stochastically(high, dtype, seeded())
    assert rounded.double().tolist() == [largest, -largest, largest]
    assert round_stochastically(torch.tensor([float("nan")]), dtype, seeded()).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_of_any_size_have_the_mean_zero(dtype: torch.dtype) -> None:
    """Both signs, from subnormal to large numbers."""
    count = 200_000
    powers = torch.exp2(torch.randint(-30, 14, (count,), generator=seeded(2)))
    values = torch.randn(count, generator=seeded(1)) * powers
    rounded = round_stochastically(values, dtype, seeded(3)).double()
    for value, result in zip(values[:500].tolist(), rounded[:500].tolist(), strict=True):
        assert result in neighbours(value, dtype)
    errors = (rounded - values.double()) / values.double().abs().clamp(min=2.0**-20)
    assert abs(errors.mean().item()) < 5 * errors.std().item() / count**0.5
    assert rounded.ne(values.to(dtype).double()).double().mean().item() > 0.2, "many are not the nearest"


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    values = torch.randn(1000, generator=seeded())
    first, again, other = (round_stochastically(values, torch.float16, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
