import pytest

from relm.recipe import Schedule
from relm.training.schedules import learning_rate_scale


def scales(steps: int, **schedule: object) -> list[float]:
    return [learning_rate_scale(Schedule.model_validate(schedule), step, steps) for step in range(1, steps + 1)]


def test_constant_stays_at_the_peak_after_the_warm_up() -> None:
    assert scales(5, name="constant", warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_linear_reaches_the_floor_at_the_last_step() -> None:
    assert scales(6, name="linear", warmup_steps=2) == [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    assert scales(4, name="linear", floor=0.2) == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_cosine_is_half_way_in_the_middle_and_flat_at_its_end() -> None:
    values = scales(9, name="cosine", warmup_steps=1, floor=0.1)
    assert values[0] == 1.0
    assert values[4] == pytest.approx(0.55)
    assert values[8] == pytest.approx(0.1)
    assert values[7] - values[8] < values[4] - values[5]


def test_without_a_warm_up_the_first_step_is_already_scheduled() -> None:
    assert scales(1, name="cosine") == pytest.approx([0.0])
    assert scales(2, name="constant") == [1.0, 1.0]
