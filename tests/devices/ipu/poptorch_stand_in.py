"""A stand-in for the module `poptorch`, which runs a model on the CPU in the order in which PopTorch would on IPUs.

It has what `relm.devices.ipu` uses, with the same names, and refuses what PopTorch refuses. The device's weights and the values
of its optimizer are its own: what is not copied to it or from it, as PopTorch would, stays old.
"""

from __future__ import annotations

import enum
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

__version__ = "3.3.0+stand_in"


class ReductionType(enum.Enum):
    Sum = 0
    Mean = 1


class OutputMode(enum.Enum):
    Final = 0
    Sum = 3


class AutoStage(enum.Enum):
    SameAsIpu = 0
    AutoIncrement = 1


class MatMulSerializationMode(enum.Enum):
    OutputChannels = "output_channels"


class PipelinedExecution:
    def __init__(self, stages: AutoStage) -> None:
        assert isinstance(stages, AutoStage)
        self.stages = stages


class TensorLocationSettings:
    def __init__(self) -> None:
        self.calls: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in {
            "useOnChipStorage",
            "useReplicatedTensorSharding",
            "minElementsForOffChip",
            "minElementsForReplicatedTensorSharding",
        }:
            raise AttributeError(name)
        return lambda value: self.calls.__setitem__(name, value)


class _Calls:
    """Records the calls of its methods, which are those named."""

    def __init__(self, prefix: str, names: tuple[str, ...], options: Options) -> None:
        self._prefix, self._names, self._options = prefix, names, options

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise AttributeError(name)
        return lambda *values: self._options.record(f"{self._prefix}{name}", values)


class Options:
    """Options, each recorded under the name of its method."""

    _METHODS = (
        "replicationFactor",
        "autoRoundNumIPUs",
        "deviceIterations",
        "outputMode",
        "randomSeed",
        "setExecutionStrategy",
        "useOfflineIpuTarget",
        "setAvailableMemoryProportion",
        "enableExecutableCaching",
    )

    def __init__(self) -> None:
        self.calls: dict[str, Any] = {}
        self.frozen = False
        self.Training = _Calls(
            "Training.",
            ("gradientAccumulation", "accumulationAndReplicationReductionType", "setAutomaticLossScaling"),
            self,
        )
        self.TensorLocations = _Calls("TensorLocations.", ("setOptimizerLocation",), self)
        self.Precision = _Calls("Precision.", ("enableStochasticRounding", "setPartialsType"), self)
        self._Popart = _Calls("_Popart.", ("set", "setPatterns"), self)

    def __getattr__(self, name: str) -> Any:
        if name not in self._METHODS:
            raise AttributeError(name)
        return lambda *values: self.record(name, values)

    def record(self, name: str, values: tuple[Any, ...]) -> None:
        if self.frozen:
            raise AttributeError("Can't modify frozen Options")
        if name == "_Popart.set":
            self.calls.setdefault(name, {})[values[0]] = values[1]
        else:
            self.calls[name] = values[0] if values else None


class Block:
    """A block of a model; the blocks of the last pass are in `entered`."""

    entered: ClassVar[list[tuple[str, int]]] = []
    current: ClassVar[list[int]] = []

    def __init__(self, user_id: str, ipu_id: int) -> None:
        self._block = (user_id, ipu_id)

    def __enter__(self) -> None:
        assert not Block.current, "a block within a block"
        Block.current.append(self._block[1])
        Block.entered.append(self._block)

    def __exit__(self, *error: object) -> None:
        Block.current.pop()


checkpoints: list[int] = []
"""The IPUs of the tensors that are kept for the backward pass."""
products: list[tuple[int, int]] = []
"""IPU and count of slices of each serialised product."""


def recomputationCheckpoint(tensor: Tensor) -> Tensor:
    checkpoints.append(Block.current[0])
    return tensor


def serializedMatMul(left: Tensor, right: Tensor, mode: MatMulSerializationMode, factor: int) -> Tensor:
    assert mode is MatMulSerializationMode.OutputChannels
    assert right.shape[1] % factor == 0, "factor must divide the dimension to serialize on"
    products.append((Block.current[0], factor))
    return torch.cat([left @ part for part in right.chunk(factor, dim=1)], dim=-1)


loops: list[int] = []
"""The count of rounds of each loop."""


def for_loop(count: int, body: Any, inputs: list[Tensor]) -> list[Tensor]:
    assert isinstance(inputs, list), "poptorch.for_loop expects input tensors (inputs) to be a list of tensors."
    assert not torch.is_grad_enabled(), "poptorch.for_loop() is only supported in inference."
    loops.append(count)
    state = [tensor.clone() for tensor in inputs]
    for _ in range(count):
        outputs = list(body(*state))
        assert [(value.shape, value.dtype) for value in outputs] == [(value.shape, value.dtype) for value in state]
        state = outputs
    return state


def identity_loss(loss: Tensor, reduction: str) -> Tensor:
    assert reduction == "none"
    return loss


class _Optimizer(torch.optim.Optimizer):
    """An optimizer that takes no step on the host."""

    def __init__(self, params: Any, lr: float, weight_decay: float, eps: float, **given: Any) -> None:
        given.setdefault("betas", (0.9, 0.999))
        own = {key: given[key] for key in ("betas",)}
        assert "max_grad_norm" not in given or not isinstance(self, LAMB), "LAMB has no such argument"
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "eps": eps, **own})
        self.loss_scaling = given.get("loss_scaling", 1.0)
        self.given = {"lr": lr, "weight_decay": weight_decay, "eps": eps, **given}
        self.ipu: dict[str, Tensor] | None = None
        self.dirty = False

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {**super().state_dict(), "ipu_state": self.ipu, "ipu_param": None if self.ipu is None else {}}

    def set_state_dict(self, state: dict[str, Any]) -> None:
        self.ipu, self.dirty = state["ipu_state"], True


class AdamW(_Optimizer):
    pass


class Adam(_Optimizer):
    pass


class LAMB(_Optimizer):
    pass


class optim:
    AdamW, Adam, LAMB = AdamW, Adam, LAMB


class Executor:
    """A compiled model."""

    def __init__(self, model: nn.Module, options: Options, optimizer: _Optimizer) -> None:
        options.frozen = True
        assert isinstance(options.calls.get("setExecutionStrategy"), PipelinedExecution)
        self._model, self.options, self._optimizer = model, options, optimizer
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._device: dict[str, Tensor] = {}
        self._moments: dict[str, Tensor] = {}
        self._compiled = False
        self.setOptimizer(optimizer)

    def compile(self, *inputs: Tensor) -> None:
        self._shapes = [tensor.shape for tensor in inputs]
        self._compiled = True
        if "useOfflineIpuTarget" in self.options.calls:
            self._pass([tensor[: self._micro(tensor)] for tensor in inputs])
            return
        self._upload()
        kept = self._optimizer.given["first_order_momentum_accum_type"]
        for name, tensor in self._device.items():
            self._moments["Accl1___" + name] = torch.zeros(tensor.shape, dtype=kept)
            self._moments["Accl2___" + name] = torch.zeros(tensor.shape)
            if not isinstance(self._optimizer, LAMB):
                self._moments["Step___" + name] = torch.zeros(1)
        self._optimizer.ipu = {name: tensor.clone() for name, tensor in self._moments.items()}

    def _upload(self) -> None:
        self._device = {name: parameter.detach().float().clone() for name, parameter in self._model.named_parameters()}

    def _micro(self, tensor: Tensor) -> int:
        calls = self.options.calls
        count = calls["deviceIterations"] * calls["Training.gradientAccumulation"] * calls["replicationFactor"]
        assert len(tensor) % count == 0, "Invalid batch dimension"
        return len(tensor) // count

    def setOptimizer(self, optimizer: _Optimizer) -> None:
        self._groups = [
            {**group, "params": [self._names[id(parameter)] for parameter in group["params"]]}
            for group in optimizer.param_groups
        ]
        self._loss_scaling = optimizer.loss_scaling
        if self._compiled and optimizer.dirty:
            assert optimizer.ipu is not None
            for name, tensor in optimizer.ipu.items():
                assert tensor.dtype == self._moments[name].dtype, name
                self._moments[name] = tensor.clone()
            optimizer.dirty = False

    @property
    def model(self) -> nn.Module:
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                parameter.copy_(self._device[name])
        return self._model

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._model.load_state_dict(state)
        self._upload()

    def destroy(self) -> None:
        self._compiled = False

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        assert self._compiled
        assert "useOfflineIpuTarget" not in self.options.calls, "Trying to run a model on an offline device"
        assert [tensor.shape for tensor in inputs] == self._shapes
        calls = self.options.calls
        steps, replicas = calls["Training.gradientAccumulation"], calls["replicationFactor"]
        micro_batches = [tensor.split(self._micro(tensor)) for tensor in inputs]
        totals: list[Tensor] = []
        for update in range(calls["deviceIterations"]):
            gradients = {name: torch.zeros_like(tensor) for name, tensor in self._device.items()}
            for number in range(steps * replicas):
                index = update * steps * replicas + number
                outputs, own = self._pass([parts[index] for parts in micro_batches])
                for name, gradient in own.items():
                    gradients[name] += gradient / (steps * replicas)
                each = totals if totals else [torch.zeros(replicas, dtype=torch.float64) for _ in outputs]
                for total, output in zip(each, outputs):
                    total[number % replicas] += output
                totals = each
            self._update(gradients)
        self._optimizer.ipu = {name: tensor.clone() for name, tensor in self._moments.items()}
        return tuple(total.float() if len(total) > 1 else total[0].float() for total in totals)

    def _pass(self, tensors: list[Tensor]) -> tuple[list[float], dict[str, Tensor]]:
        """Return the outputs of a micro-batch, and the gradients of its loss."""
        Block.entered.clear()
        weights = self._device or {name: parameter.float() for name, parameter in self._model.named_parameters()}
        weights = {name: tensor.detach().requires_grad_() for name, tensor in weights.items()}
        outputs = torch.func.functional_call(self._model, weights, tuple(tensors))
        assert all(output.dim() == 0 for output in outputs)
        found = torch.autograd.grad(outputs[0] * self._loss_scaling, list(weights.values()))
        gradients = {name: gradient / self._loss_scaling for name, gradient in zip(weights, found)}
        return [output.item() for output in outputs], gradients

    def _update(self, gradients: dict[str, Tensor]) -> None:
        if (largest := self._optimizer.given.get("max_grad_norm")) is not None:
            norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm().item()
            gradients = {name: gradient * (largest / max(largest, norm)) for name, gradient in gradients.items()}
        for group in self._groups:
            for name in group["params"]:
                step = self._step(name, gradients[name], group)
                weight = self._device[name]
                weight -= group["lr"] * self._ratio(weight, step, group) * step
                self._device[name] = weight.to(next(self._model.parameters()).dtype).float()

    def _step(self, name: str, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        first, second = self._moments["Accl1___" + name], self._moments["Accl2___" + name]
        beta1, beta2 = group["betas"]
        decoupled = not isinstance(self._optimizer, Adam)
        if not decoupled:
            gradient = gradient + group["weight_decay"] * self._device[name]
        first.copy_(beta1 * first.float() + (1 - beta1) * gradient)
        second.copy_(beta2 * second + (1 - beta2) * gradient**2)
        correction1 = correction2 = 1.0
        if "Step___" + name in self._moments:
            count = self._moments["Step___" + name]
            count += 1
            correction1, correction2 = 1 - beta1 ** count.item(), 1 - beta2 ** count.item()
        step = first.float() / correction1 / ((second / correction2).sqrt() + group["eps"])
        return step + group["weight_decay"] * self._device[name] if decoupled else step

    def _ratio(self, weight: Tensor, step: Tensor, group: dict[str, Any]) -> float:
        if not isinstance(self._optimizer, LAMB):
            return 1.0
        size, length = weight.norm().clamp(max=group.get("max_weight_norm", 65500.0)).item(), step.norm().item()
        return size / length if size and length else 1.0


def trainingModel(model: nn.Module, options: Options, optimizer: _Optimizer) -> Executor:
    return Executor(model, options, optimizer)


class ShardedExecution:
    def __init__(self, stages: AutoStage) -> None:
        assert isinstance(stages, AutoStage)
        self.stages = stages


class InferenceExecutor:
    """A model that is compiled for the shape of its first inputs."""

    def __init__(self, model: nn.Module, options: Options) -> None:
        options.frozen = True
        assert not model.training
        self.model, self.options, self.alive = model, options, True
        self._shape: Any = None
        inference_executors.append(self)

    def __call__(self, *inputs: Tensor) -> Any:
        assert self.alive
        assert self._shape in (None, [tensor.shape for tensor in inputs]), "inputs of another shape than compiled for"
        self._shape = [tensor.shape for tensor in inputs]
        Block.entered.clear()
        with torch.no_grad():
            return self.model(*inputs)

    def destroy(self) -> None:
        self.alive = False


inference_executors: list[InferenceExecutor] = []
"""All that were made."""


def inferenceModel(model: nn.Module, options: Options) -> InferenceExecutor:
    return InferenceExecutor(model, options)
