import pytest
import torch
from torch import nn

from relm.recipe import Optimizer
from relm.training.optimizers import build_optimizer, optimizer_tensors, restore_optimizer, set_learning_rate


class Affine(nn.Module):
    """One matrix and one vector."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))
        self.bias = nn.Parameter(torch.ones(2))


def take_step(optimizer: torch.optim.Optimizer, model: Affine, gradient: float) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step()


def test_only_matrices_are_decayed() -> None:
    model = Affine()
    optimizer = build_optimizer(model, Optimizer(learning_rate=0.1, weight_decay=0.5))
    take_step(optimizer, model, 0.0)
    assert model.weight.tolist() == [pytest.approx([0.95, 0.95])] * 2
    assert model.bias.tolist() == [1.0, 1.0]


def test_the_first_step_moves_by_the_learning_rate_whatever_the_gradient() -> None:
    """With bias correction both moments are the gradient itself (Kingma and Ba 2015, section 3)."""
    model = Affine()
    optimizer = build_optimizer(model, Optimizer(learning_rate=0.1))
    set_learning_rate(optimizer, 0.25)
    take_step(optimizer, model, 1e-3)
    assert model.weight.tolist() == [pytest.approx([0.75, 0.75], abs=1e-4)] * 2


def test_a_restored_optimizer_takes_the_same_next_step() -> None:
    model, copy = Affine(), Affine()
    settings = Optimizer(learning_rate=0.1, betas=(0.9, 0.95), weight_decay=0.1)
    optimizer, restored = build_optimizer(model, settings), build_optimizer(copy, settings)
    take_step(optimizer, model, 1.0)
    take_step(optimizer, model, -3.0)
    tensors = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, model).items()}
    assert set(tensors) == {f"{p}.{key}" for p in ("weight", "bias") for key in ("step", "exp_avg", "exp_avg_sq")}
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}

    copy.load_state_dict(model.state_dict())
    restore_optimizer(restored, copy, tensors)
    take_step(optimizer, model, 2.0)
    take_step(restored, copy, 2.0)
    assert torch.equal(model.weight, copy.weight)
    assert torch.equal(model.bias, copy.bias)
