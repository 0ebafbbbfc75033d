"""The worker process that holds relm's own model on IPUs, or on their simulator."""

from dataclasses import asdict
from pathlib import Path

from relm.devices.contract import opened_hardware
from relm.devices.ipu.worker_process import WorkerProcess
from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.limits import usable_cores
from relm.models.bert_model import EncoderModel
from relm.models.gpt2 import Gpt2


def open_worker(folder: Path, architecture: str, model: Gpt2 | EncoderModel, execution: Execution) -> WorkerProcess:
    """Start a worker, and send it a gpt2 or a bert."""
    layers = read_layers(folder, model, execution)
    worker = WorkerProcess("poptorch" if execution.device == "ipu" else "simulator")
    if execution.device == "ipu":
        opened_hardware[str(worker.facts["name"])] = None
    spec = {
        "architecture": architecture,
        "configuration": asdict(model.config),
        "placement": place_segments(layers),
        "precision": execution.precision,
        "threads": execution.threads or usable_cores(),
        "available_memory_proportion": execution.available_memory_proportion,
        "executable_cache": str(execution.executable_cache or ""),
    }
    weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    worker.request("open_inference", spec, weights)
    return worker


def read_layers(folder: Path, model: Gpt2 | EncoderModel, execution: Execution) -> tuple[int, ...]:
    """Return the layers on each IPU."""
    layers = execution.layers_per_ipu or (model.config.layers,)
    if sum(layers) != model.config.layers or min(layers) < 0:
        raise RelmError(
            f"--layers-per-ipu: {' '.join(map(str, layers))} covers {sum(layers)} layers, but {folder} has "
            f"{model.config.layers}; make the sum equal"
        )
    return layers


def place_segments(layers: tuple[int, ...]) -> list[tuple[str, int]]:
    """Return the IPU of each segment of a model: embeddings on the first, as in Graphcore's text_generate_gpt2.py.

    >>> place_segments((1, 1))
    [('token_embedding', 0), ('position_embedding', 0), ('layers.0', 0), ('layers.1', 1), ('head', 0)]
    """
    ipus = [ipu for ipu, count in enumerate(layers) for _ in range(count)]
    placed = [(f"layers.{number}", ipu) for number, ipu in enumerate(ipus)]
    return [("token_embedding", 0), ("position_embedding", 0), *placed, ("head", 0)]
