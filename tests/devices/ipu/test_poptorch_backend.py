"""The backend for PopTorch, over a stand-in for PopTorch that runs the model on the CPU."""

import dataclasses
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import poptorch_stand_in as stand_in
import pytest
import torch
from pipeline_cases import ADAMW, BERT, GPT2, LAMB, Config, call, no_state, random_weights, spec

from relm.devices.ipu.backend import BackendError, UpdateCall, WorkerSpec
from relm.devices.ipu.device import IpuDevice
from relm.devices.ipu.simulator import SimulatorBackend
from relm.devices.ipu.worker_process import INTERPRETER, WorkerProcess
from relm.recipes.devices import DEVICES
from relm.recipes.machine.pipeline import Pipeline

PIPELINE = {
    "layers_per_ipu": [0, 3],
    "position_embedding": 1,
    "replicas": 2,
    "gradient_accumulation": 7,
    "device_iterations": 2,
    "available_memory_proportion": [0.2, 0.1],
    "vocabulary_serialisation": 4,
    "loss_chunk": 4,
    "first_moment_precision": "float32",
    "accumulation_precision": "float32",
    "loss_scaling": {"scale": 64},
}


@pytest.fixture
def poptorch(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module `relm.devices.ipu.poptorch_backend`, which has imported the stand-in."""
    monkeypatch.setattr(torch, "__version__", "2.0.1")
    monkeypatch.setitem(sys.modules, "poptorch", stand_in)
    monkeypatch.delitem(sys.modules, "relm.devices.ipu.poptorch_backend", raising=False)
    stand_in.checkpoints.clear()
    stand_in.products.clear()
    yield importlib.import_module("relm.devices.ipu.poptorch_backend")
    sys.modules.pop("relm.devices.ipu.poptorch_backend", None)


def spec_of(config: Config = GPT2, optimizer: dict[str, Any] = ADAMW, **changes: Any) -> WorkerSpec:
    half = changes.pop("precision", "float32") == "float16"
    kept = {key: changes.pop(key) for key in ("executable_cache", "offline") if key in changes}
    return spec(config, optimizer, half_weights=half, **{**PIPELINE, **changes})._replace(backend="poptorch", **kept)


def gpt2_call(seed: int = 0, **changes: Any) -> UpdateCall:
    """Two updates of two replicas of seven sequences."""
    made = call(GPT2, spec_of(), updates=2, loss_scale=64.0, learning_rate=1e-2, seed=seed)
    return made._replace(batch={**made.batch, "input_ids": made.batch["input_ids"].astype(np.int32)})._replace(**changes)


def bert_call(seed: int = 0) -> UpdateCall:
    """Two updates of two replicas of seven micro-batches of two pairs."""
    built = spec_of(BERT, layers_per_ipu=[0, 3], micro_batch_size=2, loss_chunk=None)
    return call(BERT, built, updates=2, loss_scale=64.0, learning_rate=1e-2, seed=seed)


def begin(backend: Any, config: Config = GPT2) -> Any:
    """Return the backend with weights, and zeros as the optimizer's state."""
    backend.load(random_weights(config), no_state(config))
    return backend


def require_close(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype == torch.float32, name
        torch.testing.assert_close(tensor, theirs[name], rtol=2e-4, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("optimizer", [ADAMW, LAMB], ids=["adamw", "lamb"])
@pytest.mark.parametrize("config", [GPT2, BERT], ids=["gpt2", "bert"])
def test_updates_equal_those_of_the_simulator(poptorch: ModuleType, config: Any, optimizer: dict[str, Any]) -> None:
    changes = {} if config is GPT2 else {"layers_per_ipu": [0, 3], "micro_batch_size": 2, "loss_chunk": None}
    make = gpt2_call if config is GPT2 else bert_call
    ours = begin(poptorch.PoptorchBackend(spec_of(config, optimizer, **changes)), config)
    theirs = begin(SimulatorBackend(spec_of(config, optimizer, **changes)), config)
    for seed in (0, 1):
        ours_sums, sums = ours.take(make(seed)), theirs.take(make(seed))
        assert ours_sums.losses == pytest.approx([sums.losses.mean()], rel=1e-5), "the mean of the updates' losses"
    for (weights, state), (their_weights, their_state) in [(ours.save(), theirs.save())]:
        require_close(weights, their_weights)
        require_close(state, their_state)
    ours.close()


# As fine-tuning has it: one update a call, moments without bias correction, and a norm that clips every gradient here.
TUNING = {**ADAMW, "epsilon": 1e-3, "bias_correction": False, "gradient_clipping": 0.5}
HEADS = {
    "spans": ("answer", {"answer_positions": (2,)}, {}),
    "classes": ("class", {"class_labels": ()}, {"labels": 3}),
    "score": ("score", {"scores": ()}, {"labels": 1}),
}


def task_call(head: str, seed: int) -> UpdateCall:
    """One update of two replicas of seven sequences of a task."""
    term, labels, _ = HEADS[head]
    batch = {name: array[:14] for name, array in bert_call(seed).batch.items()}
    wanted = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    draw = np.random.default_rng(seed)
    for name, shape in labels.items():
        drawn = draw.integers(3, size=(14, *shape))
        wanted[name] = drawn.astype(np.float32) if name == "scores" else drawn
    wanted[f"divisor.{term}"] = np.full(14, 28 if head == "spans" else 14, np.float32)
    return UpdateCall(wanted, np.zeros((1, 2, 7), np.int64), 1e-2, 64.0)


@pytest.mark.parametrize("head", HEADS)
def test_updates_of_a_task_equal_those_of_the_simulator(poptorch: ModuleType, head: str) -> None:
    changes = {"layers_per_ipu": [1, 2], "head": 1, "loss_chunk": None, "vocabulary_serialisation": 1, "device_iterations": 1}
    config = dataclasses.replace(BERT, next_sentence=False, head="spans" if head == "spans" else "classes", **HEADS[head][2])
    built = spec_of(config, TUNING, **changes)
    ours, theirs = (begin(backend(built), config) for backend in (poptorch.PoptorchBackend, SimulatorBackend))
    for seed in (0, 1):
        found, expected = ours.take(task_call(head, seed)), theirs.take(task_call(head, seed))
        assert found.losses == pytest.approx(expected.losses, rel=1e-5)
        assert found.terms[HEADS[head][0]] == pytest.approx(expected.terms[HEADS[head][0]], rel=1e-5)
    require_close(ours.save()[0], theirs.save()[0])
    saved = ours.save()
    ours.close()
    resumed = poptorch.PoptorchBackend(built)
    resumed.load(*saved)  # the scalars that undo the bias correction follow from the count of updates
    for backend in (resumed, theirs):
        backend.take(task_call(head, 2))
    require_close(resumed.save()[0], theirs.save()[0])
    resumed.close()


def test_terms_are_the_means_of_the_updates_of_a_call(poptorch: ModuleType) -> None:
    sums = begin(poptorch.PoptorchBackend(spec_of(optimizer=ADAMW))).take(gpt2_call(learning_rate=0.0))
    per_update = []
    for update in (0, 1):
        part = {name: array.reshape(2, 14, *array.shape[1:])[update] for name, array in gpt2_call().batch.items()}
        both = {name: np.concatenate([array, array]) for name, array in part.items()}
        backend = begin(SimulatorBackend(spec_of()))
        per_update.append(backend.take(gpt2_call(batch=both, learning_rate=0.0)).terms["next_token"])
    expected = np.mean(per_update, axis=0)
    assert sums.terms["next_token"] == pytest.approx(tuple(expected), rel=1e-5)


def test_each_segment_runs_on_its_ipu_and_each_layer_ends_in_a_checkpoint(poptorch: ModuleType) -> None:
    begin(poptorch.PoptorchBackend(spec_of())).take(gpt2_call())
    assert stand_in.Block.entered == [
        ("token_embedding", 0),
        ("position_embedding", 1),
        ("layers.0", 1),
        ("layers.1", 1),
        ("layers.2", 1),
        ("head", 0),
    ]
    assert stand_in.checkpoints[:3] == [1, 1, 1]
    assert set(stand_in.products) == {(0, 4)}, "the vocabulary's product in four slices, on the head's IPU"


def test_no_tensor_is_kept_apart_without_recomputation(poptorch: ModuleType) -> None:
    begin(poptorch.PoptorchBackend(spec_of(recompute_layers=False, vocabulary_serialisation=1))).take(gpt2_call())
    assert not stand_in.checkpoints
    assert not stand_in.products


@pytest.mark.parametrize("optimizer", [ADAMW, LAMB], ids=["adamw", "lamb"])
def test_a_run_that_was_saved_goes_on_with_the_same_bytes(poptorch: ModuleType, optimizer: dict[str, Any]) -> None:
    whole = begin(poptorch.PoptorchBackend(spec_of(optimizer=optimizer)))
    for seed in (0, 1):
        whole.take(gpt2_call(seed))
    first = begin(poptorch.PoptorchBackend(spec_of(optimizer=optimizer)))
    first.take(gpt2_call(0))
    saved = first.save()
    first.close()
    second = poptorch.PoptorchBackend(spec_of(optimizer=optimizer))
    second.load(*saved)
    second.compile(gpt2_call(1))
    second.take(gpt2_call(1))
    for ours, theirs in zip(second.save(), whole.save(), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_weights_that_are_loaded_into_a_compiled_model_reach_the_device(poptorch: ModuleType) -> None:
    backend = begin(poptorch.PoptorchBackend(spec_of()))
    start = backend.save()
    backend.take(gpt2_call(0))
    expected = backend.save()
    backend.load(*start)
    backend.take(gpt2_call(0))
    assert all(torch.equal(tensor, expected[0][name]) for name, tensor in backend.save()[0].items())
    assert backend.save()[1]["updates"] == 2


def test_a_half_precision_run_saves_float32_and_goes_on_with_the_same_bytes(poptorch: ModuleType) -> None:
    half = {"precision": "float16", "accumulation_precision": "float16", "first_moment_precision": "float16"}
    backend = poptorch.PoptorchBackend(spec_of(**half))
    begin(backend).take(gpt2_call(0))
    weights, state = backend.save()
    assert {tensor.dtype for tensor in [*weights.values(), *state.values()]} == {torch.float32}
    for name, tensor in weights.items():
        assert torch.equal(tensor, tensor.half().float()), name
    backend.take(gpt2_call(1))
    other = poptorch.PoptorchBackend(spec_of(**half))
    other.load(weights, state)
    other.take(gpt2_call(1))
    assert all(torch.equal(tensor, other.save()[0][name]) for name, tensor in backend.save()[0].items())


def test_the_learning_rate_of_each_call_reaches_the_device(poptorch: ModuleType) -> None:
    backend = begin(poptorch.PoptorchBackend(spec_of()))
    backend.take(gpt2_call(learning_rate=1e-2))
    before, _ = backend.save()
    backend.take(gpt2_call(learning_rate=0.0))
    after, _ = backend.save()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


@pytest.mark.parametrize(("kind", "expected"), [("static", 64.0), ("by_step", 128.0), ("automatic", 64.0)])
def test_a_loss_scale_by_step_reaches_the_device_and_another_does_not_change(
    poptorch: ModuleType, kind: str, expected: float
) -> None:
    scaling: dict[str, Any] = {"name": kind, "scale": 64, **({"by_step": {3: 128.0}} if kind == "by_step" else {})}
    backend = begin(poptorch.PoptorchBackend(spec_of(loss_scaling=scaling)))
    backend.take(gpt2_call(loss_scale=64.0))
    backend.take(gpt2_call(loss_scale=128.0))
    assert backend._running._loss_scaling == expected
    assert backend._running.options.calls.get("Training.setAutomaticLossScaling", False) == (kind == "automatic")


def test_the_options_of_the_table_are_set_before_the_model_freezes_them(poptorch: ModuleType, tmp_path: Path) -> None:
    backend = begin(poptorch.PoptorchBackend(spec_of(executable_cache=str(tmp_path / "cache"))))
    backend.compile(gpt2_call())
    calls = dict(backend._running.options.calls)
    assert calls.pop("setExecutionStrategy").stages is stand_in.AutoStage.AutoIncrement
    assert calls.pop("TensorLocations.setOptimizerLocation").calls == {
        "useOnChipStorage": False,
        "useReplicatedTensorSharding": False,
    }
    initial_weights = Path(calls.pop("_Popart.set")["saveInitializersToFile"])
    assert initial_weights == tmp_path / "cache" / "weights.bin", "the same in each process"
    assert calls == {
        "replicationFactor": 2,
        "autoRoundNumIPUs": True,
        "deviceIterations": 2,
        "Training.gradientAccumulation": 7,
        "Training.accumulationAndReplicationReductionType": stand_in.ReductionType.Mean,
        "outputMode": stand_in.OutputMode.Sum,
        "randomSeed": 1,
        "setAvailableMemoryProportion": {"IPU0": 0.2, "IPU1": 0.1},
        "enableExecutableCaching": str(tmp_path / "cache"),
        "Precision.enableStochasticRounding": True,
        "Precision.setPartialsType": torch.float16,
        "_Popart.setPatterns": {"TiedGather": True, "TiedGatherAccumulate": True, "UpdateInplacePrioritiesForIpu": True},
    }
    assert backend._optimizer._step_count == 1
    initial_weights.write_bytes(b"as the compiler does")
    backend.close()
    assert not initial_weights.exists()


def test_an_offline_target_is_compiled_and_never_run(poptorch: ModuleType) -> None:
    backend = begin(poptorch.PoptorchBackend(spec_of(offline=True)))
    assert backend.compile(gpt2_call()) > 0
    assert "useOfflineIpuTarget" in backend._running.options.calls
    with pytest.raises(AssertionError, match="offline"):
        backend.take(gpt2_call())


def test_sequences_are_ordered_by_update_micro_batch_and_replica(poptorch: ModuleType) -> None:
    # Two updates of two replicas of three micro-batches of one sequence, named by update, replica and micro-batch.
    names = np.array([100, 101, 102, 110, 111, 112, 200, 201, 202, 210, 211, 212])
    ordered = poptorch.reorder_for_poptorch(names, (2, 2, 3, 1))
    assert ordered.tolist() == [100, 110, 101, 111, 102, 112, 200, 210, 201, 211, 202, 212]


def test_documents_are_refused(poptorch: ModuleType) -> None:
    given = gpt2_call()
    batch = {**given.batch, "document_ids": np.zeros((28, 6), np.int64)}
    with pytest.raises(BackendError, match="leave documents out"):
        begin(poptorch.PoptorchBackend(spec_of())).compile(given._replace(batch=batch))


def test_a_placement_of_another_model_is_refused(poptorch: ModuleType) -> None:
    with pytest.raises(BackendError, match="must sum to the model's 3 layers"):
        poptorch.PoptorchBackend(spec_of(layers_per_ipu=[0, 2]))


def test_another_torch_than_that_of_poptorch_is_refused(poptorch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.3.0")
    with pytest.raises(BackendError, match=r"for torch 2\.0\.1, found 2\.3\.0"):
        poptorch.PoptorchBackend(spec_of())


def test_moments_of_another_shape_or_name_are_refused_before_training(
    poptorch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = stand_in.Executor.compile

    def halved(executor: Any, *inputs: torch.Tensor) -> None:
        compiled(executor, *inputs)
        first = next(iter(executor._optimizer.ipu))
        executor._optimizer.ipu[first] = executor._optimizer.ipu[first][:1]

    monkeypatch.setattr(stand_in.Executor, "compile", halved)
    with pytest.raises(BackendError, match="set replicated_tensor_sharding: false"):
        begin(poptorch.PoptorchBackend(spec_of())).compile(gpt2_call())

    def renamed(executor: Any, *inputs: torch.Tensor) -> None:
        compiled(executor, *inputs)
        executor._optimizer.ipu = {"Other" + name: tensor for name, tensor in executor._optimizer.ipu.items()}

    monkeypatch.setattr(stand_in.Executor, "compile", renamed)
    with pytest.raises(BackendError, match=r"use PopTorch 3\.3 or 3\.4"):
        begin(poptorch.PoptorchBackend(spec_of())).compile(gpt2_call())


@pytest.fixture
def popdist(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A stand-in for popdist and horovod of the first of two instances, of which the other has the same values."""
    found = SimpleNamespace(instances=2, begun=[], ipus_per_replica=0)

    class Options(stand_in.Options):
        def __init__(self, ipus_per_replica: int) -> None:
            super().__init__()
            self.calls["replicationFactor"] = 1  # of this instance, as PopRun says
            found.ipus_per_replica = ipus_per_replica

        def record(self, name: str, values: tuple[Any, ...]) -> None:
            assert name != "replicationFactor", "popdist refuses it"
            super().record(name, values)

    popdist, of_poptorch, horovod = ModuleType("popdist"), ModuleType("popdist.poptorch"), ModuleType("horovod")
    of_torch = ModuleType("horovod.torch")
    popdist.__dict__.update(
        isPopdistEnvSet=lambda: found.instances > 0,
        getNumInstances=lambda: found.instances,
        init=lambda: found.begun.append("popdist"),
        poptorch=of_poptorch,
    )
    of_poptorch.__dict__.update(Options=Options)
    horovod.__dict__.update(torch=of_torch)
    of_torch.__dict__.update(
        init=lambda: found.begun.append("horovod"),
        allreduce=lambda tensor, average: tensor * (1 if average else found.instances),
    )
    for module in (popdist, of_poptorch, horovod, of_torch):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return found


def test_instances_of_poprun_have_popdists_options_and_sum_over_all(poptorch: ModuleType, popdist: SimpleNamespace) -> None:
    backend = begin(poptorch.PoptorchBackend(spec_of(instances=2)))
    assert (popdist.begun, popdist.ipus_per_replica) == (["popdist", "horovod"], 2)
    of_one = UpdateCall(
        {name: array[:14] for name, array in gpt2_call().batch.items()}, np.zeros((2, 1, 7), np.int64), 1e-2, 64.0
    )
    backend.take(of_one)
    assert backend.sum(np.array([1.0, 2.5])).tolist() == [2.0, 5.0]
    alone = poptorch.PoptorchBackend(spec_of())
    assert alone.sum(np.array([1, 2])).tolist() == [1, 2]


@pytest.mark.parametrize("found", [0, 4])
def test_other_instances_than_the_recipes_are_refused(poptorch: ModuleType, popdist: SimpleNamespace, found: int) -> None:
    popdist.instances = found
    with pytest.raises(BackendError, match="start it by poprun --num-instances 2"):
        poptorch.PoptorchBackend(spec_of(instances=2))


def test_the_worker_trains_through_poptorch(poptorch: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "poptorch.py").write_text(
        "import sys, torch, poptorch_stand_in\ntorch.__version__ = '2.0.1'\nsys.modules['poptorch'] = poptorch_stand_in\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(stand_in.__file__).parent)]))
    monkeypatch.setenv(INTERPRETER, sys.executable)
    built, given = spec_of(), gpt2_call()
    expected = begin(SimulatorBackend(built))
    losses = expected.take(given).losses
    worker = WorkerProcess("poptorch")
    try:
        assert worker.facts["name"] == "Graphcore IPU"
        worker.request("open", built._asdict())
        weights, state = begin(poptorch.PoptorchBackend(built)).save()
        tensors = {**{f"weight.{name}": w for name, w in weights.items()}, **{f"state.{name}": s for name, s in state.items()}}
        worker.request("load", arrays={name: tensor.numpy() for name, tensor in tensors.items()})
        fields = {"learning_rate": given.learning_rate, "loss_scale": given.loss_scale}
        arrays = {"seeds": given.seeds, **{f"batch.{name}": array for name, array in given.batch.items()}}
        assert worker.request("compile", fields, arrays).fields["seconds"] > 0
        assert worker.request("take", fields, arrays).arrays["losses"] == pytest.approx([losses.mean()], rel=1e-5)
        saved = {name: torch.from_numpy(array) for name, array in worker.request("save").arrays.items()}
    finally:
        worker.close()
    for prefix, part in zip(("weight.", "state."), expected.save(), strict=True):
        require_close({name[len(prefix) :]: tensor for name, tensor in saved.items() if name.startswith(prefix)}, part)


def test_the_facts_on_which_dropout_depends_are_in_the_description_of_a_run(poptorch: ModuleType) -> None:
    device = SimpleNamespace(
        _pipeline=Pipeline(layers_per_ipu=[1], gradient_accumulation=1),
        _name="ipu",
        _simulates=False,
        updates_per_call=1,
        worker=SimpleNamespace(facts=poptorch.PoptorchBackend.describe()),
    )
    assert set(DEVICES["ipu"].draws_depend_on) <= set(IpuDevice.describe(device))


def test_a_backend_names_the_versions_that_decide_its_results(poptorch: ModuleType) -> None:
    assert poptorch.PoptorchBackend.describe() == {
        "name": "Graphcore IPU",
        "poptorch": "3.3.0+stand_in",
        "torch": "2.0.1",
    }
