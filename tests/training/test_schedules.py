"""Learning rates compared with the originals' own formulas at every step."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from relm.recipes.optimization import SCHEDULES, Schedule
from relm.training.schedules import learning_rate_scale


def scales(steps: int, **schedule: object) -> list[float]:
    return [learning_rate_scale(Schedule.model_validate(schedule), step, steps) for step in range(1, steps + 1)]


EXPONENTIAL = {"name": "natural_exponential", "decay_rate": 1.0, "floor": 0.1}


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"name": "constant", "warmup_steps": 4}, [0.25, 0.5, 0.75, 1.0, 1.0]),
        ({"name": "constant"}, [1.0, 1.0]),
        ({"name": "linear", "warmup_steps": 2}, [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]),
        ({"name": "linear", "floor": 0.2}, [0.8, 0.6, 0.4, 0.2]),
        ({"name": "linear", "decay_end": 3, "floor": 0.1}, [0.7, 0.4, 0.1, 0.1, 0.1]),
        ({"name": "linear", "decay_end": 8}, [7 / 8, 6 / 8, 5 / 8, 4 / 8]),
        # Graphcore's GPT-2 sets the rate once for all updates of a call of the device.
        (
            {"name": "linear", "warmup_steps": 1, "first_step": 0, "updates_per_step": 2},
            [0.0, 0.0, 1.0, 1.0, 2 / 3, 2 / 3, 1 / 3, 1 / 3],
        ),
        ({"name": "cosine"}, [0.0]),
        ({"name": "cosine", "warmup_steps": 1, "floor": 0.1}, [1.0, 0.868198, 0.55, 0.231802, 0.1]),
        ({"name": "polynomial", "power": 2.0}, [9 / 16, 4 / 16, 1 / 16, 0.0]),
        ({"name": "polynomial", "power": 2.0, "floor": 0.5}, [25 / 32, 20 / 32, 17 / 32, 0.5]),
        ({"name": "polynomial", "warmup_steps": 2}, [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]),
        (
            {"name": "natural_exponential", "warmup_steps": 1, "decay_rate": 0.5, "decay_period": 2},
            [1.0, 1.0, math.exp(-0.5), math.exp(-0.5), math.exp(-1), math.exp(-1)],
        ),
        (EXPONENTIAL, [0.1 + 0.9 * math.exp(-1), 0.1 + 0.9 * math.exp(-2)]),
        ({**EXPONENTIAL, "floor_cuts_off": True}, [math.exp(-1), math.exp(-2), 0.1, 0.1]),
        ({"name": "by_step", "by_step": {1: 0.5, 3: 1.0, 5: 0.0}}, [0.5, 0.5, 1.0, 1.0, 0.0]),
        ({"name": "by_step", "by_step": {0: 0.5, 2: 1.0}, "first_step": 0}, [0.5, 0.5, 1.0]),
        ({"name": "by_step", "by_step": {1: 1.0, 2: 0.01}, "floor": 0.2}, [1.0, 0.2]),
    ],
)
def test_a_schedule_has_these_shares_of_the_peak(schedule: dict[str, Any], expected: list[float]) -> None:
    assert scales(len(expected), **schedule) == pytest.approx(expected, abs=1e-6)


def test_a_warm_up_can_be_a_share_of_the_phase() -> None:
    assert Schedule(warmup_share=0.1).warmup(7032) == 703
    assert Schedule(warmup_share=0.06).warmup(125) == int(0.06 * 125) == 7
    assert Schedule(warmup_share=0.06, warmup_rounding="nearest").warmup(125) == int(0.06 * 125 + 0.5) == 8
    assert Schedule(warmup_share=0.5, updates_per_step=3).warmup(10) == 2  # of the 4 stretches
    assert Schedule(name="linear", warmup_share=0.5, decay_end=10).warmup(100) == 5
    assert scales(10, name="linear", warmup_share=0.2) == scales(10, name="linear", warmup_steps=2)


def transformers_scales(get: Any, steps: int, warmup: int, **options: Any) -> list[float]:
    """Return the learning rates that a schedule of transformers sets before each update, for a peak of 1."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    schedule = get(optimizer, num_warmup_steps=warmup, **options)
    values = []
    for _ in range(steps):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return values


@pytest.mark.parametrize("warmup", [0, 1, 3, 19])
@pytest.mark.parametrize("name", ["linear", "constant", "cosine", "polynomial"])
def test_counted_from_0_schedules_are_transformers(name: str, warmup: int) -> None:
    """They are tpu_pretrain's and run_mlm's linear, and those of Graphcore's GPT-2."""
    from transformers import optimization

    schedule: dict[str, Any] = {"name": name, "warmup_steps": warmup, "first_step": 0}
    if name == "constant":
        expected = transformers_scales(optimization.get_constant_schedule_with_warmup, 20, warmup)
    elif name == "polynomial":
        get = optimization.get_polynomial_decay_schedule_with_warmup
        expected = transformers_scales(get, 20, warmup, num_training_steps=20, lr_end=0.01, power=2.0)
        schedule |= {"power": 2.0, "floor": 0.01}
    else:
        get = getattr(optimization, f"get_{name}_schedule_with_warmup")
        expected = transformers_scales(get, 20, warmup, num_training_steps=20)
    assert scales(20, **schedule) == pytest.approx(expected, abs=1e-12)
    assert expected[0] == (0.0 if warmup else 1.0)


def graphcore_bert_rate(name: str, peak: float, step: int, warmup: int, steps: int, power: float = 1.0) -> float:
    """Return the learning rate of Graphcore's BERT for TensorFlow 1 at a step counted from 0."""
    if step <= warmup:
        rate = step**power * peak / warmup**power
    elif name == "cosine":
        rate = 0.5 * peak * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
    elif power == 1:
        rate = peak * (steps - step - 1) / (steps - warmup)
    else:
        rate = (peak - 1e-7) * (1 - (step - warmup) / (steps - warmup)) ** power + 1e-7
    return max(1e-7, rate)


@pytest.mark.parametrize(
    ("name", "power", "keys"),
    [
        ("polynomial", 2.0, {"power": 2, "warmup_power": 2}),
        ("linear", 1.0, {"decay_ahead": 1, "floor_cuts_off": True}),
        ("polynomial", 1.0, {"decay_ahead": 1, "floor_cuts_off": True}),
        ("cosine", 1.0, {"floor_cuts_off": True}),
    ],
)
def test_graphcore_berts_schedules_at_every_step(name: str, power: float, keys: dict[str, Any]) -> None:
    peak, warmup, steps = 6e-3, 2000, 7032
    schedule = Schedule.model_validate({"name": name, "warmup_steps": warmup, "first_step": 0, "floor": 1e-7 / peak, **keys})
    for step in (*([0, 1] if power == 1 else []), warmup - 1, warmup, warmup + 1, 5000, steps - 3, steps - 2, steps - 1):
        expected = graphcore_bert_rate(name, peak, step, warmup, steps, power)
        assert peak * learning_rate_scale(schedule, step + 1, steps) == pytest.approx(expected, rel=1e-9), step


SWEPT: dict[str, list[Any]] = {
    "first_step": [0, 1],
    "updates_per_step": [1, 3],
    "warmup_steps": [0, 1, 3],
    "warmup_share": [None, 0.1, 0.5],
    "warmup_rounding": ["down", "nearest"],
    "warmup_power": [0.5, 3.0],
    "floor": [0.0, 0.3, 1.0],
    "floor_cuts_off": [False, True],
    "decay_ahead": [-1, 0, 1],
    "decay_end": [None, 2, 30],
    "power": [0.1, 5.0],
    "decay_rate": [1e-300, 0.5, 1e308],
    "decay_period": [1, 4],
    "decay_share": [0.3, 1.0],
    "by_step": [{0: 1.0, 3: 0.0}, {-4: 0.3, 2: 1.0}],
}


def swept_schedules(name: str) -> Iterator[Schedule]:
    """Yield a schedule for every combination of a shape's keys."""
    keys = ("first_step", "updates_per_step", *SCHEDULES[name].keys)
    for values in itertools.product(*(SWEPT[key] for key in keys)):
        given = dict(zip(keys, values, strict=True))
        is_warmed_twice = given.get("warmup_steps") and given.get("warmup_share")
        if not is_warmed_twice and (given.get("warmup_share") or given.get("warmup_rounding") != "nearest"):
            yield Schedule.model_validate({"name": name, **given})


@pytest.mark.parametrize("name", SCHEDULES.names)
def test_the_rate_stays_between_0_and_the_peak_and_never_rises_after_the_warm_up(name: str) -> None:
    for schedule, steps in itertools.product(swept_schedules(name), (1, 7)):
        warmup, end = schedule.warmup(steps), schedule.decay_end or schedule.length(steps)
        if warmup >= min(end, schedule.length(steps)):  # refused by the phase
            continue
        rates = [learning_rate_scale(schedule, step, steps) for step in range(1, steps + 1)]
        assert all(0 <= rate <= 1 for rate in rates), (schedule, steps, rates)  # which NaN is not either
        after = rates[(warmup + 1 - schedule.first_step) * schedule.updates_per_step if warmup else 0 :]
        falls = all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(after))
        assert falls or name == "by_step", (schedule, steps, rates)


def test_a_decay_that_lags_begins_at_the_peak() -> None:
    for name in ("linear", "cosine", "polynomial"):
        assert scales(3, name=name, decay_ahead=-1, first_step=0)[:2] == [1.0, 1.0]


def refusal(**schedule: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Schedule.model_validate(schedule)
    return str(caught.value)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"name": "cosin"}, "'constant', 'linear', 'cosine', 'polynomial', 'natural_exponential', 'trapezoid' or 'by_step'"),
        ({"name": "linear", "power": 2}, "power: read with name: polynomial only, found 2.0 with name: linear"),
        ({"name": "constant", "floor": 0.1}, "floor: read with name: linear or cosine or polynomial or"),
        ({"name": "cosine", "by_step": {1: 1.0}}, "by_step: read with name: by_step only, found {1: 1.0}"),
        ({"name": "natural_exponential"}, "natural_exponential needs decay_rate"),
        ({"name": "by_step"}, "by_step needs a share from step 1 on; found steps none"),
        ({"name": "by_step", "by_step": {5: 1.0}}, "by_step needs a share from step 1 on; found steps [5]"),
        ({"name": "by_step", "by_step": {1: 1.5}}, "less than or equal to 1"),
        ({"name": "by_step", "by_step": {1: 1.0}, "warmup_steps": 3}, "warmup_steps: read with name: constant or"),
        ({"name": "linear", "warmup_steps": 3, "warmup_share": 0.1}, "warmup_steps (3) and warmup_share (0.1)"),
        ({"name": "linear", "warmup_rounding": "nearest"}, "warmup_rounding: nearest needs warmup_share"),
    ],
)
def test_bad_schedules_are_refused_by_name(schedule: dict[str, Any], message: str) -> None:
    assert message in refusal(**schedule)


def test_a_resolved_schedule_is_read_again_unchanged() -> None:
    for schedule in (
        Schedule(),
        Schedule(name="by_step", by_step={1: 0.5, 7: 0.25}),
        Schedule(name="cosine", warmup_share=0.1),
    ):
        assert Schedule.model_validate_json(schedule.model_dump_json()) == schedule
