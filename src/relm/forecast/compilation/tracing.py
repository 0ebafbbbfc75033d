"""Traces the programs that a recipe runs on a TPU, with the trainer's code; nothing is executed.

`TracingDevice` is the XLA device with a slice's count of virtual devices, and placeholders for parameters and optimizer state.
When the trainer launches a program, this device keeps it. A process has one count of devices:

    PJRT_DEVICE=CPU CPU_NUM_DEVICES=8 python -m relm.forecast.compilation.tracing REQUESTS.json FOLDER
"""

import dataclasses
import gc
import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from relm.artifact import canonical_json, write_json
from relm.devices.contract import Model
from relm.devices.xla import XlaDevice, shared_parameters
from relm.errors import RelmError
from relm.forecast.compilation.compiling import HELD_OUT, INDEX, REFUSED
from relm.forecast.expected_tokenizer import tokenizer_of
from relm.forecast.prepared_run import generated_reader
from relm.models.layers import set_traced
from relm.recipes.declaration import load_extensions
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe
from relm.recipes.run import Run
from relm.training.architecture import configuration, unset_model
from relm.training.interruption import stop_with_parent
from relm.training.learner import build_learner
from relm.training.machine.compile_record import Program
from relm.training.micro_batches import shorten_phase
from relm.training.phase_run import PhaseRun
from relm.training.updates import take_step
from relm.training.validation import HeldOut

# Micro-batches of a step to trace: the first, one between, and the last; all others equal the one between.
DIFFERENT = 3


class Traced(NamedTuple):
    """A program as the compiler would receive it."""

    hlo: bytes
    """The program of all devices together, an `HloModuleProto`."""
    donated: tuple[int, ...]
    arguments: int

    def to_program(self, devices: int, parameters: tuple[int, ...]) -> Program:
        """Return the facts that are known before it is compiled."""
        digest = hashlib.sha256(self.hlo)
        digest.update(json.dumps([devices, self.donated]).encode())
        return Program(
            sha256=digest.hexdigest(),
            devices=devices,
            arguments=self.arguments,
            donated=self.donated,
            parameters=parameters,
        )


class TracingDevice(XlaDevice):
    """An XLA device that runs nothing: `launch` keeps the traced program."""

    def __init__(self, run: Run, one: bool = False) -> None:
        super().__init__(run, one=one)
        self.traced: list[Traced] = []
        self._model: nn.Module | None = None
        self._data = WeakIdKeyDictionary()
        """Maps a placeholder tensor to the id of its data on the devices."""

    def place(self, model: Model) -> Model:
        """Return the model, `traced`, with placeholders for its arrays; shared parameters stay shared."""
        shared = shared_parameters(model)
        for module in model.modules():
            for name, buffer in list(module.named_buffers(recurse=False)):
                setattr(module, name, self._placeholder(buffer))
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(self._placeholder(parameter), parameter.requires_grad))
        for (owner, name), *others in shared:
            for module, other in others:
                setattr(module, other, getattr(owner, name))
        set_traced(model, self.traces)
        self._model = model
        return model

    def materialise(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by placeholders for data that exists before the first step."""
        self._replace_by_placeholders(tensors)

    def launch(self) -> None:
        """Keep all pending operations as one program, and replace its results by placeholders."""
        if pending := self._pending():
            tensors = {_xla()._xla_get_tensor_id(tensor): tensor for tensor in pending}  # x and x.detach() have one id
            self.traced.append(self._program([tensors[key] for key in sorted(tensors)]))
            self._replace_by_placeholders(pending)

    def close(self) -> None:
        """Restore the precision of float32 products, without waiting for the device."""
        self.restore_precision()

    def _pending(self) -> list[Tensor]:
        """Return all tensors that are referenced and not computed."""
        gc.collect()  # unreferenced tensors must not become results
        gradients = [] if self._model is None else [p.grad for p in self._model.parameters() if p.grad is not None]
        held = list({id(tensor): tensor for tensor in [*gradients, *filter(_is_on_xla, gc.get_objects())]}.values())
        missing = _xla()._check_tensor_need_materialization(held)
        return [tensor for tensor, needed in zip(held, missing, strict=True) if needed]

    def _program(self, results: list[Tensor]) -> Traced:
        xla = _xla()
        arguments, _ = xla._get_tensors_xla_device_data_node(results)
        renewed = {self._data[tensor] for tensor in results if tensor in self._data}
        donated = tuple(position for position, argument in enumerate(arguments) if argument in renewed)
        return Traced(xla._get_xla_tensors_hlo_proto(results), donated, len(arguments))

    def _replace_by_placeholders(self, tensors: Iterable[Tensor]) -> None:
        with torch.no_grad():
            for tensor in tensors:
                tensor.data = self._placeholder(tensor)
                self._data[tensor] = _xla()._xla_get_tensor_id(tensor)

    def _placeholder(self, like: Tensor) -> Tensor:
        from torch_xla.core.xla_builder import create_placeholder_tensor

        placeholder: Tensor = create_placeholder_tensor(tuple(like.shape), like.dtype)
        return placeholder


def _xla() -> Any:
    import torch_xla

    return torch_xla._XLAC


def _is_on_xla(found: object) -> bool:
    return type(found) in (Tensor, nn.Parameter) and found.device.type == "xla"  # type: ignore[attr-defined]


def trace_phase(recipe: Recipe, phase: str, tokenizer: Any, device: TracingDevice) -> dict[str, tuple[Traced, Program]]:
    """Return the programs of a phase's steps and of its validation, by name."""
    config = configuration(recipe, tokenizer)
    recipe, settings = shorten_phase(recipe, phase, DIFFERENT, 1)
    reader = generated_reader(recipe, phase, settings, tokenizer, device)
    run = PhaseRun(recipe, phase, settings, Path(), {}, reader, device)
    with torch.device("meta"):
        start = unset_model(config)
    learner = build_learner(run, config, start)
    parameters = tuple(sorted({p.numel() for p in learner.model.parameters() if p.requires_grad}))
    device.materialise(learner.updated_tensors())
    learner.model.train()
    take_step(run, learner, device.forward(learner.model.terms), reader.step_input(1))
    steps = len(device.traced)
    HeldOut(reader, 1, 1).prepare(learner.model, device.forward(learner.model.terms))
    programs = dict(zip([*step_names(steps), "", HELD_OUT], device.traced, strict=True))
    del programs[""]  # the same as the last, without accumulated sums
    return {name: (traced, traced.to_program(device.devices, parameters)) for name, traced in programs.items()}


def step_names(programs: int) -> list[str]:
    """Return the names of the programs of one step."""
    return [["step"], ["first", "last"], ["first", "between", "last"]][programs - 1]


def for_slice(recipe: Recipe, topology: str, micro_batch_size: int | None = None) -> Recipe:
    """Return the recipe for a slice of TPUs, with the chosen micro-batch, if any."""
    run = {"device": "tpu", "topology": topology, "processes": 1, "threads": None, "compile": None}
    if micro_batch_size is not None:
        run["micro_batch_size"] = micro_batch_size
    return recipe.model_copy(update={"run": recipe.run.model_copy(update=run)})


def trace(requests: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write the programs of phases of recipes into a folder: NUMBER.hlo each, and `programs.json`, which describes them."""
    index: list[dict[str, Any]] = []
    files: dict[str, str] = {}
    known: dict[str, dict[str, tuple[Traced, Program]]] = {}
    for request in requests:
        plan = Project().plan(request["run"])
        tokenizer, vocabulary = tokenizer_of(plan)
        recipe = for_slice(plan.recipe, request["topology"], request.get("micro_batch_size"))
        same = canonical_json([program_inputs(recipe, request["phase"]), dataclasses.asdict(tokenizer)])
        if same not in known:
            with closing(TracingDevice(recipe.run)) as device:
                known[same] = trace_phase(recipe, request["phase"], tokenizer, device)
        for name, (traced, program) in known[same].items():
            file = files.setdefault(program.sha256, f"{len(files)}.hlo")
            (folder / file).write_bytes(traced.hlo)
            facts = {"vocabulary": vocabulary, "program": program.model_dump(mode="json")}
            index.append({**request, "name": name, "file": file, **facts})
    write_json(folder / INDEX, index)


def program_inputs(recipe: Recipe, phase: str) -> dict[str, Any]:
    """Return all keys of a recipe on which its programs may depend."""
    run = recipe.run.model_copy(update={"machine": None, "topology": None})
    without = {"title": "", "deviations": [], "expect": [], "run": run, "on": {}}
    return {"phase": phase, **recipe.model_copy(update=without).model_dump(mode="json")}


def main(requests: Path, folder: Path) -> int:
    """Trace the requests of a JSON file; if a recipe cannot be traced, write the error to a file and return 1."""
    stop_with_parent()
    try:
        load_extensions()
        trace(json.loads(requests.read_text(encoding="utf-8")), folder)
    except RelmError as error:
        (folder / REFUSED).write_text(str(error), encoding="utf-8")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
