"""Small updates are lost in bfloat16, so weights and optimizer state are float32."""

import pytest
import torch
from affine import Affine, take_step
from torch import Tensor, nn

from relm.recipes.optimization import Optimizer
from relm.training.optimizers import build_optimizer, weight_type


def second_moment_after(dtype: torch.dtype, steps: int) -> Tensor:
    precision = "bfloat16" if dtype == torch.bfloat16 else "float32"
    settings = Optimizer.model_validate({"name": "adam", "learning_rate": 0.01, "state_precision": precision})
    model = Affine().to(dtype)
    optimizer = build_optimizer(model, settings)
    moment = optimizer.state[model.weight]["exp_avg_sq"]
    moment.fill_(1.0)
    for _ in range(steps):
        take_step(optimizer, model, 0.0)
    return moment


def test_a_bfloat16_second_moment_does_not_move_and_a_float32_one_does() -> None:
    """1.0 times 0.999 is nearer to 1.0 than to the next smaller bfloat16, 0.996."""
    assert second_moment_after(torch.bfloat16, 200).unique().tolist() == [1.0]
    assert second_moment_after(torch.float32, 200).unique().tolist() == pytest.approx([0.999**200], rel=1e-5)


def test_a_bfloat16_weight_does_not_move_by_a_small_update_and_a_float32_one_does() -> None:
    """0.02 less 5e-5 is nearer to 0.02 than to the next smaller bfloat16."""
    for precision, moved in (("bfloat16", 0.0), ("float32", 5e-5 * 20)):
        settings = Optimizer.model_validate({"learning_rate": 5e-5, "state_precision": precision})
        model = Affine().to(weight_type(settings))
        nn.init.constant_(model.weight, 0.02)
        before = model.weight.detach().clone()
        optimizer = build_optimizer(model, settings)
        for _ in range(20):
            take_step(optimizer, model, 1.0)
        assert (before - model.weight).float().unique().tolist() == pytest.approx([moved], abs=1e-6)


def test_a_model_in_another_precision_than_its_state_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weight is torch\.bfloat16, expected torch\.float32"):
        build_optimizer(Affine().to(torch.bfloat16), Optimizer(learning_rate=0.01))
