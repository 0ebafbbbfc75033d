"""The backend for PopTorch against PopTorch's Python front-end: in Graphcore's image, or over a stand-in for its compiled half.

`make test-py38` runs it as `python3.8 -m pytest --noconftest -c /dev/null tests/devices/ipu/test_poptorch_contract.py`, with
`src` and this folder on PYTHONPATH. Needs neither pydantic nor the rest of relm, and runs on Python 3.8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

poptorch = pytest.importorskip(
    "poptorch", reason="PopTorch is part of Graphcore's SDK; `make test-py38 POPTORCH=folder` or its image run these tests"
)

from expected_options import GPT2_OPTIMIZER, OPTIONS, lamb  # noqa: E402

from relm.devices.ipu import options  # noqa: E402
from relm.devices.ipu.backend import UpdateCall, WorkerSpec  # noqa: E402
from relm.devices.ipu.partition import build_model  # noqa: E402
from relm.devices.ipu.poptorch_backend import PoptorchBackend  # noqa: E402
from relm.devices.ipu.simulator import SimulatorBackend  # noqa: E402

# What only the stand-in can do: a real compiler needs IPUs for replicas, and computes in its own precision.
core = pytest.importorskip("poptorch.poptorch_core")
stand_in = pytest.mark.skipif(not hasattr(core, "executables"), reason="needs IPUs")

CONFIGURATION = {
    "layers": 4, "heads": 2, "hidden_size": 16, "positions": 8, "vocabulary_size": 64, "activation": "gelu_tanh",
    "dropout": 0.0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "biases": True,
}  # fmt: skip
BERT = {
    "layers": 4, "heads": 2, "hidden_size": 16, "intermediate_size": 32, "positions": 8, "vocabulary_size": 64,
    "type_vocabulary_size": 2, "activation": "gelu_tanh", "hidden_dropout": 0.0, "attention_dropout": 0.0,
    "next_sentence": True,
    "layer_norm_epsilon": 1e-3, "query_key_value_bias": False, "attention_projection_bias": False, "transform_layer": False,
}  # fmt: skip
ADAMW = {
    "name": "adamw", "learning_rate": 1e-2, "betas": [0.9, 0.999], "epsilon": 1e-6, "bias_correction": True, "form": "pytorch",
    "weight_decay": 0.0, "decayed": "matrices", "gradient_clipping": None, "state_precision": "float32",
    "lamb": {"adapted": "matrices", "weight_norm_clip": None, "normalise_gradient": False},
}  # fmt: skip
LAMB = {**ADAMW, "name": "lamb", "bias_correction": False, "weight_decay": 0.01, "decayed": "all_but_biases"}


def pipeline_of(layers_per_ipu: list[int], **changes: Any) -> dict[str, Any]:
    layers = [ipu for ipu, count in enumerate(layers_per_ipu) for _ in range(count)]
    fields = {
        "layers_per_ipu": layers_per_ipu, "token_embedding": 0, "position_embedding": min(1, len(layers_per_ipu) - 1),
        "head": 0, "replicas": 2, "instances": 1, "micro_batch_size": 1, "gradient_accumulation": 7, "device_iterations": 2,
        "available_memory_proportion": None, "recompute_layers": True, "replicated_tensor_sharding": False,
        "optimizer_state_off_chip": True, "vocabulary_serialisation": 4, "loss_chunk": 4, "precision": "float32",
        "accumulation_precision": "float32", "first_moment_precision": "float32", "half_partials": True,
        "stochastic_rounding": True, "loss_scaling": {"name": "static", "scale": 64.0, "by_step": {}, "growth_interval": 2000},
        "stages_of_original": None, "smallest_remote_tensor": None, **changes,
    }  # fmt: skip
    placement = [["token_embedding", 0], ["position_embedding", fields["position_embedding"]]]
    placement += [[f"layers.{number}", ipu] for number, ipu in enumerate(layers)]
    return {**fields, "placement": [*placement, ["head", 0]]}


def spec_of(
    optimizer: dict[str, Any] = ADAMW, layers_per_ipu: Any = (0, 4), offline: bool = False, **changes: Any
) -> WorkerSpec:
    configuration = {**CONFIGURATION, "layers": sum(layers_per_ipu)}
    pipeline = pipeline_of(list(layers_per_ipu), **changes)
    return WorkerSpec("poptorch", "gpt2", configuration, pipeline, optimizer, "float32", 5, 1, "", offline)


def call_of(spec: WorkerSpec, seed: int = 0, learning_rate: float = 1e-2) -> UpdateCall:
    draw, pipeline = np.random.default_rng(seed), spec.pipeline
    counts = (pipeline["device_iterations"], pipeline["replicas"], pipeline["gradient_accumulation"])
    sequences, positions = int(np.prod(counts)), 8
    labels = draw.integers(64, size=(sequences, positions))
    labels[:, 5:] = np.where(draw.random((sequences, 3)) < 0.5, -100, labels[:, 5:])
    per_update = (labels != -100).sum(1).reshape(counts[0], -1).sum(1).repeat(sequences // counts[0])
    ids = draw.integers(64, size=(sequences, positions))
    batch = {"input_ids": ids, "labels": labels, "divisor.next_token": per_update.astype(np.float32)}
    return UpdateCall(batch, np.zeros(counts, np.int64), learning_rate, 64.0)


def bert_spec(**changes: Any) -> WorkerSpec:
    spec = spec_of(LAMB, loss_chunk=None, **changes)
    return spec._replace(architecture="bert", configuration={**BERT, "layers": len(spec.pipeline["placement"]) - 3})


def bert_call_of(spec: WorkerSpec) -> UpdateCall:
    draw, call = np.random.default_rng(0), call_of(spec)
    sequences = len(call.batch["input_ids"])
    masked = draw.integers(64, size=(sequences, 3))
    batch = {
        "input_ids": call.batch["input_ids"],
        "attention_mask": (np.arange(8) < draw.integers(4, 9, size=(sequences, 1))).astype(np.int64),
        "token_type_ids": draw.integers(2, size=(sequences, 8)),
        "masked_positions": draw.integers(4, size=(sequences, 3)),
        "masked_labels": masked,
        "next_sentence_labels": draw.integers(2, size=sequences),
        "divisor.masked_token": np.full(sequences, masked.size / spec.pipeline["device_iterations"], np.float32),
        "divisor.next_sentence": np.full(sequences, sequences / spec.pipeline["device_iterations"], np.float32),
    }
    return call._replace(batch=batch)


def begin(backend: Any, spec: WorkerSpec) -> Any:
    model = build_model(spec.architecture, spec.configuration)
    model.initialise(torch.Generator().manual_seed(3))
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = {f"{name}.{moment}": torch.zeros_like(w) for name, w in weights.items() for moment in ("exp_avg", "exp_avg_sq")}
    backend.load(weights, {**state, "updates": torch.tensor(0.0)})
    return backend


@pytest.mark.parametrize("run", [name for name in OPTIONS if name != "gpt2_large_poprun"])
def test_poptorch_accepts_the_options_of_each_original(run: str) -> None:
    table = OPTIONS[run]
    found = options.apply_options(poptorch, poptorch.Options(), table).toDict()
    location = table["TensorLocations.setOptimizerLocation"]
    assert found["replication_factor"] == table["replicationFactor"]
    assert found["auto_round_num_ipus"] is True
    assert found["device_iterations"] == table["deviceIterations"]
    assert found["gradient_accumulation"] == table["Training.gradientAccumulation"]
    assert found["accumulation_and_replication_reduction_type"] == poptorch.ReductionType.Mean
    assert found["output_mode"] == poptorch.OutputMode.Sum
    assert found["random_seed"] == table["randomSeed"]
    assert found["enableStochasticRounding"] is True
    assert found["partialsTypeMatMuls"] == "half"
    assert found["location_optimizer"]["onChip"] == int(location["useOnChipStorage"])
    assert found["location_optimizer"]["useReplicatedTensorSharding"] == int(location["useReplicatedTensorSharding"])
    shares = table["setAvailableMemoryProportion"]
    assert found["available_memory_proportion"] == {int(name[3:]): share for name, share in shares.items()}
    for key, value in table.get("_Popart.set", {}).items():
        assert found[key] == value, key
    assert found.get("patterns") == table.get("_Popart.setPatterns")


def compiled_optimizer(optimizer: dict[str, Any], loss_scale: float, **changes: Any) -> Any:
    """Return what the front-end tells the compiler of an optimizer, and the options that it changed."""
    model = build_model("gpt2", CONFIGURATION)
    parameters = dict(model.named_parameters())
    shapes = [(name, tuple(parameter.shape)) for name, parameter in parameters.items()]
    table = options.optimizer_table(optimizer, pipeline_of([0, 4], **changes), shapes, loss_scale)
    built = options.build_optimizer(poptorch, table, parameters)
    executor = poptorch.trainingModel(model, poptorch.Options(), optimizer=built)
    return executor._dict_optimizer, executor.options


HALF = {"accumulation_precision": "float16", "first_moment_precision": "float16"}


def test_gpt2s_optimizer_is_compiled_as_the_original_asks() -> None:
    found, changed = compiled_optimizer({**ADAMW, "learning_rate": 0.00015}, 50000.0, **HALF)
    # Value, and whether it is a constant of the program: what the original gives is not.
    group = {
        "learningRate": (0.00015, False),
        "beta1": (0.9, True),
        "beta2": (0.999, True),
        "eps": (1e-6, False),
        "weightDecay": (0.0, False),
    }
    assert found == {
        "optimizer_type": 4,  # ADAMW_NO_BIAS
        "accumType": True,
        "firstOrderMomentumAccumType": True,
        "secondOrderMomentumAccumType": False,
        "maxGradNorm": float("inf"),
        "defaults": {**group, "weightDecay": (0.01, False), "lossScaling": (50000.0, False)},
        "groups": [group, group],
    }
    strategy = changed.Training.meanAccumulationAndReplicationReductionStrategy
    assert strategy == poptorch.MeanReductionStrategy.Running, "accumulation in float16 switches it"


def test_the_optimizer_of_the_table_is_that_of_the_originals_call() -> None:
    model = build_model("gpt2", CONFIGURATION)
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.0},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0},
    ]
    arguments = dict(GPT2_OPTIMIZER["arguments"])
    for key in arguments:
        if key.endswith("accum_type"):
            arguments[key] = getattr(torch, arguments[key])
    original = poptorch.trainingModel(model, poptorch.Options(), optimizer=poptorch.optim.AdamW(groups, **arguments))
    assert compiled_optimizer({**ADAMW, "learning_rate": 0.00015}, 50000.0, **HALF)[0] == original._dict_optimizer


def test_betas_that_are_given_would_be_another_program() -> None:
    usual, _ = compiled_optimizer(ADAMW, 1.0)
    other, _ = compiled_optimizer({**ADAMW, "betas": [0.9, 0.98]}, 1.0)
    assert usual["defaults"]["beta2"] == (0.999, True)
    assert other["defaults"]["beta2"] == (0.98, False)


def test_berts_optimizer_has_no_debiasing_and_three_groups() -> None:
    found, changed = compiled_optimizer({**LAMB, "learning_rate": 0.006}, 32768.0)
    assert found["optimizer_type"] == 8  # LAMB_NO_BIAS
    assert [(group["weightDecay"], group["maxWeightNorm"]) for group in found["groups"]] == [
        ((0.01, False), (65500.0, True)),
        ((0.01, False), (0.0, True)),
        ((0.0, False), (0.0, True)),
    ]
    assert found["defaults"]["lossScaling"] == (32768.0, False)
    assert [set(group) for group in lamb(0.006, 32768.0)["groups"]] == [
        {"weight_decay"},
        {"weight_decay", "max_weight_norm"},
        {"weight_decay", "max_weight_norm"},
    ]
    strategy = changed.Training.meanAccumulationAndReplicationReductionStrategy
    assert strategy == poptorch.MeanReductionStrategy.Post, "accumulation in float32 does not switch it"


def test_automatic_loss_scaling_makes_the_scale_a_variable_of_the_program() -> None:
    scaling = {"name": "automatic", "scale": 1.0, "by_step": {}, "growth_interval": 2000}
    spec = spec_of(loss_scaling=scaling, replicas=1, accumulation_precision="float16")
    backend = begin(PoptorchBackend(spec), spec)
    backend._open(list(backend._arrays(call_of(spec).batch)), call_of(spec))
    assert backend._running._dict_optimizer["defaults"]["lossScaling"][1] is False
    assert backend._running.options.toDict()["automaticLossScalingSettings.enabled"] is True


def test_options_cannot_be_changed_once_the_model_is_made() -> None:
    spec = spec_of()
    backend = begin(PoptorchBackend(spec), spec)
    backend._open(list(backend._arrays(call_of(spec).batch)), call_of(spec))
    with pytest.raises(AttributeError, match="frozen"):
        backend._options.deviceIterations(3)


def test_poptorchs_loader_combines_consecutive_sequences() -> None:
    given = poptorch.Options().deviceIterations(2).replicationFactor(2)
    given.Training.gradientAccumulation(3)
    loader = poptorch.DataLoader(given, torch.utils.data.TensorDataset(torch.arange(24)), batch_size=1)
    assert [batch.tolist() for (batch,) in loader] == [list(range(12)), list(range(12, 24))]


# Layers on each IPU of the five GPT-2 runs, of tiny and of large BERT, and the forward stages of a GPT-2 that is so divided.
PLANS = [
    ([0, 4, 4, 4], 5),
    ([0, 3, 3, 3, 3, 4, 4, 4], 9),
    ([1, 5, 5, 5, 5, 5, 5, 5], 11),
    ([0, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 2], 17),
    ([2], 1),
    ([3, 7, 7, 7], 7),
]


@stand_in
@pytest.mark.parametrize(("layers_per_ipu", "stages"), PLANS)
def test_the_front_end_places_the_blocks_of_each_plan(layers_per_ipu: list[int], stages: int) -> None:
    spec = spec_of(
        layers_per_ipu=layers_per_ipu, offline=True, replicas=1, gradient_accumulation=2 * stages - 1, precision="float16"
    )
    assert begin(PoptorchBackend(spec), spec).compile(call_of(spec)) > 0
    graph = core.executables[-1].graph
    assert [ipu for _, ipu in graph.blocks] == [ipu for _, ipu in spec.pipeline["placement"]]
    assert [stage for stage, _ in graph.blocks] == list(range(1, len(graph.blocks) + 1)), "PopART merges those of one IPU"
    assert graph.stages() == stages
    assert graph.checkpoints == [ipu for name, ipu in spec.pipeline["placement"] if name.startswith("layers.")]
    assert graph.serialised == [(0, 4)]
    assert len(graph.losses) == 1
    assert {str(kind) for kind in graph.types.values()} == {"torch.float16"}


@stand_in
def test_the_front_end_refuses_fewer_micro_batches_than_stages() -> None:
    spec = spec_of(layers_per_ipu=[0, 4, 4, 4], offline=True, replicas=1, gradient_accumulation=8)
    with pytest.raises(core.Error, match="expected at least the 9 pipeline stages"):
        begin(PoptorchBackend(spec), spec).compile(call_of(spec))


def test_a_model_for_an_offline_target_cannot_be_run() -> None:
    spec = spec_of(offline=True, replicas=1)
    backend = begin(PoptorchBackend(spec), spec)
    backend.compile(call_of(spec))
    with pytest.raises(AssertionError, match="offline device"):
        backend.take(call_of(spec))


@stand_in
@pytest.mark.parametrize("optimizer", [ADAMW, LAMB], ids=["adamw", "lamb"])
def test_updates_equal_those_of_the_simulator(optimizer: dict[str, Any]) -> None:
    spec = spec_of(optimizer)
    ours, theirs = begin(PoptorchBackend(spec), spec), begin(SimulatorBackend(spec), spec)
    for seed in (0, 1):
        call = call_of(spec, seed)
        found, expected = ours.take(call), theirs.take(call)
        assert found.losses == pytest.approx([expected.losses.mean()], rel=1e-5)
    for mine, other in zip(ours.save(), theirs.save()):
        assert mine.keys() == other.keys()
        for name, tensor in mine.items():
            torch.testing.assert_close(tensor, other[name], rtol=2e-4, atol=2e-6, msg=name)


@stand_in
def test_updates_of_bert_equal_those_of_the_simulator() -> None:
    spec = bert_spec()
    ours, theirs = begin(PoptorchBackend(spec), spec), begin(SimulatorBackend(spec), spec)
    found, expected = ours.take(bert_call_of(spec)), theirs.take(bert_call_of(spec))
    assert found.losses == pytest.approx([expected.losses.mean()], rel=1e-5)
    assert found.terms.keys() == expected.terms.keys()
    for mine, other in zip(ours.save(), theirs.save()):
        for name, tensor in mine.items():
            torch.testing.assert_close(tensor, other[name], rtol=2e-4, atol=2e-6, msg=name)


@stand_in
def test_the_front_end_places_bert_and_traces_it_in_half_precision() -> None:
    spec = bert_spec(layers_per_ipu=[3, 7, 7, 7], position_embedding=0, offline=True, replicas=1, precision="float16",
                     gradient_accumulation=10)  # fmt: skip
    assert begin(PoptorchBackend(spec), spec).compile(bert_call_of(spec)) > 0
    graph = core.executables[-1].graph
    assert graph.stages() == 5, "as many as in the original for TensorFlow"
    assert len(graph.outputs) == 5, "the loss, and of two terms the nats and the correct labels"


@stand_in
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_run_that_was_saved_goes_on_with_the_same_bytes(precision: str) -> None:
    changes = {"precision": precision, "first_moment_precision": precision, "accumulation_precision": precision}
    spec = spec_of(**changes)
    whole, first, second = (PoptorchBackend(spec) for _ in range(3))
    begin(whole, spec).take(call_of(spec, 0))
    whole.take(call_of(spec, 1, 5e-3))
    begin(first, spec).take(call_of(spec, 0))
    saved = first.save()
    assert {type(tensor) for part in saved for tensor in part.values()} == {torch.Tensor}, "they load without poptorch"
    first.close()
    second.load(*saved)
    second.compile(call_of(spec, 1, 7e-3))
    second.take(call_of(spec, 1, 5e-3))
    for ours, theirs in zip(second.save(), whole.save()):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@stand_in
def test_weights_that_are_loaded_into_a_compiled_model_reach_the_device() -> None:
    spec = spec_of()
    backend = begin(PoptorchBackend(spec), spec)
    start = backend.save()
    backend.take(call_of(spec))
    expected = backend.save()
    backend.load(*start)
    backend.take(call_of(spec))
    for ours, theirs in zip(backend.save(), expected):
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@stand_in
def test_the_learning_rate_of_each_call_reaches_the_device() -> None:
    spec = spec_of()
    backend = begin(PoptorchBackend(spec), spec)
    backend.take(call_of(spec))
    before, _ = backend.save()
    backend.take(call_of(spec, learning_rate=0.0))
    assert all(torch.equal(tensor, before[name]) for name, tensor in backend.save()[0].items())
