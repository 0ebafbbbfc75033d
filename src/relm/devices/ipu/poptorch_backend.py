"""The backend that computes updates on IPUs by PopTorch. Only it and `poptorch_inference` import poptorch. For Python 3.8.

PopTorch reads the sequences of a call in the order update, micro-batch, replica: PopART's `StepIOSplitter`
(willow/src/stepiosplitter.cpp) hands the host's arrays to the replicas in turn, one micro-batch each. In `UpdateCall` the order
is update, replica, micro-batch. With `OutputMode.Sum` each replica returns the sum of an output over all micro-batches of
all updates of a call.

The gradient of an update is the mean over its micro-batches and replicas (`ReductionType.Mean`), so each micro-batch's loss is
divided by the divisor of `UpdateCall` times one micro-batch's share of the update. For GPT-2 that is the count of labels in the
micro-batch, as in Graphcore's script.

Optimizer state: PopART names the moments of a parameter Accl1___NAME and Accl2___NAME, and counts its updates in Step___NAME
if the bias is corrected. Neither moment contains the loss scale. A first moment that is float16 on the device is rounded to it
when a checkpoint of another device is loaded. The random numbers of dropout and of stochastic rounding start from the seed
in each process.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from typing import Any

import numpy as np
import poptorch
import torch
from torch import Tensor

from relm.devices.ipu import options
from relm.devices.ipu.backend import Arrays, BackendError, Tensors, UpdateCall, UpdateSums, WorkerSpec
from relm.devices.ipu.partition import build_model, ipus_of_parameters
from relm.devices.ipu.placed_model import DIVISOR, PlacedModel
from relm.models.contract import LanguageModel

# Name of a moment in the shared checkpoint format -> prefix of PopART's name of it.
MOMENTS = {"exp_avg": "Accl1___", "exp_avg_sq": "Accl2___"}
STEP = "Step___"
UPDATES = "updates"
# `PlacedModel` holds the model under this name.
_PREFIX = "model."


class PoptorchBackend:
    """Trains one model on IPUs, in this instance's replicas."""

    def __init__(self, spec: WorkerSpec) -> None:
        """Check the versions and build the model, with unset weights."""
        require_torch(torch.__version__)
        self._spec = spec
        self._distributed = Instances(spec.pipeline["instances"])
        self._replicas: int = spec.pipeline["replicas"] // spec.pipeline["instances"]
        self._model = self._build_model()
        self._options = self._build_options()
        self._placed: Any = None
        self._optimizer: Any = None
        self._running: Any = None
        self._state: Tensors = {}
        self._updates = 0.0

    def _build_model(self) -> LanguageModel:
        try:
            model = build_model(self._spec.architecture, self._spec.configuration)
            ipus_of_parameters(model.segments(), self._spec.pipeline["placement"])
        except ValueError as error:
            raise BackendError(str(error)) from None
        return model.train()

    def _build_options(self) -> Any:
        spec, distributed = self._spec, self._distributed
        self._folder = tempfile.TemporaryDirectory(prefix="relm-ipu-")
        if spec.executable_cache:
            os.makedirs(spec.executable_cache, exist_ok=True)
        # With another folder name in each process the cache might see another program.
        self._initial_weights = os.path.join(spec.executable_cache or self._folder.name, "weights.bin")
        around = options.Surroundings(
            seed=spec.seed,
            executable_cache=spec.executable_cache,
            offline=spec.offline,
            popdist=distributed.popdist is not None,
            initial_weights=self._initial_weights,
        )
        table = options.options_table(spec.architecture, spec.pipeline, around)
        return options.apply_options(poptorch, distributed.options(len(spec.pipeline["layers_per_ipu"])), table)

    def load(self, weights: Tensors, state: Tensors) -> None:
        """Set the weights and the optimizer's state, on the device if the model is compiled."""
        self._model.load_state_dict(weights)
        self._state = state
        self._updates = float(state[UPDATES])
        if self._running is not None:
            self._running.load_state_dict({_PREFIX + name: tensor for name, tensor in weights.items()})
            self._write_state()

    def compile(self, call: UpdateCall) -> float:
        """Compile the program, or load it from the cache of executables; return the seconds that it took."""
        began = time.monotonic()
        arrays = self._arrays(call.batch)
        self._open(list(arrays), call)
        self._running.compile(*arrays.values())
        if not self._spec.offline:
            self._write_state()
        return time.monotonic() - began

    def _open(self, inputs: list[str], call: UpdateCall) -> None:
        """Make the module, the optimizer and the executor for batches of these arrays."""
        pipeline = self._spec.pipeline
        if "document_ids" in inputs:
            raise BackendError(
                "attention within documents needs a triangular mask of computed values, which PopTorch lacks; leave documents "
                "out of the recipe's examples, or train on another device"
            )
        terms = [name[len(DIVISOR) :] for name in inputs if name.startswith(DIVISOR)]
        if pipeline["precision"] == "float16":
            self._model.half()
        self._placed = PlacedModel(poptorch, self._model, pipeline, inputs, terms).train()
        parameters = dict(self._model.named_parameters())
        shapes = [(name, tuple(parameter.shape)) for name, parameter in parameters.items()]
        try:
            table = options.optimizer_table(self._spec.optimizer, pipeline, shapes, call.loss_scale)
        except ValueError as error:
            raise BackendError(str(error)) from None
        self._optimizer = options.build_optimizer(poptorch, table, parameters)
        # Torch's schedulers expect that the optimizer has taken a step, which PopTorch's never does on the host.
        self._optimizer._step_count = 1
        self._is_decayed = [group["weight_decay"] != 0 for group in table.groups]
        self._set_scalars(call)
        self._running = poptorch.trainingModel(self._placed, self._options, optimizer=self._optimizer)

    def _set_scalars(self, call: UpdateCall) -> None:
        scalars = options.scalars_of_update(self._spec.optimizer, call.learning_rate, int(self._updates) + 1)
        for group, is_decayed in zip(self._optimizer.param_groups, self._is_decayed):
            group["lr"] = call.learning_rate if scalars is None else scalars.learning_rate
            if scalars is not None:
                group["eps"] = scalars.epsilon
                group["weight_decay"] = scalars.weight_decay if is_decayed else 0.0
        if self._spec.pipeline["loss_scaling"]["name"] == "by_step":
            self._optimizer.loss_scaling = call.loss_scale

    def take(self, call: UpdateCall) -> UpdateSums:
        """Take the updates of one call; its learning rate and loss scale are set before it."""
        if self._running is None:
            self.compile(call)
        self._set_scalars(call)
        self._running.setOptimizer(self._optimizer)  # sends the new scalars to the device without a new program
        outputs = self._running(*self._arrays(call.batch).values())
        self._updates += self._spec.pipeline["device_iterations"]
        return self._sums([output.double().sum().item() for output in outputs])

    def _sums(self, outputs: list[float]) -> UpdateSums:
        """Return the results of a call from its outputs, summed over replicas, micro-batches and updates."""
        updates = self._spec.pipeline["device_iterations"]
        # The divisors of `_arrays` make each loss greater by the count of micro-batches, which the first division undoes.
        loss, each = outputs[0] / self._micro_batches() / updates, [value / updates for value in outputs[1:]]
        terms = {name: (each[2 * at], each[2 * at + 1]) for at, name in enumerate(self._placed.term_names)}
        return UpdateSums(np.array([loss], dtype=np.float64), terms)

    def _micro_batches(self) -> int:
        """Return the micro-batches of one update over all replicas of all instances."""
        return int(self._spec.pipeline["gradient_accumulation"] * self._spec.pipeline["replicas"])

    def _arrays(self, batch: Arrays) -> dict[str, Tensor]:
        """Return a call's arrays in PopTorch's order of sequences, with the divisors of a mean over micro-batches."""
        pipeline = self._spec.pipeline
        shape = (pipeline["device_iterations"], self._replicas, pipeline["gradient_accumulation"], pipeline["micro_batch_size"])
        share = self._micro_batches()
        tensors = {name: as_tensor(reorder_for_poptorch(array, shape)) for name, array in sorted(batch.items())}
        return {name: tensor / share if name.startswith(DIVISOR) else tensor for name, tensor in tensors.items()}

    def save(self) -> tuple[Tensors, Tensors]:
        """Return weights and state from the device, in float32."""
        if self._running is None:
            weights = {name: tensor.float().clone() for name, tensor in self._model.state_dict().items()}
            return weights, dict(self._state)
        # Reading the parameters copies them from the device.
        named = self._running.model.state_dict()
        weights = {name[len(_PREFIX) :]: tensor.detach().float().clone() for name, tensor in named.items()}
        held = self._optimizer.state_dict()["ipu_state"]
        state = {UPDATES: torch.tensor(self._updates, dtype=torch.float32)}
        for name, weight in weights.items():
            for moment, prefix in MOMENTS.items():
                state[f"{name}.{moment}"] = held[prefix + _PREFIX + name].float().reshape(weight.shape)
        return weights, state

    def _write_state(self) -> None:
        """Write the optimizer's state to the device."""
        held = self._optimizer.state_dict()
        state = {name: self._written(name, tensor) for name, tensor in held["ipu_state"].items()}
        self._require_moments(state)
        self._optimizer.set_state_dict({**held, "ipu_state": state})
        # With the optimizer that it already has, this only writes.
        self._running.setOptimizer(self._optimizer)

    def _written(self, name: str, held: Tensor) -> Tensor:
        """Return the new value of one of PopART's tensors: from the state for a moment or a count, else unchanged."""
        if name.startswith(STEP):
            return torch.full_like(held, self._updates)
        for moment, prefix in MOMENTS.items():
            if name.startswith(prefix + _PREFIX):
                value = self._state[f"{name[len(prefix + _PREFIX) :]}.{moment}"]
                if value.numel() != held.numel():
                    raise BackendError(
                        f"PopART keeps {name} as {tuple(held.shape)}, expected {tuple(value.shape)}, so its optimizer state "
                        "cannot be saved; set replicated_tensor_sharding: false"
                    )
                return value.to(held.dtype).reshape(held.shape)
        return held

    def _require_moments(self, held: Tensors) -> None:
        names = [prefix + _PREFIX + name for name, _ in self._model.named_parameters() for prefix in MOMENTS.values()]
        absent = [name for name in names if name not in held]
        if absent:
            raise BackendError(
                f"PopART has no optimizer state {', '.join(absent[:3])}, found {', '.join(sorted(held)[:3])}, so checkpoints "
                "cannot be written; use PopTorch 3.3 or 3.4"
            )

    @staticmethod
    def describe() -> dict[str, Any]:
        """Return the hardware's name, and the versions that decide how sums are rounded."""
        return {"name": "Graphcore IPU", "poptorch": poptorch.__version__, "torch": str(torch.__version__)}

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sums of values over the instances that PopRun started."""
        return self._distributed.sum(values)

    def close(self) -> None:
        """Release the IPUs."""
        if self._running is not None:
            self._running.destroy()
        with contextlib.suppress(FileNotFoundError):  # of another instance too
            os.remove(self._initial_weights)
        self._folder.cleanup()


class Instances:
    """The host processes that share a run: PopRun starts them, and popdist and horovod connect them."""

    def __init__(self, expected: int) -> None:
        """Connect to the other instances, if the recipe has any."""
        self.popdist: Any = None
        if expected == 1:
            return
        import horovod.torch
        import popdist
        import popdist.poptorch

        found = popdist.getNumInstances() if popdist.isPopdistEnvSet() else 1
        if found != expected:
            raise BackendError(
                f"pipeline.instances is {expected}, and this process is one of {found}; start it by poprun "
                f"--num-instances {expected}"
            )
        popdist.init()
        horovod.torch.init()
        self.popdist, self._horovod = popdist, horovod.torch

    def options(self, ipus_per_replica: int) -> Any:
        """Return PopTorch's default options for this instance."""
        if self.popdist is None:
            return poptorch.Options()
        return self.popdist.poptorch.Options(ipus_per_replica=ipus_per_replica)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return the sums of values over the instances."""
        if self.popdist is None:
            return values
        summed = self._horovod.allreduce(torch.from_numpy(np.ascontiguousarray(values)), average=False)
        return np.asarray(summed.numpy())


def reorder_for_poptorch(array: np.ndarray, shape: tuple[int, int, int, int]) -> np.ndarray:
    """Return a call's sequences in the order update, micro-batch, replica.

    `shape` has the counts of updates, replicas, micro-batches of one replica, and sequences of one micro-batch: the order of
    `array` along its first axis.
    """
    split = array.reshape((*shape, *array.shape[1:]))
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(array.shape)


def as_tensor(array: np.ndarray) -> Tensor:
    """Return an array as a tensor, integers as int64, which PopTorch sends to the device as int32."""
    return torch.from_numpy(array.astype(np.int64) if array.dtype.kind in "iu" else array)


def require_torch(version: str) -> None:
    """Raise BackendError for a version of torch that PopTorch does not support."""
    if not version.startswith("2.0."):
        raise BackendError(
            f"PopTorch 3.3 and 3.4 are for torch 2.0.1, found {version}, with which AdamW would silently be compiled as Adam; "
            "use the Python of Graphcore's image"
        )
