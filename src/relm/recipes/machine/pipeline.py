"""The section `pipeline` of a run on IPUs: how the model is split over them, and how their memory is used.

It belongs to model and machine together, so a recipe has it under `on: {MACHINE: {pipeline: ...}}`. It is not part of the
fingerprint: it changes rounding, never what is trained.
"""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from relm.recipes.optimization import LossScaling
from relm.recipes.section import Section, Slug

Share = Annotated[float, Field(gt=0, le=1)]
LayerCount = Annotated[int, Field(ge=0)]


class PipelineOfPhase(Section):
    """Keys of a pipeline that another phase than the first has with other values; null: as in `pipeline`."""

    micro_batch_size: int | None = Field(default=None, gt=0)
    """Sequences of one forward pass of one replica."""
    gradient_accumulation: int | None = Field(default=None, gt=0)
    """Micro-batches of one replica in one update."""
    available_memory_proportion: list[Share] | None = None
    """Share of each IPU's memory for the temporary values of matrix products."""
    loss_scaling: LossScaling | None = None
    """Scaling of the loss on the device."""


class PipelineOfFineTuning(Section):
    """Keys of a pipeline where an evaluation fine-tunes the model; null: as in `pipeline`."""

    micro_batch_size: int = Field(default=1, gt=0)
    """Sequences of one forward pass of one replica."""
    available_memory_proportion: list[Share] | None = None
    """Share of each IPU's memory for the temporary values of matrix products."""
    loss_scaling: LossScaling | None = None
    """Scaling of the loss on the device."""


class Pipeline(Section):
    """A model's split over IPUs, as PopTorch runs it."""

    layers_per_ipu: list[LayerCount] = Field(min_length=1)
    """Number of layers on each IPU of one replica."""
    token_embedding: int = Field(default=0, ge=0)
    """IPU of the token embedding."""
    position_embedding: int = Field(default=0, ge=0)
    """IPU of the embeddings of positions and segments."""
    head: int = Field(default=0, ge=0)
    """IPU of the projection to the vocabulary and the loss; with a tied head, that of the token embedding."""
    replicas: int = Field(default=1, gt=0)
    """Number of copies of the pipeline, over all instances."""
    instances: int = Field(default=1, gt=0)
    """Number of host processes that PopRun starts, each with an equal share of the replicas."""
    micro_batch_size: int = Field(default=1, gt=0)
    """Sequences of one forward pass of one replica."""
    gradient_accumulation: int = Field(gt=0)
    """Micro-batches of one replica in one update."""
    device_iterations: int = Field(default=1, gt=0)
    """Updates of one call of the device, all with the same learning rate."""
    available_memory_proportion: list[Share] | None = None
    """Share of each IPU's memory for the temporary values of matrix products, one value each; null: the compiler's default."""
    recompute_layers: bool = True
    """Keep only the inputs of layers, and compute the rest again in the backward pass."""
    replicated_tensor_sharding: bool = False
    """Each replica keeps only a share of the optimizer's state."""
    optimizer_state_off_chip: bool = True
    """The optimizer's state is in the host's DRAM between updates."""
    smallest_remote_tensor: int | None = Field(default=None, gt=0)
    """Bytes of the smallest tensor of the optimizer's state that is kept off chip and sharded; null: the compiler's default."""
    vocabulary_serialisation: int = Field(default=1, gt=0)
    """Number of slices in which the projection to the vocabulary is computed one after the other."""
    loss_chunk: int | None = Field(default=None, gt=0)
    """Tokens of a sequence whose cross-entropy is computed at once; null: all."""
    precision: Literal["float16", "float32"] = "float16"
    """Precision of weights, activations and gradients on the device."""
    accumulation_precision: Literal["float16", "float32"] = "float16"
    """Precision of accumulated gradients."""
    first_moment_precision: Literal["float16", "float32"] = "float16"
    """Precision of the optimizer's first moment; its second moment is always float32."""
    half_partials: bool = True
    """Partial sums of matrix products are float16."""
    stochastic_rounding: bool = True
    """Results in float16 are rounded up or down at random, so that small updates survive on average. The simulator rounds only
    the updated weights."""
    loss_scaling: LossScaling = LossScaling()
    """Scaling of the loss on the device."""
    stages_of_original: int | None = Field(default=None, gt=0)
    """Number of pipeline stages of an original for TensorFlow 1, whose accumulation must be a multiple of twice as many; null:
    the original is for PopTorch."""
    phases: dict[Slug, PipelineOfPhase] = Field(default_factory=dict)
    """Phase -> the keys that it has with other values."""
    fine_tuning: PipelineOfFineTuning = PipelineOfFineTuning()
    """Keys that fine-tuning in an evaluation has with other values; its batch decides replicas and gradient_accumulation."""

    @model_validator(mode="after")
    def lies_on_its_ipus(self) -> Self:
        count = self.ipus_per_replica
        if count & (count - 1):
            raise ValueError(f"layers_per_ipu: the number of IPUs must be a power of two, found {count}; add or merge some")
        for key in ("token_embedding", "position_embedding", "head"):
            if getattr(self, key) >= count:
                raise ValueError(
                    f"{key}: expected an IPU from 0 to {count - 1}, as layers_per_ipu has {count}; found {getattr(self, key)}"
                )
        shares = {"": self.available_memory_proportion}
        shares |= {f"phases.{name}.": phase.available_memory_proportion for name, phase in self.phases.items()}
        shares["fine_tuning."] = self.fine_tuning.available_memory_proportion
        for where, values in shares.items():
            if values is not None and len(values) != count:
                raise ValueError(
                    f"{where}available_memory_proportion: expected a value for each of the {count} IPUs, found {len(values)}"
                )
        if self.replicas % self.instances:
            raise ValueError(f"instances ({self.instances}) must divide replicas ({self.replicas})")
        if self.replicated_tensor_sharding and self.replicas == 1:
            raise ValueError("replicated_tensor_sharding: shares the optimizer's state among replicas, found 1; leave it out")
        return self

    @model_validator(mode="after")
    def accumulates_enough_to_fill_the_pipeline(self) -> Self:
        for where, found in self._accumulations():
            least = 2 * self.stages - 1
            if self.ipus_per_replica > 1 and found < least:
                raise ValueError(
                    f"{where}: {self.stages} forward stages need at least 2 * {self.stages} - 1 = {least} micro-batches in an "
                    f"update, found {found}; stages are one more than the changes of IPU from the token embedding to the head"
                )
            if self.stages_of_original is not None and found % (2 * self.stages_of_original):
                raise ValueError(
                    f"{where}: must be a multiple of {2 * self.stages_of_original}, twice stages_of_original, as TensorFlow's "
                    f"pipelines require; found {found}"
                )
        return self

    def _accumulations(self) -> list[tuple[str, int]]:
        """Return the key and the value of each gradient accumulation."""
        others = [(f"phases.{name}", phase.gradient_accumulation) for name, phase in self.phases.items()]
        found = [(f"{where}.gradient_accumulation", count) for where, count in others if count is not None]
        return [("gradient_accumulation", self.gradient_accumulation), *found]

    def of_phase(self, phase: str) -> "Pipeline":
        """Return the pipeline of one phase, without `phases`."""
        if phase not in self.phases:
            return self.model_copy(update={"phases": {}})
        other: dict[str, Any] = self.phases[phase].model_dump(exclude_none=True)
        return Pipeline.model_validate({**self.model_dump(exclude={"phases"}), **other})

    def common_micro_batch_size(self, phases: Iterable[str]) -> int:
        """Return the largest number of sequences that divides the micro-batches of all phases: `run.micro_batch_size`."""
        return math.gcd(*(self.of_phase(phase).micro_batch_size for phase in phases))

    @property
    def ipus_per_replica(self) -> int:
        """Number of IPUs of one replica."""
        return len(self.layers_per_ipu)

    @property
    def ipus(self) -> int:
        """Number of IPUs of all replicas."""
        return self.ipus_per_replica * self.replicas

    @property
    def global_batch_size(self) -> int:
        """Sequences of one update."""
        return self.micro_batch_size * self.gradient_accumulation * self.replicas

    @property
    def placement(self) -> list[tuple[str, int]]:
        """The IPU of each segment of a model (`relm.models.segments`), in the order of their execution."""
        layers = [ipu for ipu, count in enumerate(self.layers_per_ipu) for _ in range(count)]
        embeddings = [("token_embedding", self.token_embedding), ("position_embedding", self.position_embedding)]
        return [*embeddings, *((f"layers.{layer}", ipu) for layer, ipu in enumerate(layers)), ("head", self.head)]

    @property
    def stages(self) -> int:
        """Number of forward stages: one more than the changes of IPU along the placement.

        >>> Pipeline(layers_per_ipu=[0, 4, 4, 4], position_embedding=1, gradient_accumulation=2048).stages
        5
        """
        # Without `placement`, which has an entry a layer: a recipe may ask for a billion of them, before a rule refuses it.
        layers = [ipu for ipu, count in enumerate(self.layers_per_ipu) if count]
        ipus = [self.token_embedding, self.position_embedding, *layers, self.head]
        return 1 + sum(before != after for before, after in pairwise(ipus))


def split_tuning_batch(pipeline: Pipeline, batch_size: int) -> Pipeline:
    """Return the pipeline of fine-tuning, which has the layers and the precision of a training's pipeline.

    It has the most replicas, up to those of the training, that share the batch evenly and fill their stages. One call is one
    update, since the learning rate changes with each. The gradient is clipped, for which every replica has the whole optimizer
    state and a first moment in float32. What belongs to the vocabulary's head goes with it.
    """
    own = pipeline.fine_tuning
    size, least = own.micro_batch_size, least_micro_batches(pipeline)
    fitting = [
        replicas
        for replicas in range(1, pipeline.replicas + 1)
        if batch_size % (size * replicas) == 0 and batch_size // (size * replicas) >= least
    ]
    if not fitting:
        raise ValueError(
            f"batch_size is {batch_size}, but the pipeline has {pipeline.stages} stages, which need a multiple of {size} "
            f"sequences, at least {size} x {least} = {size * least}; give such a batch_size, or run on another machine"
        )
    changed = {
        "replicas": fitting[-1],
        "gradient_accumulation": batch_size // (size * fitting[-1]),
        "micro_batch_size": size,
        "device_iterations": 1,
        "available_memory_proportion": own.available_memory_proportion or pipeline.available_memory_proportion,
        "loss_scaling": (own.loss_scaling or pipeline.loss_scaling).model_dump(),
        "replicated_tensor_sharding": False,
        "first_moment_precision": "float32",
    }
    of_training = {"vocabulary_serialisation", "loss_chunk", "stages_of_original", "phases", "fine_tuning"}
    return Pipeline.model_validate({**pipeline.model_dump(exclude=of_training), **changed})


def least_micro_batches(pipeline: Pipeline) -> int:
    """Return the micro-batches that fill the stages of one replica.

    >>> least_micro_batches(Pipeline(layers_per_ipu=[3, 7, 7, 7], gradient_accumulation=2050))
    9
    """
    return 2 * pipeline.stages - 1 if pipeline.ipus_per_replica > 1 else 1
