"""A device from outside the package: the CPU, to which every batch travels through a separate copy."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from relm.devices.torch import TorchDevice
from relm.recipes.devices import DeviceDeclaration, register_device
from relm.recipes.machine.accelerators import Accelerator
from relm.recipes.machine.topologies import Topology
from relm.recipes.run import Run


class StagedDevice(TorchDevice):
    copied = 0

    def feed(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self.copied += len(batch)
        return {name: tensor.clone() for name, tensor in batch.items()}

    def figures(self) -> dict[str, float]:
        return {"copied": self.copied}

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "device": "staged", "name": "Stage 1"}


def open_staged(run: Run, cache: Path | None, one_tpu: bool) -> StagedDevice:
    return StagedDevice(run)


def describe_staged() -> str:
    return "yes: wherever there is a CPU"


def find_missing_stage() -> str | None:
    return os.environ.get("STAGE_LACKS")


register_device(
    DeviceDeclaration(
        name="staged",
        open="staged_device:open_staged",
        check="staged_device:describe_staged",
        lacks="staged_device:find_missing_stage",
        lock="torch-cpu.txt",
        image="cpu",
        evaluation_batch_tokens=64,
        in_main_memory=True,
        topologies={"stage-2": Topology(2, 2, 1, "stage")},
        emulation=("STAGED_ON", "CPU"),
        accelerators=(Accelerator("Stage 1", "Stage 1", 0.5, None, None),),
    )
)
