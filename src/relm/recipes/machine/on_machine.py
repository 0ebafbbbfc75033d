"""The section `on.MACHINE` of a recipe: what depends on model and machine together."""

from typing import Literal, Self

from pydantic import Field, model_validator

from relm.recipes.machine.pipeline import Pipeline
from relm.recipes.run import MOST_THREADS
from relm.recipes.section import Section


class OnMachine(Section):
    """Keys of `run` for one machine; null or absent: as elsewhere in the recipe, or chosen."""

    micro_batch_size: int | None = Field(default=None, gt=0)
    """Sequences per forward pass of one process; null: as many as fit into the machine's memory."""
    threads: int | None = Field(default=None, gt=0, le=MOST_THREADS)
    """CPU threads of each process."""
    compile: bool | None = None
    """Compile the forward and backward pass with torch.compile; null: only on cuda."""
    float32_matmul_precision: Literal["default", "high", "highest"] | None = None
    """Precision of matrix products of float32 tensors in training; null: the device's own."""
    deterministic: bool = True
    """Use deterministic kernels."""
    activation_checkpointing: bool = False
    """Recompute each layer's activations in the backward pass."""
    loss_chunk: int | None = Field(default=None, gt=0)
    """Positions of each sequence whose logits are in memory at once, on cpu and cuda; null: all."""
    overlap_gradients: bool = False
    """Sum gradients over processes during the backward pass."""
    checkpoint_interval: int = Field(default=500, gt=0)
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(default=2, gt=0)
    """Number of newest checkpoints that are kept."""
    log_interval: int = Field(default=10, gt=0)
    """Steps between lines of train.jsonl."""
    pipeline: Pipeline | None = None
    """Split of the model over the machine's IPUs, which every run on IPUs needs; micro_batch_size follows from it."""

    @model_validator(mode="after")
    def the_pipeline_has_the_micro_batch(self) -> Self:
        if self.pipeline is not None and self.micro_batch_size is not None:
            raise ValueError(
                f"micro_batch_size ({self.micro_batch_size}): follows from pipeline.micro_batch_size "
                f"({self.pipeline.micro_batch_size}); leave it out"
            )
        return self
