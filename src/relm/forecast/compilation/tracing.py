"""From a recipe to the programs that its training makes a TPU run, by the trainer's own code; nothing is executed.

`TracingDevice` is the XLA device on as many virtual devices as a slice has, with arrays that are nowhere in place of parameters
and optimizer state. Where the trainer hands over a program, this one keeps it. A process has one number of devices:

    PJRT_DEVICE=CPU CPU_NUM_DEVICES=8 python -m relm.forecast.compilation.tracing WISHES.json FOLDER
"""

import dataclasses
import gc
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
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
from relm.forecast.compilation.compile_record import Program
from relm.forecast.compilation.compiling import HELD_OUT, INDEX, REFUSED
from relm.forecast.expected_tokenizer import tokenizer_of
from relm.forecast.rehearsal import generated_reader
from relm.models.layers import set_traced
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe, Run
from relm.training.architecture import configuration, unset_model
from relm.training.interruption import stop_with_parent
from relm.training.learner import learner_of
from relm.training.loop import take_step
from relm.training.micro_batches import shortened
from relm.training.phase_run import PhaseRun
from relm.training.validation import HeldOut

# Micro-batches of a step that are traced: the first, one between, and the last are all there is.
DIFFERENT = 3


class Traced(NamedTuple):
    """A program as it would have gone to the compiler."""

    hlo: bytes
    """Of all devices together, an `HloModuleProto`."""
    donated: tuple[int, ...]
    arguments: int

    def described(self, devices: int, parameters: tuple[int, ...]) -> Program:
        """What is known of it before it is compiled."""
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
    """Devices that nothing runs on: `launch` keeps what was traced."""

    def __init__(self, run: Run, one: bool = False) -> None:
        super().__init__(run, one=one)
        self.traced: list[Traced] = []
        self._model: nn.Module | None = None
        self._data = WeakIdKeyDictionary()
        """Tensors that stand for data on the devices, and the numbers of that data."""

    def place(self, model: Model) -> Model:
        """Return the model, `traced`, with its arrays nowhere; parameters that were one before are one again."""
        shared = shared_parameters(model)
        for module in model.modules():
            for name, buffer in list(module.named_buffers(recurse=False)):
                setattr(module, name, self._nowhere(buffer))
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(self._nowhere(parameter), parameter.requires_grad))
        for (owner, name), *others in shared:
            for module, other in others:
                setattr(module, other, getattr(owner, name))
        set_traced(model, self.traces)
        self._model = model
        return model

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Take them for data that is there before the first step."""
        self._stand_for_data(tensors)

    def launch(self) -> None:
        """Keep as one program all that was traced and is still wanted, and take its results for data."""
        if pending := self._pending():
            number = {
                _xla()._xla_get_tensor_id(tensor): tensor for tensor in pending
            }  # two may be one, such as x and x.detach()
            self.traced.append(self._program([number[key] for key in sorted(number)]))
            self._stand_for_data(pending)

    def close(self) -> None:
        """Nothing runs."""

    def _pending(self) -> list[Tensor]:
        """All tensors that somebody holds and that are not computed."""
        gc.collect()  # what nobody holds any more
        gradients = [] if self._model is None else [p.grad for p in self._model.parameters() if p.grad is not None]
        held = list({id(tensor): tensor for tensor in [*gradients, *filter(_is_on_xla, gc.get_objects())]}.values())
        missing = _xla()._check_tensor_need_materialization(held)
        return [tensor for tensor, needed in zip(held, missing, strict=True) if needed]

    def _program(self, results: list[Tensor]) -> Traced:
        xla = _xla()
        numbers, _ = xla._get_tensors_xla_device_data_node(results)
        renewed = {self._data[tensor] for tensor in results if tensor in self._data}
        donated = tuple(place for place, number in enumerate(numbers) if number in renewed)
        return Traced(xla._get_xla_tensors_hlo_proto(results), donated, len(numbers))

    def _stand_for_data(self, tensors: Iterable[Tensor]) -> None:
        with torch.no_grad():
            for tensor in tensors:
                tensor.data = self._nowhere(tensor)
                self._data[tensor] = _xla()._xla_get_tensor_id(tensor)

    def _nowhere(self, like: Tensor) -> Tensor:
        from torch_xla.core.xla_builder import create_placeholder_tensor

        nowhere: Tensor = create_placeholder_tensor(tuple(like.shape), like.dtype)
        return nowhere


def _xla() -> Any:
    import torch_xla

    return torch_xla._XLAC


def _is_on_xla(found: object) -> bool:
    return type(found) in (Tensor, nn.Parameter) and found.device.type == "xla"  # type: ignore[attr-defined]


def traced_phase(recipe: Recipe, phase: str, tokenizer: Any, device: TracingDevice) -> dict[str, tuple[Traced, Program]]:
    """The programs of a phase's steps and of its look at held-out examples, by name.

    Raises:
        RelmError: the recipe fits no model, or its batch not the devices.
    """
    config = configuration(recipe, tokenizer)
    recipe, settings = shortened(recipe, phase, DIFFERENT, 1)
    reader = generated_reader(recipe, phase, settings, tokenizer, device)
    run = PhaseRun(recipe, phase, settings, Path(), {}, reader, device)
    with torch.device("meta"):
        start = unset_model(config)
    learner = learner_of(run, config, start)
    parameters = tuple(sorted({p.numel() for p in learner.model.parameters() if p.requires_grad}))
    device.hold(learner.renewed())
    learner.model.train()
    take_step(run, learner, device.forward(learner.model.terms), reader.step_input(1))
    steps = len(device.traced)
    HeldOut(reader, 1, 1).prepare(learner.model)
    programs = dict(zip([*step_names(steps), "", HELD_OUT], device.traced, strict=True))
    del programs[""]  # the same as the last, without sums that go on
    return {name: (traced, traced.described(device.devices, parameters)) for name, traced in programs.items()}


def traced_step(
    device: TracingDevice, model: nn.Module, optimizer: torch.optim.Optimizer, step: Callable[[], Tensor]
) -> Traced:
    """The program of a step of any model and optimizer of PyTorch's kind, as every step but the first makes it.

    Args:
        model: placed on the device.
        step: forward, backward, the optimizer's step, and the gradients set to none; gives the loss.
    """
    step()  # the first one makes the optimizer's state
    state = [found for each in optimizer.state.values() for found in each.values() if _is_on_xla(found)]
    device.hold([*model.parameters(), *state])
    loss = step()
    device.launch()
    del loss  # held until here, as somebody wants to know it
    return device.traced.pop()


def step_names(programs: int) -> list[str]:
    """What the programs of one step are called."""
    return [["step"], ["first", "last"], ["first", "between", "last"]][programs - 1]


def for_slice(recipe: Recipe, topology: str) -> Recipe:
    """The recipe with a slice of TPUs for its device, whatever it had."""
    run = {"device": "tpu", "topology": topology, "processes": 1, "threads": None, "compile": None}
    return recipe.model_copy(update={"run": recipe.run.model_copy(update=run)})


def trace(wishes: Sequence[dict[str, str]], folder: Path) -> None:
    """Write the programs of phases of recipes into a folder: NUMBER.hlo each, and `programs.json`, which says what they are.

    Args:
        wishes: recipe, phase and topology of each, all of as many devices as this process has.
    """
    index: list[dict[str, Any]] = []
    files: dict[str, str] = {}
    known: dict[str, dict[str, tuple[Traced, Program]]] = {}
    for wish in wishes:
        plan = Project().plan(wish["recipe"])
        tokenizer, words = tokenizer_of(plan)
        recipe = for_slice(plan.recipe, wish["topology"])
        same = canonical_json([meaning(recipe, wish["phase"]), dataclasses.asdict(tokenizer)])
        if same not in known:
            with closing(TracingDevice(recipe.run)) as device:
                known[same] = traced_phase(recipe, wish["phase"], tokenizer, device)
        for name, (traced, program) in known[same].items():
            file = files.setdefault(program.sha256, f"{len(files)}.hlo")
            (folder / file).write_bytes(traced.hlo)
            index.append({**wish, "name": name, "file": file, "vocabulary": words, "program": program.model_dump(mode="json")})
    write_json(folder / INDEX, index)


def meaning(recipe: Recipe, phase: str) -> dict[str, Any]:
    """All of a recipe that its programs may follow from, and more."""
    without = {"title": "", "deviations": [], "expect": [], "run": recipe.run.model_copy(update={"topology": None})}
    return {"phase": phase, **recipe.model_copy(update=without).model_dump(mode="json")}


def main(wishes: Path, folder: Path) -> int:
    """Trace what a file of JSON asks for; 1 and a sentence in `refused.txt` where a recipe cannot be traced."""
    stop_with_parent()
    try:
        trace(json.loads(wishes.read_text(encoding="utf-8")), folder)
    except RelmError as error:
        (folder / REFUSED).write_text(str(error), encoding="utf-8")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
