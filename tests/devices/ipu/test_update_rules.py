"""The update rules of IPUs against relm's optimizers."""

from typing import Any

import pytest
import torch
from pipeline_cases import ADAMW, LAMB, assert_close
from torch import Tensor, nn

from relm.devices.ipu.update_rules import UpdateRule
from relm.recipes.optimization import Optimizer
from relm.training.optimizers import build_optimizer, optimizer_tensors

ADAM = {**ADAMW, "name": "adam"}
CASES: dict[str, dict[str, Any]] = {
    "adamw": ADAMW,
    "adamw-all": {**ADAMW, "decayed": "all_but_biases", "betas": (0.8, 0.95), "epsilon": 1e-3},
    "adamw-clipped": {**ADAMW, "gradient_clipping": 0.3},
    "adam": ADAM,
    "lamb": LAMB,
    "lamb-corrected": {**LAMB, "bias_correction": True, "decayed": "matrices"},
    "lamb-all": {**LAMB, "lamb": {"adapted": "all", "weight_norm_clip": 0.7}},
}


class Layer(nn.Module):
    """A matrix, its bias, and a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(6, 4)
        self.LayerNorm = nn.LayerNorm(4)
        generator = torch.Generator().manual_seed(1)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=generator)


def gradients_at(update: int, model: nn.Module) -> dict[str, Tensor]:
    """Return gradients whose common norm is below 1 at the first update, and above it later."""
    generator = torch.Generator().manual_seed(update)
    return {name: 0.1 * update * torch.randn(p.shape, generator=generator) for name, p in model.named_parameters()}


def both(settings: dict[str, Any], updates: int) -> tuple[tuple[dict, dict], tuple[dict, dict]]:
    """Return weights and state after some updates, by the rule of IPUs and by relm's optimizer."""
    section = Optimizer.model_validate(settings)
    ours, theirs = Layer(), Layer()
    rule = UpdateRule(section.model_dump(mode="json"), dict(ours.named_parameters()))
    optimizer = build_optimizer(theirs, section, traced=True)
    for update in range(1, updates + 1):
        gradients = gradients_at(update, ours)
        kept = {name: gradient.clone() for name, gradient in gradients.items()}
        rule.take(gradients, section.learning_rate)
        assert all(torch.equal(gradient, kept[name]) for name, gradient in gradients.items())
        for name, parameter in theirs.named_parameters():
            parameter.grad = gradients[name].clone()
        if section.gradient_clipping is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), section.gradient_clipping)
        optimizer.step()
    return (ours.state_dict(), rule.tensors()), (theirs.state_dict(), optimizer_tensors(optimizer, theirs))


@pytest.mark.parametrize("case", CASES)
def test_twenty_updates_equal_those_of_relms_optimizer(case: str) -> None:
    (weights, state), (expected_weights, expected_state) = both(CASES[case], updates=20)
    assert_close(weights, expected_weights, atol=2e-6)
    assert_close(state, expected_state)


def test_the_first_update_of_adamw_is_the_learning_rate_against_the_gradients_sign() -> None:
    """As with bias correction: without it, the first update would be more than three times as large."""
    weight = torch.tensor([1.0, -2.0])
    rule = UpdateRule(Optimizer.model_validate({**ADAMW, "weight_decay": 0.0}).model_dump(), {"weight": weight})
    rule.take({"weight": torch.tensor([0.5, -3.0])}, learning_rate=0.1)
    assert weight.tolist() == pytest.approx([0.9, -1.9], abs=1e-6)
