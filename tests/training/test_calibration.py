"""The time of a step from that of shallow models: the same arithmetic on operations, which can be counted."""

import time

import pytest
import torch
from small_phases import CASES, cases
from torch.utils.flop_counter import FlopCounterMode

from relm.errors import RelmError
from relm.forecast import calibration
from relm.forecast.calibration import calibrate, seconds_of, shallow_models
from relm.models.gpt2 import Gpt2Config
from relm.models.t5_configuration import T5Config
from relm.recipes.recipe import Run
from relm.training.arithmetic import operations


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch):
    """Little measuring, and torch as other tests expect it."""
    monkeypatch.setattr(calibration, "SECONDS", 0.01)
    threads, exact = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(exact)


@pytest.mark.parametrize("micro_batch_size", [None, 1])
@pytest.mark.parametrize("case", CASES)
def test_with_operations_for_seconds_the_estimate_is_exact(case: str, micro_batch_size: int | None) -> None:
    config, settings = cases()[case]
    run = Run(micro_batch_size=micro_batch_size, threads=1)
    with FlopCounterMode(display=False) as counter:
        found = calibrate(config, settings, run, clock=lambda: float(counter.get_total_flops()))
    assert found.passes == pytest.approx(operations(config, settings, run).model)
    assert found.update == 0


def test_each_kind_of_layer_has_a_term_of_its_own() -> None:
    config = T5Config(6, 2, 4, 8, 16, 100, decoder_layers=4)
    models = shallow_models(config)
    assert {name: (model.layers, model.decoder_layers or model.layers) for name, model in models.items()} == {
        "": (1, 1),
        "layers": (3, 1),
        "decoder_layers": (1, 3),
    }
    # 5 for all but layers, 2 an encoder's, 3 a decoder's.
    assert seconds_of(config, models, {"": 10.0, "layers": 14.0, "decoder_layers": 16.0}) == 5 + 6 * 2 + 4 * 3


def test_a_model_of_one_layer_is_measured_as_it_is() -> None:
    config = Gpt2Config(1, 2, 8, 16, 100)
    assert shallow_models(config) == {"": config}
    assert seconds_of(config, shallow_models(config), {"": 3.0}) == 3.0


def test_beyond_the_largest_vocabulary_the_head_is_in_proportion() -> None:
    config = Gpt2Config(2, 2, 8, 16, 4 * calibration.LARGEST_VOCABULARY)
    models = shallow_models(config)
    assert {model.vocabulary_size for model in models.values()} == {calibration.LARGEST_VOCABULARY}
    assert seconds_of(config, models, {"": 3.0, "layers": 5.0}) == 4 * 1 + 2 * 2


def test_processes_that_crowd_the_cores_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    config, settings = cases()["gpt2"]
    monkeypatch.setattr(calibration, "usable_cores", lambda: 3)
    with FlopCounterMode(display=False) as counter:
        clock = lambda: float(counter.get_total_flops())  # noqa: E731
        apart = calibrate(config, settings, Run(processes=3), clock)
        crowded = calibrate(config, settings, Run(processes=3, threads=2), clock)
    whole = operations(config, settings, Run()).model
    assert (apart.threads, apart.passes) == (1, pytest.approx(whole / 3))
    assert (crowded.threads, crowded.passes) == (2, pytest.approx(2 * whole / 3))


def test_every_precision_and_optimizer_is_timed_as_it_runs() -> None:
    _, settings = cases(optimizer={"name": "adafactor", "learning_rate": 0.1}, precision="float16", loss_scaling={"scale": 8})[
        "gpt2"
    ]
    found = calibrate(Gpt2Config(2, 2, 8, 64, 120), settings, Run(activation_checkpointing=True, threads=1), time.perf_counter)
    assert found.passes > 0
    assert found.update > 0


def test_what_does_not_fit_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    config, settings = cases()["gpt2"]
    monkeypatch.setattr(calibration, "available_memory", lambda: 1000)
    with pytest.raises(
        RelmError, match=r"needs .* of memory for single sequences, 1\.0 kB is available; give --no-calibration"
    ):
        calibrate(config, settings, Run())
