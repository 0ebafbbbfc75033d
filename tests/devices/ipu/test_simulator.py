"""The simulated pipeline computes the loss, the gradients and the updates of the whole model."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pipeline_cases import (
    ADAMW,
    BERT,
    GPT2,
    LAMB,
    LLAMA,
    Config,
    assert_close,
    call,
    no_state,
    random_weights,
    spec,
    train_whole,
)

from relm.devices.ipu.backend import BackendError, WorkerSpec
from relm.devices.ipu.simulator import SimulatorBackend

PIPELINES: dict[str, tuple[Config, dict[str, Any]]] = {
    "gpt2-one-ipu": (GPT2, {"layers_per_ipu": [3], "gradient_accumulation": 4}),
    # As Graphcore's: the token embedding and the head on IPU 0, the positions on IPU 1.
    "gpt2-graphcore": (GPT2, {"layers_per_ipu": [0, 1, 1, 1], "position_embedding": 1, "gradient_accumulation": 9}),
    "gpt2-layers-on-both": (GPT2, {"layers_per_ipu": [1, 2], "position_embedding": 1, "gradient_accumulation": 9}),
    "gpt2-replicas": (
        GPT2,
        {"layers_per_ipu": [1, 2], "gradient_accumulation": 5, "replicas": 3, "micro_batch_size": 2},
    ),
    "gpt2-everything-kept": (
        GPT2,
        {"layers_per_ipu": [0, 1, 1, 1], "gradient_accumulation": 9, "recompute_layers": False},
    ),
    "gpt2-serialised": (
        GPT2,
        {"layers_per_ipu": [0, 1, 1, 1], "gradient_accumulation": 9, "vocabulary_serialisation": 4, "loss_chunk": 4},
    ),
    "llama": (LLAMA, {"layers_per_ipu": [0, 1, 1, 1], "position_embedding": 1, "gradient_accumulation": 9}),
    "bert": (BERT, {"layers_per_ipu": [1, 2], "gradient_accumulation": 6, "micro_batch_size": 2}),
    "bert-replicas": (BERT, {"layers_per_ipu": [0, 1, 1, 1], "gradient_accumulation": 9, "replicas": 2}),
}
EVERY = pytest.mark.parametrize("case", PIPELINES)


def opened(config: Config, built: WorkerSpec) -> SimulatorBackend:
    backend = SimulatorBackend(built)
    backend.load(random_weights(config), no_state(config))
    return backend


def simulated_gradients(backend: SimulatorBackend, loss_scale: float = 1.0) -> dict[str, torch.Tensor]:
    """Return the gradients of the last update, which the parameters keep."""
    return {name: p.grad / loss_scale for name, p in backend._pipeline.parameters.items()}


@EVERY
def test_loss_terms_and_all_gradients_equal_the_whole_models(case: str) -> None:
    config, pipeline = PIPELINES[case]
    built = spec(config, ADAMW, **pipeline)
    given = call(config, built)
    backend = opened(config, built)
    sums = backend.take(given)
    expected = train_whole(config, ADAMW, given)
    assert sums.losses.dtype == np.float64
    assert sums.losses.tolist() == pytest.approx(expected.losses, rel=1e-6)
    assert set(sums.terms) == set(expected.terms)
    for name, (nats, correct) in expected.terms.items():
        assert sums.terms[name] == pytest.approx((nats, correct), rel=1e-6)
    assert_close(simulated_gradients(backend), expected.gradients)


@pytest.mark.parametrize("case", ["gpt2-graphcore", "gpt2-replicas", "bert"])
@pytest.mark.parametrize("optimizer", [ADAMW, {**LAMB, "gradient_clipping": 0.5}], ids=["adamw", "lamb"])
def test_weights_and_optimizer_after_several_updates_equal_those_of_relms_optimizer(
    case: str, optimizer: dict[str, Any]
) -> None:
    config, pipeline = PIPELINES[case]
    built = spec(config, optimizer, **pipeline)
    given = call(config, built, updates=3)
    backend = opened(config, built)
    losses = backend.take(given).losses
    expected = train_whole(config, optimizer, given)
    weights, state = backend.save()
    assert losses.tolist() == pytest.approx(expected.losses, rel=1e-5)
    assert_close(weights, expected.weights, atol=1e-5)
    assert_close(state, expected.state)


def test_the_vocabulary_is_projected_in_slices_and_the_loss_taken_in_chunks_as_the_plan_says() -> None:
    counts = []
    for plan in ({}, {"vocabulary_serialisation": 4, "loss_chunk": 4}):
        built = spec(GPT2, ADAMW, layers_per_ipu=[3], gradient_accumulation=1, **plan)
        backend = opened(GPT2, built)
        with torch.profiler.profile() as profile:
            backend.take(call(GPT2, built))
        events = {event.key: event.count for event in profile.key_averages()}
        counts.append((events["aten::linear"], events["aten::cross_entropy_loss"]))
    # Of six positions, chunks of four and two.
    assert (counts[1][0] - counts[0][0], counts[0][1], counts[1][1]) == (3, 1, 2)


def test_the_divisor_of_each_micro_batch_weighs_its_nats() -> None:
    built = spec(GPT2, ADAMW, layers_per_ipu=[3], gradient_accumulation=2)
    given = call(GPT2, built)
    losses = []
    for divisors in ([8.0, 8.0], [8.0, 1e30], [1e30, 4.0]):
        given.batch["divisor.next_token"] = np.array(divisors, dtype=np.float32)
        losses.append(opened(GPT2, built).take(given).losses[0])
    both, first, second = losses
    assert both == pytest.approx(first + second / 2)


def test_a_loss_scale_of_50_000_is_undone() -> None:
    config, pipeline = PIPELINES["gpt2-graphcore"]
    built = spec(config, ADAMW, **pipeline)
    plain, scaled = opened(config, built), opened(config, built)
    losses = [plain.take(call(config, built)).losses, scaled.take(call(config, built, loss_scale=50_000.0)).losses]
    assert losses[0].tolist() == losses[1].tolist()
    assert_close(simulated_gradients(scaled, 50_000.0), simulated_gradients(plain))
    largest = max(gradient.abs().max() for gradient in simulated_gradients(plain).values())
    assert max(gradient.abs().max() for gradient in simulated_gradients(scaled).values()) > 10_000 * largest
    assert_close(scaled.save()[0], plain.save()[0])


@pytest.mark.parametrize("config", [GPT2, BERT], ids=["gpt2", "bert"])
def test_dropout_follows_from_seeds_and_not_from_the_order_or_the_partition(config: Config) -> None:
    dropout = {"dropout": 0.3} if config is GPT2 else {"hidden_dropout": 0.3, "attention_dropout": 0.2}
    config = replace(config, **dropout)
    found = []
    for layers, others in (
        ([config.layers], {}),
        ([0, 1, 1, 1], {"recompute_layers": True}),
        ([1, 2], {"recompute_layers": False, "position_embedding": 1}),
    ):
        built = spec(config, ADAMW, layers_per_ipu=layers, gradient_accumulation=9, **others)
        torch.manual_seed(len(found))
        backend = opened(config, built)
        found.append((backend.take(call(config, built)).losses[0], backend.save()[0]))
    for loss, weights in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-6)
        assert_close(weights, found[0][1], atol=1e-5)
    given = call(config, built)
    other = opened(config, built).take(given._replace(seeds=given.seeds + 100)).losses[0]
    assert other != pytest.approx(found[0][0], rel=1e-6)


@pytest.mark.parametrize("half_weights", [False, True])
def test_a_resumed_run_ends_with_the_same_bits_as_an_uninterrupted_one(half_weights: bool) -> None:
    config = replace(GPT2, dropout=0.2)
    built = spec(config, LAMB, half_weights=half_weights, layers_per_ipu=[1, 2], gradient_accumulation=5)
    whole = opened(config, built)
    first, second = call(config, built), call(config, built, learning_rate=2e-3)
    whole.take(first)
    saved = whole.save()
    whole.take(second)
    resumed = SimulatorBackend(built)
    resumed.load(*saved)
    assert resumed.compile(second) == 0.0, "something was compiled"
    resumed.take(second)
    for found, expected in zip(resumed.save(), whole.save(), strict=True):
        assert set(found) == set(expected)
        assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_updated_weights_are_rounded_to_their_neighbours_in_float16_at_random() -> None:
    pipeline = {"layers_per_ipu": [1, 2], "gradient_accumulation": 5}
    (exact, moments), (rounded, same_moments), (unrounded, _) = (
        updated(spec(GPT2, ADAMW, half_weights=half, **pipeline, **changes))
        for half, changes in ((False, {}), (True, {}), (True, {"stochastic_rounding": False}))
    )
    assert_close(same_moments, moments, atol=0, rtol=0)
    assert_close(unrounded, exact, atol=0, rtol=0)
    values, found = (torch.cat([tensor.flatten() for tensor in weights.values()]) for weights in (exact, rounded))
    assert torch.equal(found, found.half().float())
    spacing = torch.exp2(values.abs().log2().floor() - 10)  # the weights are large: none is subnormal
    assert ((found - values).abs() < spacing.clamp(min=2.0**-24)).all()
    is_nearest = found == values.half().float()
    assert 0.6 < is_nearest.float().mean() < 0.9, "a value is rounded to the nearest three times of four"


def updated(built: WorkerSpec) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return weights and optimizer's state after one update."""
    backend = opened(GPT2, built)
    backend.take(call(GPT2, built))
    return backend.save()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": 1}, "transformer.wte.weight is read by token_embedding on IPU 0 and by head on IPU 1"),
        ({"layers_per_ipu": [1, 3]}, "places layers.3 where the model has head; layers_per_ipu must sum to the"),
        ({"layers_per_ipu": [1, 1]}, "the pipeline places head where the model has layers.2"),
    ],
)
def test_a_plan_that_cannot_run_is_refused(changes: dict[str, Any], message: str) -> None:
    built = spec(GPT2, ADAMW, **{"layers_per_ipu": [1, 2], "gradient_accumulation": 5, **changes})
    with pytest.raises(BackendError, match=message):
        SimulatorBackend(built)


def test_a_model_without_segments_is_refused() -> None:
    pipeline = {"layers_per_ipu": [3], "gradient_accumulation": 1}
    with pytest.raises(BackendError, match="architecture 't5' is not divided into segments; a pipeline trains gpt2 or"):
        SimulatorBackend(spec(GPT2, ADAMW, **pipeline)._replace(architecture="t5"))


def test_weights_and_state_of_another_model_are_refused() -> None:
    built = spec(GPT2, ADAMW, layers_per_ipu=[3], gradient_accumulation=1)
    backend = SimulatorBackend(built)
    other = replace(GPT2, biases=False)
    with pytest.raises(BackendError, match=r"the weights belong to another model: transformer.h.0.attn.c_attn.bias"):
        backend.load(random_weights(other), no_state(GPT2))
    with pytest.raises(BackendError, match=r"the state belongs to another model or optimizer: transformer.h.0"):
        backend.load(random_weights(GPT2), no_state(other))
