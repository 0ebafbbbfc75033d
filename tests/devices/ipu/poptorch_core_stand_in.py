"""A stand-in for `poptorch.poptorch_core`, the compiled half of PopTorch 3.4, under its real Python front-end. For Python 3.8.

While the front-end compiles, tensors on "ipu:0" have only shapes and types, and each operation on them is recorded. An
executable replays the records on the CPU in float32, for each update, micro-batch and replica in turn, and has its own weights
and optimizer, whose values change only where the front-end copies them. The body of a loop is recorded once, and is
replayed as often as the loop counts. It checks of the plan what PopTorch's compiler checks: a table of blocks, at least as many
micro-batches as pipeline stages, and that loops are for inference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_LIBRARY = torch.library.Library("poptorch", "DEF")
_WITHOUT_OUTPUT = (
    "begin_ipu_block(int stage_id, int phase_id, int ipu_id)",
    "end_ipu_block()",
    "optimizer_group(int group, Tensor[] inputs)",
    "push_name_scope(str name)",
    "pop_name_scope()",
    "set_attribute(str attribute, str key, str value)",
    "clear_attribute(str attribute, str key)",
    "start_for_loop(Tensor[] inputs)",
)
_END_FOR_LOOP = "end_for_loop(Tensor[] outputs, Tensor[] inputs, int trip_count)"
_OF_FIRST = (
    "set_matmul_serialization(Tensor matmul, str mode, int factor, bool keep_precision)",
    "recomputation_checkpoint(Tensor self)",
    "identity_loss(Tensor x, int reduction)",
)

for _schema in (*_WITHOUT_OUTPUT, *_OF_FIRST):
    _name = _schema.partition("(")[0]
    _LIBRARY.define(_schema + (" -> Tensor" if _schema in _OF_FIRST else " -> ()"))
    _run = (lambda first, *others: first.clone()) if _schema in _OF_FIRST else (lambda *given: None)
    _LIBRARY.impl(_name, _run, "CompositeExplicitAutograd")

_LIBRARY.define(_END_FOR_LOOP + " -> Tensor[]")
_LIBRARY.impl("end_for_loop", lambda outputs, inputs, count: [value.clone() for value in outputs], "CompositeExplicitAutograd")

IPU = torch.device("ipu:0")
_zeros = torch.zeros  # the front-end replaces torch's own while it compiles


class Error(RuntimeError):
    """An error of PopTorch."""


class RecoverableError(Error):
    """An error after which the device can be reset."""


class UnrecoverableError(Error):
    """An error after which it cannot."""


class TracingMode:
    """The way to record a graph."""

    PopART = 0

    def __init__(self, mode: int) -> None:
        assert mode == TracingMode.PopART


class CompilerOptions:
    """Options of the recording."""

    source_location_excludes: list[str]


class IpuTensor(Tensor):
    """A tensor on an IPU: its shape and type, and the number of the value in the graph. For torch itself it is on "meta"."""

    number: int
    shadow: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda tensor: IPU)  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: Any, shadow: Tensor, number: int) -> Any:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, shadow.shape, strides=shadow.stride(), dtype=shadow.dtype, device="meta", requires_grad=False
        )
        tensor.shadow, tensor.number = shadow, number
        return tensor

    @classmethod
    def __torch_dispatch__(cls: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise Error(f"{function} on a tensor of an IPU outside of a graph")


class Graph(TorchDispatchMode):
    """The record of a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[Any, Any, Any, list[int]]] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.parameters: dict[str, int] = {}
        self.types: dict[str, Any] = {}
        self.shapes: dict[str, Any] = {}
        self.groups: dict[int, list[int]] = {}
        self.blocks: list[tuple[int, int]] = []
        self.checkpoints: list[int] = []
        self.serialised: list[tuple[int, int]] = []
        self.losses: list[int] = []
        self.loops: list[Loop] = []
        self._outside: list[list[tuple[Any, Any, Any, list[int]]]] = []
        self.moving_parameters = False
        self.count = 0

    def wrap(self, shadow: Tensor) -> IpuTensor:
        self.count += 1
        return IpuTensor(shadow, self.count)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = str(function)
        if name.startswith("poptorch.end_for_loop"):
            return self._end_loop(*args)
        if name.startswith("poptorch.") and not self._passes(name, args):
            return None
        if function is torch.ops.aten._to_copy.default:
            moved = self._move(args[0], kwargs)
            if moved is not None:
                return moved
        on_ipu = kwargs.get("device") is not None and torch.device(kwargs["device"]).type in ("ipu", "meta")
        held: list[Any] = []
        tree_map(lambda value: held.append(value) if isinstance(value, IpuTensor) else None, (args, kwargs))
        if not held and not on_ipu:
            return function(*args, **kwargs)
        if on_ipu:
            kwargs["device"] = "meta"
        outputs = function(*tree_map(_shadow, args), **tree_map(_shadow, kwargs))
        if name.startswith("poptorch.identity_loss"):
            self.losses.append(self.count + 1)
        shadows = {id(tensor.shadow): tensor for tensor in held}

        def wrap(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return shadows[id(value)] if id(value) in shadows else self.wrap(value)

        wrapped = tree_map(wrap, outputs)
        numbers: list[int] = []
        tree_map(lambda value: numbers.append(value.number) if isinstance(value, IpuTensor) else None, wrapped)
        keep = lambda value: _Value(value.number) if isinstance(value, IpuTensor) else value  # noqa: E731
        if not self.moving_parameters:
            self.records.append((function, tree_map(keep, args), tree_map(keep, kwargs), numbers))
        return wrapped

    def _passes(self, name: str, args: Any) -> bool:
        """Note one of PopTorch's own operations; return True if it has an output."""
        operation = name.split(".")[1]
        if operation == "begin_ipu_block":
            self.blocks.append((args[0], args[2]))
        elif operation == "start_for_loop":
            self._outside.append(self.records)
            self.records = []
        elif operation == "optimizer_group":
            self.groups[args[0]] = [tensor.number for tensor in args[1]]
        elif operation == "recomputation_checkpoint":
            self.checkpoints.append(self.blocks[-1][1])
        elif operation == "set_matmul_serialization":
            self.serialised.append((self.blocks[-1][1], args[2]))
        return operation in {schema.partition("(")[0] for schema in _OF_FIRST}

    def _end_loop(self, outputs: list[IpuTensor], inputs: list[IpuTensor], count: int) -> list[IpuTensor]:
        """Keep the records since the loop began as its body, and return what it has after its last round."""
        for given, made in zip(inputs, outputs):
            if (given.shape, given.dtype) != (made.shape, made.dtype):
                raise Error(f"a loop's input of {given.dtype} {given.shape} becomes {made.dtype} {made.shape}")
        results = [self.wrap(tensor.shadow) for tensor in outputs]
        numbers = [[tensor.number for tensor in tensors] for tensors in (inputs, outputs, results)]
        self.loops.append(Loop(self.records, *numbers, count))
        self.records = self._outside.pop()
        self.records.append((self.loops[-1], (), {}, []))
        return results

    def _move(self, tensor: Tensor, kwargs: dict[str, Any]) -> Any:
        """Return a copy to or from the IPU; None for only a change of type."""
        device = kwargs.get("device")
        kind = None if device is None else torch.device(device).type
        if kind == "ipu" and not isinstance(tensor, IpuTensor):
            moved = self.wrap(torch.empty_like(tensor, device="meta"))
            if not self.moving_parameters:
                self.inputs.append(moved.number)
            return moved
        if kind == "cpu" and isinstance(tensor, IpuTensor):
            self.outputs.append(tensor.number)
            return _zeros(tensor.shape, dtype=tensor.dtype)
        return None

    def stages(self) -> int:
        ipus = [ipu for _, ipu in self.blocks]
        return 1 + sum(ipus[at] != ipus[at - 1] for at in range(1, len(ipus)))


class Loop:
    """The body of a loop, the numbers of its inputs and outputs in it, and those of its results outside."""

    def __init__(self, records: Any, inputs: list[int], outputs: list[int], results: list[int], count: int) -> None:
        self.records, self.inputs, self.outputs, self.results, self.count = records, inputs, outputs, results, count


class _Value:
    """The place of a value of the graph in a record."""

    def __init__(self, number: int) -> None:
        self.number = number


def _shadow(value: Any) -> Any:
    if isinstance(value, IpuTensor):
        return value.shadow
    return value.to("meta") if isinstance(value, Tensor) and value.dim() else value


_graphs: list[Graph] = []
executables: list[Executable] = []
"""All that were compiled, the newest last."""


def createGraph(mode: TracingMode, inputs: Any, options: CompilerOptions) -> None:
    _graphs.append(Graph())
    _graphs[-1].__enter__()


def startParametersMove() -> None:
    _graphs[-1].moving_parameters = True


def endParametersMove() -> None:
    _graphs[-1].moving_parameters = False


def mapParamsToNames(names: tuple[str, ...], tensors: tuple[Any, ...]) -> None:
    for name, tensor in zip(names, tensors):
        _graphs[-1].parameters[name] = tensor.number
        _graphs[-1].types[name], _graphs[-1].shapes[name] = tensor.dtype, tensor.shape


def startDispatch() -> None:
    # The front-end records the forward pass; torch has no autograd for IPUs of its own.
    torch.set_grad_enabled(False)


def endDispatch(failed: bool) -> None:
    torch.set_grad_enabled(True)
    _graphs[-1].__exit__(None, None, None)


def getIpuTensorId(tensor: Any) -> int:
    return int(tensor.number)


def _nothing(*given: Any, **named: Any) -> None:
    """Do nothing: the stand-in needs no such step."""


startOutputsMove = endOutputsMove = finalizeGraph = destroyDispatcher = _nothing
setCustomCodeletsPath = setLogLevel = setPopartLogLevel = poptorchAtExit = _nothing
importPoptorchMetadataFromFile = setRngState = _nothing


def ipuHardwareVersion(count: int = 1) -> int:
    return 2


def compileWithManualTracing(
    options: dict[str, Any], attributes: Any, training: bool, optimizer: Any, anchors: Any
) -> Executable:
    made = Executable(_graphs.pop(), options, optimizer) if training else InferenceExecutable(_graphs.pop(), options)
    executables.append(made)
    return made


class Executable:
    """A compiled graph with its weights and its optimizer."""

    def __init__(self, graph: Graph, options: dict[str, Any], optimizer: dict[str, Any]) -> None:
        self.graph, self.options, self.optimizer = graph, options, optimizer
        stages, accumulation = 2 * graph.stages() - 1, options["gradient_accumulation"]
        if graph.stages() > 1 and accumulation < stages:
            raise Error(f"gradient accumulation {accumulation}, expected at least the {stages} pipeline stages")
        if graph.loops:
            raise Error("poptorch.for_loop() is only supported in inference.")
        assert len(graph.losses) == 1
        self.attached = options["connection_type"] != 2
        self.weights: dict[str, Tensor] = {}
        self.state: dict[str, Tensor] = {}
        kept = torch.float16 if optimizer["firstOrderMomentumAccumType"] else torch.float32
        for name, shape in graph.shapes.items():
            self.state["Accl1___" + name] = _zeros(shape, dtype=kept)
            self.state["Accl2___" + name] = _zeros(shape)
            if not is_lamb_without_bias(optimizer):
                self.state["Step___" + name] = _zeros(1)

    def run(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        options = self.options
        replicas, steps = options["replication_factor"], options["gradient_accumulation"]
        updates = options["device_iterations"]
        parts = [tensor.split(len(tensor) // (replicas * steps * updates)) for tensor in inputs]
        totals = [_zeros(replicas, dtype=torch.float64) for _ in self.graph.outputs]
        for update in range(updates):
            gradients = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
            for number in range(steps * replicas):
                index = update * steps * replicas + number
                outputs, own = self.replay([part[index] for part in parts])
                for total, output in zip(totals, outputs):
                    total[number % replicas] += output.double()
                for name, gradient in own.items():
                    gradients[name] += gradient / (steps * replicas)
            self.step(gradients)
        return [total.float() if replicas > 1 else total.float().reshape(()) for total in totals]

    def replay(self, inputs: list[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Return the outputs of one micro-batch and the gradients of its loss, all in float32."""
        leaves = {name: weight.detach().clone().requires_grad_() for name, weight in self.weights.items()}
        values = self.forward(leaves, inputs)
        scale = self.optimizer["defaults"]["lossScaling"][0]
        found = torch.autograd.grad(values[self.graph.losses[0]] * scale, list(leaves.values()))
        return [values[number].detach() for number in self.graph.outputs], {
            name: gradient / scale for name, gradient in zip(leaves, found)
        }

    def forward(self, weights: dict[str, Tensor], inputs: list[Tensor]) -> dict[int, Any]:
        """Return the values of the recorded operations, by number."""
        graph = self.graph
        values: dict[int, Any] = {graph.parameters[name]: weight for name, weight in weights.items()}
        values.update(zip(graph.inputs, inputs))
        _replay(graph.records, values)
        return values

    def step(self, gradients: dict[str, Tensor]) -> None:
        names = {number: name for name, number in self.graph.parameters.items()}
        for index, numbers in self.graph.groups.items():
            group = self.optimizer["groups"][index]
            for number in numbers:
                self.update(names[number], gradients[names[number]], {key: value[0] for key, value in group.items()})

    def update(self, name: str, gradient: Tensor, group: dict[str, float]) -> None:
        first, second, weight = self.state["Accl1___" + name], self.state["Accl2___" + name], self.weights[name]
        beta1, beta2 = group["beta1"], group["beta2"]
        first.copy_(beta1 * first.float() + (1 - beta1) * gradient)
        second.copy_(beta2 * second + (1 - beta2) * gradient**2)
        correction1 = correction2 = 1.0
        if "Step___" + name in self.state:
            self.state["Step___" + name] += 1
            count = self.state["Step___" + name].item()
            correction1, correction2 = 1 - beta1**count, 1 - beta2**count
        step = first.float() / correction1 / ((second / correction2).sqrt() + group["eps"]) + group["weightDecay"] * weight
        ratio = 1.0
        if "maxWeightNorm" in group:
            size, length = weight.norm().clamp(max=group["maxWeightNorm"]).item(), step.norm().item()
            ratio = size / length if size and length else 1.0
        weight -= group["learningRate"] * ratio * step
        self.weights[name] = weight.to(self.graph.types[name]).float()


class InferenceExecutable(Executable):
    """A compiled graph without a loss and an optimizer, which runs once for each call."""

    def __init__(self, graph: Graph, options: dict[str, Any]) -> None:
        self.graph, self.options = graph, options
        assert not graph.losses
        assert (options["replication_factor"], options["device_iterations"]) == (1, 1)
        self.attached = options["connection_type"] != 2
        self.weights = {}

    def run(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        with torch.no_grad():
            values = self.forward(self.weights, list(inputs))
        return [values[number] for number in self.graph.outputs]


def _replay(records: Any, values: dict[int, Any]) -> None:
    """Add the values of recorded operations to those that there are."""
    for function, args, kwargs, numbers in records:
        if isinstance(function, Loop):
            _replay_loop(function, values)
            continue
        take = lambda value: values[value.number] if isinstance(value, _Value) else _on_cpu(value)  # noqa: E731
        outputs = function(*tree_map(take, args), **tree_map(take, kwargs))
        flat: list[Tensor] = []
        tree_map(lambda value, flat=flat: flat.append(value) if isinstance(value, Tensor) else None, outputs)
        values.update(zip(numbers, flat))


def _replay_loop(loop: Loop, values: dict[int, Any]) -> None:
    for _ in range(loop.count):
        _replay(loop.records, values)
        values.update(zip(loop.inputs, [values[number] for number in loop.outputs]))
    values.update(zip(loop.results, [values[number] for number in loop.inputs]))


def is_lamb_without_bias(optimizer: dict[str, Any]) -> bool:
    return int(optimizer["optimizer_type"]) == 8


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, str) and value == "meta":
        return "cpu"
    if value is torch.float16:
        return torch.float32
    return value


def loadEngineAndConnectStreams(executable: Executable) -> None:
    assert executable.attached


def isAttachedToDevice(executable: Executable) -> bool:
    return executable.attached


def copyWeightsToDevice_impl(executable: Executable, names: tuple[str, ...], tensors: tuple[Tensor, ...]) -> None:
    executable.weights = {name: tensor.detach().float().clone() for name, tensor in zip(names, tensors)}


def copyWeightsToHost_impl(executable: Executable, names: tuple[str, ...], tensors: tuple[Tensor, ...]) -> None:
    with torch.no_grad():
        for name, tensor in zip(names, tensors):
            tensor.data.copy_(executable.weights[name])


def updateOptimizers(executable: Executable, optimizer: dict[str, Any]) -> None:
    executable.optimizer = optimizer


def readOptimizerState(executable: Executable) -> dict[str, dict[str, Tensor]]:
    rate = executable.optimizer["defaults"]["learningRate"][0]
    state = {name: tensor.clone() for name, tensor in executable.state.items()}
    return {"ipu_state": state, "ipu_param": {"learningRate": torch.tensor(rate)}}


def writeOptimizerState(executable: Executable, state: dict[str, Any]) -> None:
    for name, tensor in executable.state.items():
        assert state["ipu_state"][name].dtype == tensor.dtype, name
        executable.state[name] = state["ipu_state"][name].clone()
    # As the compiled half does: values of the optimizer in the state replace those on the device.
    rate = state["ipu_param"].get("learningRate")
    if rate is not None:
        for group in [executable.optimizer["defaults"], *executable.optimizer["groups"]]:
            group["learningRate"] = (float(rate), group["learningRate"][1])


def execute(executable: Executable, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    return executable.run(inputs)


def getRandomSeed(executable: Executable) -> int:
    return int(executable.options.get("random_seed", 0))


def getRngState(executable: Executable) -> list[int]:
    return []
