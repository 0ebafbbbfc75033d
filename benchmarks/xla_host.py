"""Measure the host's work for one step on PyTorch/XLA, at full size, in milliseconds; `benchmarks/xla.py host` runs it.

Nothing is executed, and weights have no memory: a CPU would need minutes for such a step, and its compiler longer. A step of
ours and of `transformers` is traced as in training, with the recipe's batch, precision and clipping. That of `transformers` has
a plain torch AdamW, for each parameter by itself (torch's default on this device) and for lists of them (foreach). Instead of
being launched, the graph is collected and hashed, as PyTorch/XLA does at each step to find its program, and then thrown away.
What is left out is the hand-over of the finished arguments to the devices, by a thread of the runtime. That the hash stays the
same is checked.

Our input is made by the reader from stored examples of made-up words; in a run a thread does that while others work, here it
is timed by itself, and added. The other side's is not timed: its batch is ready in memory.

The two figures of a part are by the clock and of processor, all threads, which a crowded machine disturbs less.
"""

import argparse
import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import loop
import numpy as np
import torch
import torch_xla
from torch import Tensor, nn

from models import CLASSES, clocks, spread
from relm.devices.xla import XlaDevice
from relm.models.bert import Bert
from relm.models.bert_configuration import BertConfig
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe
from relm.training.input import Reader
from relm.training.loss_scaling import finish_gradients
from relm.training.optimizers import build_optimizer, optimizer_tensors, set_learning_rate
from relm.training.phase_run import open_reader
from relm.training.step import accumulate_terms

CHECKOUT = Path(__file__).resolve().parent.parent
PARTS = ("batch to the devices", "forward", "backward", "clipping", "optimizer", "graph")
# The initial state, and the first steps, find other graphs.
WARM_UP = 3
VOCABULARIES = {"bert": 30_522, "roberta": 50_265}


@dataclasses.dataclass
class Side:
    """One who takes steps, the time of each part, and the hash of each step's graph."""

    step: Callable[[], None]
    times: dict[str, list[np.ndarray]] = dataclasses.field(default_factory=lambda: {part: [] for part in PARTS})
    hashes: list[bytes] = dataclasses.field(default_factory=list)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        before = np.array(clocks())
        yield
        self.times[name].append(1000 * (clocks() - before))

    def throw_away(self, made: list[Tensor]) -> None:
        """Find the program of all that was traced, as a launch does, and forget it.

        Args:
            made: all tensors that were.
        """
        with self.part("graph"):
            self.hashes.append(torch_xla._XLAC._get_graph_hash(made))
            torch_xla._XLAC._clear_pending_irs(str(torch_xla.device()))
            torch_xla.sync()


def our_side(recipe: Recipe, config: BertConfig, device: XlaDevice, reader: Reader) -> Side:
    """Return a step as `relm.training.updates.take_step` takes it."""
    settings = recipe.pretrain["main"]
    with torch.device("meta"):
        model = Bert(config)
    model = model.to_empty(device=torch_xla.device()).train()
    optimizer = build_optimizer(model, settings.optimizer)
    state = [*model.parameters(), *optimizer_tensors(optimizer, model).values()]
    whole_everywhere(state, device)
    micro_batches = reader.micro_batches(1)
    denominators = reader.step_input(1).denominators
    forward = device.forward(model.terms)

    def step() -> None:
        rate = settings.optimizer.learning_rate / (1 + len(side.hashes))
        with side.part("batch to the devices"):
            staged = [device.stage(batch) for batch in micro_batches]
            set_learning_rate(optimizer, device.make_scalar(rate))
            divided = [{name: device.make_scalar(value) for name, value in each.items()} for each in denominators]
            device.seed(len(side.hashes))
        with side.part("forward"), backward_apart(side):
            accumulated = accumulate_terms(forward, staged, divided, lambda: device.autocast(settings.precision))
        side.times["forward"][-1] -= side.times["backward"][-1]
        with side.part("clipping"):
            norm = finish_gradients(model.parameters(), None, settings.optimizer.gradient_clipping)
        with side.part("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        scalars = [value for term in accumulated.terms.values() for value in term]
        side.throw_away([*state, accumulated.loss, norm, *scalars])

    side = Side(step)
    return side


@contextmanager
def backward_apart(side: Side) -> Iterator[None]:
    """Time the backward pass, which our step has in its middle, by itself."""
    backward = torch.autograd.backward

    def timed(*arguments: Any) -> None:
        with side.part("backward"):
            backward(*arguments)

    torch.autograd.backward = timed
    try:
        yield
    finally:
        torch.autograd.backward = backward


def their_side(recipe: Recipe, config: BertConfig, device: XlaDevice, reader: Reader, foreach: bool) -> Side:
    """Return the same with a model of `transformers` and torch's AdamW."""
    import transformers

    settings, described = recipe.pretrain["main"], config.to_huggingface()
    kind = transformers.AutoConfig.for_model(described.pop("model_type"), **described)
    named = CLASSES[BertConfig].replace("Bert", "Roberta" if config.family == "roberta" else "Bert")
    with torch.device("meta"):
        model = getattr(transformers, named)._from_config(kind, attn_implementation="sdpa")
    model = model.to_empty(device=torch_xla.device()).train()
    model.tie_weights()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.optimizer.learning_rate, foreach=foreach)
    whole_everywhere(list(model.parameters()), device)
    ours = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in reader.batch(1).items()}
    batch = {name: tensor.numpy() for name, tensor in loop.as_they_take_it(ours).items()}

    def step() -> None:
        with side.part("batch to the devices"):
            staged = device.stage(batch)
            for group in optimizer.param_groups:
                group["lr"] = settings.optimizer.learning_rate / (1 + len(side.hashes))
            device.seed(len(side.hashes))
        with side.part("forward"), device.autocast(settings.precision):
            loss = model(**staged).loss
        with side.part("backward"):
            loss.backward()
        made = [loss.detach()]
        with side.part("clipping"):
            if settings.optimizer.gradient_clipping is not None:
                made.append(nn.utils.clip_grad_norm_(model.parameters(), settings.optimizer.gradient_clipping))
        with side.part("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        remembered = [value for state in optimizer.state.values() for value in state.values()]
        on_device = [tensor for tensor in remembered if tensor.device.type == "xla"]
        side.throw_away([*model.parameters(), *on_device, *made])

    side = Side(step)
    return side


def whole_everywhere(tensors: list[Tensor], device: XlaDevice) -> None:
    """As after `XlaDevice.hold`, but without memory."""
    import torch_xla.distributed.spmd as xs

    for tensor in tensors:
        xs.mark_sharding(tensor, device._mesh, (None,) * tensor.dim())
    torch_xla._XLAC._clear_pending_irs(str(torch_xla.device()))


def shrunk(recipe: Recipe, given: argparse.Namespace) -> Recipe:
    """Return the recipe with what the command line changes, for made-up words."""
    changed: dict[str, Any] = recipe.model_dump()
    changed["tokenizer"] = {"train": "wordpiece", "vocabulary_size": 400}
    changed["model"]["layers"] = given.layers or recipe.model.layers
    if given.optimizer:
        changed["pretrain"]["main"]["optimizer"]["name"] = given.optimizer
        changed["pretrain"]["main"]["optimizer"]["form"] = "pytorch"
    return Recipe.model_validate(changed)


def config_of(recipe: Recipe) -> BertConfig:
    """Return the recipe's architecture, with the rows of its published vocabulary."""
    model = recipe.model
    return BertConfig(
        model.layers,
        model.heads,
        model.hidden_size,
        4 * model.hidden_size,
        positions=model.positions,
        vocabulary_size=VOCABULARIES[model.architecture],
        family=model.architecture,
        type_vocabulary_size=model.type_vocabulary_size,
        padding_id=0 if model.architecture == "bert" else 1,
    )


def measure(given: argparse.Namespace) -> None:
    """Print the milliseconds of each part of a step and of the whole, for all sides in alternation."""
    torch.set_num_threads(1)
    recipe = shrunk(Project(CHECKOUT).plan(given.recipe).recipe, given)
    settings, config, device = recipe.pretrain["main"], config_of(recipe), XlaDevice(recipe.run)
    with tempfile.TemporaryDirectory() as folder:
        reader = open_reader(recipe, "main", loop.write_examples(Path(folder), recipe), "train", device)
        sides = {
            f"relm, {settings.optimizer.name}": our_side(recipe, config, device, reader),
            "transformers, AdamW": their_side(recipe, config, device, reader, foreach=False),
            "transformers, AdamW foreach": their_side(recipe, config, device, reader, foreach=True),
        }
        batch = {name: array.shape for name, array in reader.batch(1).items()}
        reading = []
        for turn in range(WARM_UP + given.repeats):
            for side in list(sides.values())[:: 1 if turn % 2 else -1]:
                side.step()
            before = np.array(clocks())
            reader.step_input(2 + turn)
            reading.append(1000 * (clocks() - before))
    print(f"{given.recipe}: {config.layers} layers of {config.hidden_size}, batch {batch}, {given.devices} devices")
    for name, side in sides.items():
        assert len(set(side.hashes[WARM_UP - 1 :])) == 1, f"{name}: the program changes"
        print_side(name, side, reading if name.startswith("relm") else None)
    first, *others = (np.array([side.times[part] for part in PARTS])[:, WARM_UP:].sum(0) for side in sides.values())
    for name, other in zip(list(sides)[1:], others, strict=True):
        print(f"{name}: {spread(list(other[:, 0] / first[:, 0]))} times as long as relm, processor "
              f"{spread(list(other[:, 1] / first[:, 1]))}")  # fmt: skip


def print_side(name: str, side: Side, reading: list[np.ndarray] | None) -> None:
    parts = {part: np.array(times)[WARM_UP:] for part, times in side.times.items()}
    words = ", ".join(f"{part} {np.median(t[:, 0]):.0f}/{np.median(t[:, 1]):.0f}" for part, t in parts.items())
    whole = sum(parts.values())
    print(f"{name}: {spread(list(whole[:, 0]))} ms, processor {spread(list(whole[:, 1]))} ms; {words}")
    if reading is not None:
        read = np.array(reading)[WARM_UP:]
        both = whole + read
        print(f"{name}: input {np.median(read[:, 0]):.0f}/{np.median(read[:, 1]):.0f}; "
              f"with it {spread(list(both[:, 0]))} ms, processor {spread(list(both[:, 1]))} ms")  # fmt: skip
