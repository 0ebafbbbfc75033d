"""Modules and functions that models share."""

import pytest
import torch
import torch.nn.functional as F

from relm.models.layers import serialised_linear


@pytest.mark.parametrize("slices", [1, 2, 4, 5])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_projection_in_slices_of_its_outputs_equals_the_whole_in_value_and_gradients(slices: int, has_bias: bool) -> None:
    outcomes = []
    for project in (F.linear, lambda *given: serialised_linear(*given, slices=slices)):
        generator = torch.Generator().manual_seed(3)
        x, weight, bias = (torch.randn(shape, generator=generator, requires_grad=True) for shape in ((2, 3, 8), (20, 8), (20,)))
        given = (x, weight, bias) if has_bias else (x, weight)
        output = project(*given)
        output.square().sum().backward()
        outcomes.append((output.detach(), *(tensor.grad for tensor in given)))
    for found, expected in zip(*reversed(outcomes), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_slices_are_computed_one_after_the_other() -> None:
    with torch.profiler.profile() as profile:
        serialised_linear(torch.zeros(3, 8), torch.zeros(20, 8), slices=4)
    assert sum(event.count for event in profile.key_averages() if event.key == "aten::linear") == 4
