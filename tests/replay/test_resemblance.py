"""Two updates from the same start, compared tensor by tensor."""

import math

import pytest
import torch

from relm.recipes.phase import Phase
from relm.replay.resemblance import FLOAT32, HALF, Band, band_of, first_difference, loss_difference, update_difference


def compared(start: dict, attested: dict, replayed: dict):
    read = [
        {name: torch.tensor(values) for name, values in tensors.items()}.__getitem__ for tensors in (start, attested, replayed)
    ]
    return update_difference(list(attested), *read)


def test_the_farthest_tensor_counts_in_lengths_of_its_update() -> None:
    start = {"a": [0.0, 0.0], "b": [1.0, 1.0]}
    found = compared(start, {"a": [300.0, 400.0], "b": [1.0, 3.0]}, {"a": [300.0, 405.0], "b": [1.0, 3.5]})
    assert (found.distance, found.tensor) == (0.25, "b")
    assert found.length == pytest.approx(math.sqrt((300**2 + 405**2 + 2.5**2) / (500**2 + 2**2)) - 1)


def test_the_same_update_lies_at_no_distance() -> None:
    assert compared({"a": [1.0]}, {"a": [2.0]}, {"a": [2.0]})[::2] == (0.0, 0.0)


def test_a_tensor_that_was_not_to_change_lies_infinitely_far_when_it_did() -> None:
    same = {"a": [1.0], "b": [1.0]}
    assert compared(same, {"a": [1.0], "b": [2.0]}, {"a": [1.0], "b": [2.0]}).distance == 0
    assert compared(same, {"a": [1.0], "b": [2.0]}, {"a": [1.1], "b": [2.0]})[:2] == (math.inf, "a")


def test_biases_of_keys_whose_gradient_is_only_rounding_are_left_out() -> None:
    names = {"h.0.attn.c_attn.bias": [0.0] * 6, "layer.0.attention.self.key.bias": [0.0, 0.0], "b": [0.0]}
    keys = {"h.0.attn.c_attn.bias": [1.0, 1.0, 5.0, 5.0, 1.0, 1.0], "layer.0.attention.self.key.bias": [5.0, 5.0], "b": [1.0]}
    ones = {name: [1.0] * len(values) for name, values in names.items()}
    assert compared(names, ones, keys)[::2] == (0.0, 0.0)
    values = {**ones, "h.0.attn.c_attn.bias": [1.0, 1.0, 1.0, 1.0, 1.0, 2.0]}
    assert compared(names, ones, values).tensor == "h.0.attn.c_attn.bias (values)"


def test_a_band_has_two_sides() -> None:
    found = compared({"a": [0.0]}, {"a": [1000.0]}, {"a": [999.0]})
    assert found.within(Band(distance=2e-3, length=2e-3, loss=1))
    assert not found.within(Band(distance=2e-3, length=5e-4, loss=1))
    assert not found.within(Band(distance=5e-4, length=2e-3, loss=1))
    assert "is farthest from the attested one, by 1.0e-03 of its length" in found.describe(FLOAT32)
    assert "the whole update is -1.0e-03 longer (band 0.0001)" in found.describe(FLOAT32)


@pytest.mark.parametrize(
    ("keys", "band"),
    [
        ({}, FLOAT32),
        ({"precision": "bfloat16"}, HALF),
        ({"optimizer": {"learning_rate": 1, "state_precision": "bfloat16"}}, HALF),
    ],
)
def test_the_band_is_that_of_the_precision(keys: dict, band: Band) -> None:
    phase = {"objective": "causal", "sequence_length": 8, "global_batch_size": 1, "steps": 9, "optimizer": {"learning_rate": 1}}
    assert band_of(Phase.model_validate({**phase, **keys})) == band


def test_lines_are_compared_where_they_are_attested_and_machines_aside() -> None:
    attested = {2: {"step": 2, "loss": 2.0, "seconds": 1.0, "mfu": 0.1, "validation_loss": 3.0}}
    replayed = {1: {"step": 1, "loss": 9.0}, 2: {"step": 2, "loss": 2.0, "seconds": 8.0}}
    assert first_difference(attested, replayed) is None
    assert first_difference({2: {"step": 2, "loss": 2.0, "epoch": 0.5}}, replayed) == "step 2: epoch is missing, attested 0.5"
    assert loss_difference(attested, replayed) == 0.0
    assert loss_difference({}, replayed) is None
