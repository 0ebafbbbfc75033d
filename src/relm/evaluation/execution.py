"""The device, precision and batch size of an evaluation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from relm.devices.contract import Device, open_device
from relm.errors import RelmError
from relm.recipes.devices import DEVICES, HOST
from relm.recipes.machine.pipeline import Pipeline
from relm.recipes.run import Run


@dataclass(frozen=True)
class Execution:
    device: str = HOST
    """A device that runs evaluations, or only fine-tuning."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of matrix products before the head; the head and probabilities are float32, sums float64."""
    threads: int | None = None
    """Threads of the CPU; None: all cores that this process may use."""
    batch_tokens: int = DEVICES[HOST].evaluation_batch_tokens
    """Most tokens in a batch, padding included; a longer sequence is a batch by itself."""
    layers_per_ipu: tuple[int, ...] | None = None
    """Layers on each IPU, where the device has IPUs or simulates them; None: all on one."""
    available_memory_proportion: tuple[float, ...] | None = None
    """Share of each IPU's memory for temporary values of matrix products; None: the compiler's or the original's."""
    executable_cache: Path | None = None
    """Folder that keeps what is compiled for IPUs; None: nothing is kept."""
    pipeline: Pipeline | None = None
    """Split of the model on which IPUs, or their simulator, fine-tune it."""

    @property
    def tuning_precision(self) -> Literal["float32", "bfloat16", "float16"]:
        """Precision of fine-tuning; on an IPU it is the pipeline's."""
        return self.precision if self.pipeline is None or self.device != "ipu" else self.pipeline.precision

    def open(self) -> Device:
        """Return the device, ready, without deterministic algorithms: a forward pass needs none, and some models lack them."""
        if DEVICES[self.device].runs_inference:
            raise RelmError(
                f"--device: {self.device} evaluates only relm's own GPT-2, BERT and RoBERTa, and not this model or task; give "
                "another device"
            )
        compiled = False if DEVICES[self.device].runs_torch else None  # elsewhere everything is
        return open_device(Run(device=self.device, threads=self.threads, compile=compiled, deterministic=False))


ON_THE_HOST = Execution()
"""The CPU, with its defaults."""
