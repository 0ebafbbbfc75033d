"""Loss scales, overflow and clipping; and training in float16, bfloat16 and float32 on the CPU."""

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from relm.errors import RelmError
from relm.models.losses import Term
from relm.recipes.optimization import LossScaling, Optimizer
from relm.training.loss_scaling import HOPELESS, LossScaler, build_loss_scaler, finish_gradients
from relm.training.optimizers import build_optimizer, optimizer_tensors
from relm.training.step import accumulate_terms

CPU = torch.device("cpu")


def scaler_of(**settings: Any) -> LossScaler:
    return LossScaler(LossScaling.model_validate(settings), CPU)


def parameter_with_gradient(*values: float) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros(len(values)))
    parameter.grad = torch.tensor(values)
    return parameter


def gradient_of(parameter: nn.Parameter) -> list[float]:
    assert parameter.grad is not None
    return parameter.grad.tolist()  # type: ignore[no-any-return]


def test_gradients_are_unscaled_then_clipped() -> None:
    scaler = scaler_of(scale=1024)
    one, other = parameter_with_gradient(3 * 1024.0), parameter_with_gradient(0.0, 4 * 1024.0)
    norm = finish_gradients([one, other], scaler, 1.0)
    assert norm.item() == pytest.approx(5.0)
    assert gradient_of(one) == pytest.approx([0.6], rel=1e-6)
    assert gradient_of(other) == pytest.approx([0.0, 0.8], rel=1e-6)
    assert scaler.found_inf.item() == 0.0


def test_a_scale_of_a_power_of_two_gives_the_bits_of_torchs_clipping() -> None:
    for clipping in (None, 0.5, 100.0):
        values = torch.randn(50, generator=torch.Generator().manual_seed(0)).tolist()
        plain = parameter_with_gradient(*values)
        scaled = parameter_with_gradient(*(value * 65536 for value in values))
        norms = [finish_gradients([plain], None, clipping), finish_gradients([scaled], scaler_of(scale=65536), clipping)]
        assert norms[0] == norms[1]
        assert gradient_of(plain) == gradient_of(scaled)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_an_overflow_is_found_and_its_gradients_are_0(bad: float) -> None:
    scaler = scaler_of(scale=8)
    one, other = parameter_with_gradient(8.0, 16.0), parameter_with_gradient(bad)
    norm = finish_gradients([one, other], scaler, 1.0)
    assert scaler.found_inf.item() == 1.0
    assert norm.item() == 0.0
    assert gradient_of(one) == [0.0, 0.0]
    assert gradient_of(other) == [0.0]


def line_of(scaler: LossScaler) -> dict[str, float]:
    """Return the columns of a line, read as by the loop."""
    return scaler.line({name: value.item() for name, value in scaler.readings().items()})


def after(scaler: LossScaler, overflows: str) -> list[float]:
    """Return the scale after each update of a pattern: x where it overflows, otherwise a dot."""
    scales = []
    for number, mark in enumerate(overflows, start=1):
        scaler.begin_step(number)
        finish_gradients([parameter_with_gradient(float("inf") if mark == "x" else 1.0)], scaler, None)
        scales.append(scaler.scale.item())
    return scales


def test_the_automatic_scale_halves_at_an_overflow_and_doubles_after_an_interval_without() -> None:
    scaler = scaler_of(name="automatic", scale=64, growth_interval=3)
    assert after(scaler, "..x...x.x....") == [64, 64, 32, 32, 32, 64, 32, 32, 16, 16, 16, 32, 32]
    assert line_of(scaler) == {"loss_scale": 32, "skipped_updates": 3}


def test_the_automatic_scale_is_torchs() -> None:
    """It equals GradScaler's, whose update is a kernel of torch."""
    scale, growth = torch.tensor(1024.0), torch.tensor(0, dtype=torch.int32)
    marks = "....x..xx......x............"
    expected = []
    for mark in marks:
        torch._amp_update_scale_(scale, growth, torch.tensor(float(mark == "x")), 2.0, 0.5, 4)
        expected.append(scale.item())
    assert after(scaler_of(name="automatic", scale=1024, growth_interval=4), marks) == expected


def test_a_static_scale_stays_and_a_table_is_followed() -> None:
    assert after(scaler_of(scale=50_000), ".x.") == [50_000] * 3
    assert after(scaler_of(name="by_step", scale=2, by_step={2: 32, 4: 16}), "..x..") == [2, 32, 32, 16, 16]


def test_updates_that_are_all_skipped_stop_the_run() -> None:
    scaler = scaler_of(scale=50_000)
    after(scaler, "." + "x" * (HOPELESS - 1))
    line_of(scaler)
    after(scaler, "x")
    with pytest.raises(RelmError, match=rf"the last {HOPELESS} updates were skipped, .* with scale 50000.*automatic"):
        line_of(scaler)


def test_nothing_is_scaled_unless_requested() -> None:
    assert build_loss_scaler(LossScaling(), "float32", CPU) is None
    assert build_loss_scaler(LossScaling(), "bfloat16", CPU) is None
    assert build_loss_scaler(LossScaling(), "float16", CPU) is not None
    assert build_loss_scaler(LossScaling(scale=128), "float32", CPU) is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "dynamic"}, "'static', 'by_step' or 'automatic'"),
        ({"growth_interval": 5}, "growth_interval: read with name: automatic only, found 5 with name: static"),
        ({"name": "by_step"}, "by_step needs a table of factors"),
        ({"scale": 0}, "greater than 0"),
        ({"scale": 1e300}, "expected a factor that float32 can hold, from 1.18e-38 to 3.4e+38"),
        ({"scale": 1e-40}, "expected a factor that float32 can hold"),
        ({"name": "by_step", "by_step": {1: 1e39}}, "expected a factor that float32 can hold"),
        ({"name": "by_step", "by_step": {0: 8}}, "greater than 0"),
    ],
)
def test_bad_scalings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        LossScaling.model_validate(settings)
    assert message in str(caught.value)


class Classifier(nn.Module):
    """Two layers, float32 weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def terms(self, batch: dict[str, Tensor]) -> dict[str, Term]:
        logits = self.second(torch.relu(self.first(batch["inputs"])))
        self.seen = logits.dtype
        nats = F.cross_entropy(logits.float(), batch["labels"], reduction="sum")
        return {"token": Term(nats, batch["labels"].new_tensor(len(batch["labels"])), nats.detach())}


def train(precision: str, steps: int, shrink: float = 1.0, **scaling: Any) -> tuple[Classifier, list[float], LossScaler | None]:
    """Return the losses of some steps; `shrink` is a factor of the loss, and so of its gradients."""
    generator = torch.Generator().manual_seed(1)
    batch = {"inputs": torch.randn(32, 8, generator=generator), "labels": torch.arange(32) % 4}
    model = Classifier()
    # An epsilon far below the smallest gradient, so that Adam's steps do not depend on how small they are.
    optimizer = build_optimizer(model, Optimizer(learning_rate=0.01, epsilon=1e-15))
    dtype = getattr(torch, precision)

    def autocast() -> AbstractContextManager[None]:
        return torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32)

    scaler = build_loss_scaler(LossScaling.model_validate(scaling), precision, CPU)
    if scaler is not None:
        scaler.attach(optimizer)
    losses = []
    for step in range(1, steps + 1):
        if scaler is not None:
            scaler.begin_step(step)
        scale = None if scaler is None else scaler.scale
        accumulated = accumulate_terms(model.terms, [batch], [{"token": 32.0 / shrink}], autocast, scale)
        finish_gradients(model.parameters(), scaler, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accumulated.loss.item() / shrink)
    assert model.seen == dtype
    state = optimizer_tensors(optimizer, model)
    assert {tensor.dtype for tensor in [*state.values(), *model.parameters()]} == {torch.float32}
    return model, losses, scaler


@pytest.mark.parametrize(("precision", "tolerance"), [("bfloat16", 0.02), ("float16", 0.005)])
def test_half_precisions_train_like_float32_with_float32_weights_and_state(precision: str, tolerance: float) -> None:
    _, expected, _ = train("float32", 30)
    _, losses, _ = train(precision, 30, **({"name": "automatic", "scale": 1024} if precision == "float16" else {}))
    assert losses[-1] < 0.8 * losses[0]
    assert losses == pytest.approx(expected, rel=tolerance)


def test_gradients_that_vanish_in_float16_are_kept_by_a_loss_scale() -> None:
    model, lost, _ = train("float16", 10, shrink=1e-8)
    assert lost[-1] == pytest.approx(lost[0], rel=0.05)
    assert model.first.weight.equal(Classifier().first.weight)
    _, kept, _ = train("float16", 10, shrink=1e-8, scale=2.0**24)
    _, wanted, _ = train("float32", 10)
    assert kept == pytest.approx(wanted, rel=0.02)


def test_a_scale_that_overflows_float16_is_lowered_until_updates_are_made() -> None:
    _, losses, scaler = train("float16", 30, name="automatic", scale=2.0**40)
    assert scaler is not None
    skipped = int(line_of(scaler)["skipped_updates"])
    assert 0 < skipped < 30
    assert losses[:skipped] == [losses[0]] * skipped
    assert losses[-1] < losses[skipped]
    assert scaler.scale.item() == 2.0 ** (40 - skipped)


def test_a_skipped_update_leaves_the_weights_where_momentum_would_have_moved_them() -> None:
    """Each loss is that before an update: the fourth and fifth are skipped."""
    _, losses, _ = train("float16", 8, name="by_step", by_step={1: 1024, 4: 2.0**40, 6: 1024})
    assert losses[3] == losses[4] == losses[5]
    assert losses[0] > losses[1] > losses[2] > losses[3]
    assert losses[5] > losses[6] > losses[7]


def test_no_step_reads_a_value_back() -> None:
    """Meta tensors have no values."""
    scaler = LossScaler(LossScaling(name="automatic"), torch.device("meta"))
    parameter = nn.Parameter(torch.zeros(3, device="meta"))
    optimizer = build_optimizer(nn.ParameterList([parameter]), Optimizer(name="lamb", learning_rate=0.1))
    scaler.attach(optimizer)
    for step in (1, 2):
        scaler.begin_step(step)
        parameter.grad = torch.ones_like(parameter)
        finish_gradients([parameter], scaler, 1.0)
        optimizer.step()
