"""relm's own GPT-2 on IPUs, or on their simulator, for evaluations and generation.

The worker computes the head's input (`relm.devices.ipu.inference`), and this process the head, in float32 as on all devices.
A program of an IPU has one shape: the first batch decides it; smaller ones are padded, those with more sequences are divided.
"""

import weakref
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from relm.devices.contract import opened_hardware
from relm.devices.ipu.worker_process import WorkerProcess
from relm.errors import RelmError
from relm.evaluation.models import Execution
from relm.limits import usable_cores
from relm.models.gpt2 import Gpt2


class IpuCausalModel:
    """A GPT-2 whose body is on IPUs; fulfils `relm.evaluation.models.CausalModel`."""

    def __init__(self, folder: Path, sha256: str, model: Gpt2, execution: Execution) -> None:
        """Start the worker, and send it the model.

        Raises:
            RelmError: no Python here can run the worker, or the layers are not those of the model.
        """
        self.folder, self.sha256 = folder, sha256
        self.positions: int | None = model.config.positions
        self.vocabulary_size = model.config.vocabulary_size
        self._model = model.eval()
        self.sequences, self.length = 0, 0
        """Shape of the program; zeros: there is none yet."""
        layers = execution.layers_per_ipu or (model.config.layers,)
        if sum(layers) != model.config.layers or min(layers) < 0:
            raise RelmError(
                f"--layers-per-ipu: {' '.join(map(str, layers))} sum to {sum(layers)}, but {folder} has {model.config.layers} "
                "layers; give as many"
            )
        self._worker = WorkerProcess("poptorch" if execution.device == "ipu" else "simulator")
        weakref.finalize(self, self._worker.close)
        if execution.device == "ipu":
            opened_hardware[str(self._worker.facts["name"])] = None
        spec = {
            "architecture": "gpt2",
            "configuration": asdict(model.config),
            "placement": place_segments(layers),
            "precision": execution.precision,
            "threads": execution.threads or usable_cores(),
        }
        weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
        self._worker.request("open_inference", spec, weights)

    def hidden(self, input_ids: Tensor) -> Tensor:
        """Return the head's input, (batch, sequence) -> (batch, sequence, width) float32, on the host."""
        sequences, length = input_ids.shape
        if length > self.length:
            self.sequences, self.length = sequences, length
        parts = [self._compute(part) for part in input_ids.split(self.sequences)]  # type: ignore[no-untyped-call]
        return torch.cat(parts)[:, :length]

    def _compute(self, input_ids: Tensor) -> Tensor:
        """Return the head's input of up to as many sequences as the program has, (sequences, length of the program, width)."""
        padded = np.zeros((self.sequences, self.length), dtype=np.int64)
        padded[: input_ids.shape[0], : input_ids.shape[1]] = input_ids.numpy()
        answer = self._worker.request("hidden", arrays={"input_ids": padded})
        return torch.from_numpy(answer.arrays["hidden"])[: input_ids.shape[0]]

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits, (positions, width) -> (positions, vocabulary)."""
        with torch.inference_mode():
            return self._model.head(hidden)


def place_segments(layers: tuple[int, ...]) -> list[tuple[str, int]]:
    """Return the IPU of each segment of a GPT-2: embeddings on the first, as in Graphcore's text_generate_gpt2.py.

    >>> place_segments((1, 1))
    [('token_embedding', 0), ('position_embedding', 0), ('layers.0', 0), ('layers.1', 1), ('head', 0)]
    """
    ipus = [ipu for ipu, count in enumerate(layers) for _ in range(count)]
    placed = [(f"layers.{number}", ipu) for number, ipu in enumerate(ipus)]
    return [("token_embedding", 0), ("position_embedding", 0), *placed, ("head", 0)]
