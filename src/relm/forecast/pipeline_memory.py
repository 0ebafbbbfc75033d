"""The memory of each IPU of a pipeline, by arithmetic. Imports no torch.

It counts what a step keeps: weights, accumulated gradients, the optimizer's state, the hidden states that wait for their
backward pass, one layer that is computed again, and logits. It does not count code, buffers of exchanges and temporary values
of matrix products, which Graphcore's compiler places.
"""

from collections.abc import Sequence
from typing import NamedTuple

from relm.devices.ipu.schedule import PipelineStage, stages_of
from relm.models.configuration import Configuration
from relm.models.counting import FLOAT, Activations, Computing, Tensors
from relm.recipes.architectures import ARCHITECTURES
from relm.recipes.declaration import load
from relm.recipes.machine.pipeline import Pipeline
from relm.recipes.optimization import OPTIMIZERS, Optimizer
from relm.recipes.phase import Phase
from relm.recipes.run import Run
from relm.training.arithmetic import lengths, model_weights

BYTES = {"float16": 2, "float32": 4}
"""Precision -> bytes of a number."""


class IpuMemory(NamedTuple):
    """The bytes on one IPU of each replica."""

    segments: tuple[str, ...]
    parameters: int
    """Count of parameters; a tied head adds none."""
    weights: int
    accumulators: int
    """Gradients, summed over the micro-batches of an update."""
    optimizer: int
    """The optimizer's state, or the share of it that a replica keeps; if that is off chip, only the state of small tensors."""
    off_chip: int
    """The optimizer's state in the host's DRAM, which `total` leaves out."""
    activations: int
    """Hidden states that wait for their backward pass, and one layer that is computed again."""
    logits: int
    """Logits of all scored positions and their gradient, and one chunk of both in float32."""

    @property
    def total(self) -> int:
        """Return the bytes that are counted."""
        return self.weights + self.accumulators + self.optimizer + self.activations + self.logits


def pipeline_of(run: Run, phase: str) -> Pipeline | None:
    """Return the pipeline of one phase of a run; None: its device needs none."""
    return None if run.pipeline is None else run.pipeline.of_phase(phase)


def bubble_share(pipeline: Pipeline) -> float:
    """Return the share of an update in which a stage waits, while the pipeline fills and empties: (S - 1) / (GA + S - 1)."""
    idle = pipeline.stages - 1
    return idle / (pipeline.gradient_accumulation + idle)


def pipeline_memory(config: Configuration, phase: Phase, pipeline: Pipeline) -> list[IpuMemory]:
    """Return the memory of each IPU of a replica, by arithmetic."""
    weights, stages = model_weights(config), stages_of(pipeline.placement)
    return [
        _ipu_memory(config, phase, pipeline, weights, [stage for stage in stages if stage.ipu == ipu])
        for ipu in range(pipeline.ipus_per_replica)
    ]


def _ipu_memory(
    config: Configuration, phase: Phase, pipeline: Pipeline, weights: Sequence[Tensors], stages: Sequence[PipelineStage]
) -> IpuMemory:
    """Return the memory of the IPU with these stages."""
    segments = tuple(name for stage in stages for name in stage.segments)
    placed = [each for each in weights if each.segment in segments]
    count = sum(each.numbers for each in placed)
    far = [each for each in placed if _is_remote(each, pipeline)]
    shared, whole = (sum(_state_bytes(each, phase.optimizer, pipeline) for each in part) for part in (far, placed))
    small = whole - shared
    if pipeline.replicated_tensor_sharding:
        shared = -(-shared // pipeline.replicas)
    return IpuMemory(
        segments,
        parameters=count,
        weights=BYTES[pipeline.precision] * count,
        accumulators=BYTES[pipeline.accumulation_precision] * count,
        optimizer=small if pipeline.optimizer_state_off_chip else small + shared,
        off_chip=shared if pipeline.optimizer_state_off_chip else 0,
        activations=_activation_bytes(config, phase, pipeline, stages),
        logits=_logits_bytes(config, phase, pipeline) if "head" in segments else 0,
    )


def _state_bytes(weights: Tensors, optimizer: Optimizer, pipeline: Pipeline) -> int:
    """Return the bytes of optimizer state: a first moment in the pipeline's precision, everything else in float32."""
    count = weights.times * OPTIMIZERS[optimizer.name].count_state(weights.shape, optimizer)
    first = min(count, weights.numbers)
    return BYTES[pipeline.first_moment_precision] * first + BYTES["float32"] * (count - first)


def _is_remote(weights: Tensors, pipeline: Pipeline) -> bool:
    """Return True if a parameter's moments are large enough to be off chip and divided among replicas."""
    return BYTES["float32"] * weights.size >= (pipeline.smallest_remote_tensor or 0)


def _activation_bytes(config: Configuration, phase: Phase, pipeline: Pipeline, stages: Sequence[PipelineStage]) -> int:
    """Return the bytes of hidden states that wait for their backward pass, and of one layer that is computed again.

    The input of each segment but the token embedding is the hidden states of a micro-batch.
    """
    layer = _layer_activations(config, phase, pipeline)
    hidden = BYTES[pipeline.precision] * (layer.inputs or 0) // FLOAT
    sequences = again = 0
    for stage in stages:
        sequences += stage.waiting * hidden * sum(name != "token_embedding" for name in stage.segments)
        layers = sum(name.startswith("layers.") for name in stage.segments)
        if pipeline.recompute_layers:
            again = max(again, layer.kept if layers else 0)
        else:
            sequences += stage.waiting * layer.kept * layers
    return pipeline.micro_batch_size * (sequences + again)


def _layer_activations(config: Configuration, phase: Phase, pipeline: Pipeline) -> Activations:
    """Return what one layer keeps of one sequence, attention's scores included."""
    how = Computing(element=BYTES[pipeline.precision], mask=1, attention="written_out", compiled=True)
    function = ARCHITECTURES[config.architecture].activations
    assert function is not None, "an architecture with segments counts its activations"
    parts: list[Activations] = list(load(function)(config, lengths(phase), how))
    return next(part for part in parts if part.inputs is not None)


def _logits_bytes(config: Configuration, phase: Phase, pipeline: Pipeline) -> int:
    """Return the bytes of the logits and their gradient, and of the float32 copies of one chunk.

    All scored positions are projected before the cross-entropy is computed in chunks.
    """
    scored = lengths(phase).scored
    chunk = scored if pipeline.loss_chunk is None else min(pipeline.loss_chunk, scored)
    elements = scored * BYTES[pipeline.precision] + chunk * BYTES["float32"]
    return 2 * pipeline.micro_batch_size * elements * config.vocabulary_size
