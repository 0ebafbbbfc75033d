"""Devices of a CPU, each with a fault that one check of `relm accept` finds."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from relm.devices.contract import Model
from relm.devices.torch import TorchDevice
from relm.recipes.devices import DeviceDeclaration, register_device
from relm.recipes.run import Run


class Sound(TorchDevice):
    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "device": "sound", "name": "A sound device"}


class WrongInput(Sound):
    """Changes one token of each batch."""

    def feed(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        changed = dict(batch)
        changed["input_ids"] = batch["input_ids"].clone()
        changed["input_ids"][0, 0] = 7
        return changed


class ConstantInput(Sound):
    """Replaces all tokens by one, which the model learns soon."""

    def feed(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {**batch, "input_ids": torch.full_like(batch["input_ids"], 7)}


class Counting(Sound):
    """Adds to gradients what depends on the steps of this process, as a state that no checkpoint has."""

    steps = 0

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        self.steps += 1
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad += 1e-3 * self.steps


class Random(Sound):
    """Adds noise to gradients that differs from process to process."""

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        noise = int.from_bytes(os.urandom(4)) / 2**32
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad += 1e-3 * noise


class WrongWeights(Sound):
    """Changes a weight when a model is placed."""

    def place(self, model: Model) -> Model:
        with torch.no_grad():
            next(iter(model.parameters())).mul_(1.01)
        return super().place(model)


class WithoutMemory(Sound):
    def peak_memory(self) -> int:
        return 0


DEVICES_HERE = {
    "sound": Sound,
    "wrong_input": WrongInput,
    "constant_input": ConstantInput,
    "counting": Counting,
    "random": Random,
    "wrong_weights": WrongWeights,
    "without_memory": WithoutMemory,
}


def open_faulty(run: Run, cache: Path | None, one_tpu: bool) -> TorchDevice:
    return DEVICES_HERE[run.device](run)


def say_yes() -> str:
    return "yes"


for name in DEVICES_HERE:
    register_device(
        DeviceDeclaration(
            name=name,
            open="faulty_devices:open_faulty",
            check="faulty_devices:say_yes",
            lock="torch-cpu.txt",
            image="cpu",
            evaluation_batch_tokens=1024,
            in_main_memory=True,
            runs_torch=True,
        )
    )
