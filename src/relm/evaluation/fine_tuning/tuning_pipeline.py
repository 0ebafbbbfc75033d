"""Fine-tuning on IPUs: checks of a command's pipeline, and the logits of the tuned model, whose encoder is on IPUs too."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from relm.errors import RelmError
from relm.evaluation.execution import Execution
from relm.evaluation.fine_tuning.tuning_batches import ScoredBatches
from relm.evaluation.ipu_worker import open_worker
from relm.examples.contract import Batch
from relm.models.bert_model import EncoderModel
from relm.recipes.devices import DEVICES
from relm.recipes.evaluation.fine_tuning import FineTuning
from relm.recipes.machine.pipeline import Pipeline

OPTION = "--pipeline"


def require_pipeline(execution: Execution, options: FineTuning) -> None:
    """Raise unless a device with IPUs has a pipeline that can fine-tune; another device must have none."""
    pipeline, device = execution.pipeline, execution.device
    if not DEVICES[device].pipelined:
        if pipeline is not None:
            raise RelmError(f"{OPTION}: needs --device ipu or ipu_simulator, found {device}; leave it out")
        return
    if pipeline is None:
        raise RelmError(
            f"{OPTION} is missing: {device} needs the split of the model, such as "
            f"--pipeline '{{\"layers_per_ipu\": [3, 3, 3, 3]}}' for a model of 12 layers"
        )
    if device == "ipu" and execution.precision != "float32":
        raise RelmError(
            f"--precision is {execution.precision}, but on an IPU {OPTION}'s precision counts, found {pipeline.precision}; "
            "leave --precision out"
        )
    _require_keys(pipeline, options.batch_size)


def _require_keys(pipeline: Pipeline, batch_size: int) -> None:
    """Raise unless the keys of a pipeline go with fine-tuning, and its micro-batches with the batch."""
    clips_in_float32 = "float32" in (pipeline.accumulation_precision, pipeline.first_moment_precision)
    faults = [
        (
            pipeline.instances > 1,
            f"instances is {pipeline.instances}, but one process on one host fine-tunes; set it to 1, with as many replicas as "
            "the host has IPUs for",
        ),
        (
            pipeline.device_iterations > 1,
            f"device_iterations is {pipeline.device_iterations}, but in fine-tuning each update has another learning rate; set "
            "it to 1",
        ),
        (
            pipeline.replicated_tensor_sharding,
            "replicated_tensor_sharding is true, but the gradient is clipped, for which each replica needs the whole optimizer "
            "state; leave it out",
        ),
        (
            not clips_in_float32,
            f"first_moment_precision is {pipeline.first_moment_precision}, but the gradient is clipped, which needs float32; "
            "leave it out",
        ),
    ]
    for is_fault, sentence in faults:
        if is_fault:
            raise RelmError(f"{OPTION}: {sentence}")
    if pipeline.global_batch_size != batch_size:
        raise RelmError(
            f"--batch-size is {batch_size}, but {OPTION} has micro_batch_size {pipeline.micro_batch_size} x "
            f"gradient_accumulation {pipeline.gradient_accumulation} x replicas {pipeline.replicas} = "
            f"{pipeline.global_batch_size} sequences; make them equal"
        )


def require_layers(pipeline: Pipeline, layers: int, folder: Path) -> None:
    """Raise unless a pipeline has the layers of a model."""
    if (found := sum(pipeline.layers_per_ipu)) != layers:
        raise RelmError(f"{OPTION}: layers_per_ipu has {found} layers, but {folder} has {layers}; make the sum equal")


def compute_ipu_logits(model: EncoderModel, inputs: Batch, execution: Execution, folder: Path) -> npt.NDArray[np.float32]:
    """Return the logits, (sequences, ...), of a model whose encoder is on a pipeline's IPUs and whose head is computed here."""
    assert execution.pipeline is not None, "a device with IPUs has one"
    pipeline, shares = execution.pipeline, execution.pipeline.available_memory_proportion
    count, length = inputs["input_ids"].shape
    placed = replace(
        execution,
        precision=execution.tuning_precision,
        layers_per_ipu=tuple(pipeline.layers_per_ipu),
        available_memory_proportion=None if shares is None else tuple(shares),
    )
    # A program has one shape.
    batches = ScoredBatches(min(max(1, execution.batch_tokens // length), count), fills=True)
    pieces = []
    with closing(open_worker(folder, "bert", model.eval(), placed)) as worker, torch.inference_mode():
        for batch in batches.split(inputs):
            arrays = {name: np.ascontiguousarray(array, dtype=np.int64) for name, array in batch.items()}
            hidden = worker.request("hidden", arrays=arrays).arrays["hidden"]
            pieces.append(model.head(torch.from_numpy(hidden)).numpy())
    found: npt.NDArray[np.float32] = np.concatenate(pieces)[:count]
    return found
