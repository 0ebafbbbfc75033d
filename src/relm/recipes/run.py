"""The section `run` of a recipe: the machine, how the work is divided, logging and checkpoints."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from relm.recipes.declaration import NameIn
from relm.recipes.devices import DEVICES, HOST
from relm.recipes.machine.pipeline import Pipeline
from relm.recipes.machine.topologies import find_one_device
from relm.recipes.section import Section, Slug

MOST_THREADS = 1024
"""Threads or processes that a user can ask for; with many thousands, C libraries crash."""


class MachineSettings(Section):
    """Keys that depend on model and machine together: of `run`, and of `on.MACHINE`."""

    micro_batch_size: int | None = Field(default=None, gt=0)
    """Sequences per forward pass of one process; null: the process's part of the global batch, or of one of its loss_shares."""
    threads: int | None = Field(default=None, gt=0, le=MOST_THREADS)
    """CPU threads of each process; null: all available cores. Another count rounds differently."""
    compile: bool | None = None
    """Compile the forward and backward pass with torch.compile, which rounds differently; null: only on cuda."""
    float32_matmul_precision: Literal["default", "high", "highest"] | None = None
    """Precision of matrix products of float32 tensors in training: highest, high (TF32 on cuda, three bfloat16 passes on a TPU)
    or default (the fastest, one bfloat16 pass on a TPU). Null means the device's default: default on a TPU, else highest."""
    deterministic: bool = True
    """Use deterministic kernels, so that the same steps give identical bits on the same kind of device; false allows the
    fastest kernels on cuda."""
    activation_checkpointing: bool = False
    """Recompute each layer's activations in the backward pass: less memory, a third more operations, identical results."""
    loss_chunk: int | None = Field(default=None, gt=0)
    """Positions of each sequence whose logits are in memory at once, on cpu and cuda: their loss and its gradients are computed
    chunk by chunk, which changes rounding only; null: all logits."""
    checkpoint_interval: int = Field(default=500, gt=0)
    """Steps between checkpoints."""
    keep_checkpoints: int = Field(default=2, gt=0)
    """Number of newest checkpoints that are kept."""
    log_interval: int = Field(default=10, gt=0)
    """Steps between lines of train.jsonl."""
    pipeline: Pipeline | None = None
    """Split of the model over IPUs, for devices that have one; a recipe for a machine has it under `on`."""


class Run(MachineSettings):
    """Machine, parallelism, logging and checkpoints. These keys are not part of the fingerprint."""

    machine: Slug | None = None
    """Machine on which `results/NAME` runs: the name of a file in `recipes/machines/`, which determines device, topology and
    processes; `results/NAME@MACHINE` runs on another one. null: the machine at hand, with the keys of this section."""
    device: Annotated[str, NameIn(DEVICES)] = HOST
    """Device that trains."""
    processes: int = Field(default=1, gt=0)
    """Number of processes that share each global batch: one per GPU; any number on a CPU."""
    topology: str | None = None
    """Slice of TPUs by Google Cloud's name, such as v3-8; null: the slice that the machine has."""
    padding_mask: Literal["where_padded", "always"] = "where_padded"
    """Mask of padding in attention, on cpu and cuda. where_padded: none where every sequence of the examples is full, so that
    FlashAttention applies; always: one in every batch."""
    keep_every: int | None = Field(default=None, gt=0)
    """Keep every so-manyth checkpoint as well; null: none."""
    validation_interval: int | None = Field(default=None, gt=0)
    """Steps between validations on held-out examples, whose loss is logged in train.jsonl; null: no validation."""
    validation_batches: int = Field(default=20, gt=0)
    """Number of global batches in each validation, always the same ones; fewer if there are fewer examples."""
    checkpoints_to: Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*://[^@?\s]+$")] | None = None
    """Address of a store, such as gs://BUCKET/relm, where fsspec has a package for it: checkpoints and logs are pushed there
    while a phase trains, and the newest ones are pulled before it begins; null: they stay on the machine."""
    loggers: list[Literal["tensorboard", "wandb", "trackio"]] = Field(default_factory=list)
    """Loggers that receive the lines of train.jsonl as well; trackio writes to the disk, and wandb unless WANDB_MODE=online."""
    peak_teraflops: float | None = Field(default=None, gt=0)
    """Peak throughput of one device in 10^12 operations per second, for the utilisation in train.jsonl; null: the published
    peak of the machine or of a known accelerator, and no utilisation for a CPU without one."""

    @model_validator(mode="after")
    def keys_go_with_the_device(self) -> Self:
        device, known = DEVICES[self.device], DEVICES[self.device].topologies
        if self.topology is not None and self.topology not in known:
            expected = f"one of {', '.join(known)}" if known else "none"
            raise ValueError(f"topology: with device: {self.device} expected {expected}; found {self.topology}")
        if self.loss_chunk is not None and not device.runs_torch:
            names = " or ".join(other.name for other in DEVICES if other.runs_torch)
            way_out = "; set pipeline.loss_chunk instead" if device.pipelined else ""
            raise ValueError(f"loss_chunk ({self.loss_chunk}) needs device: {names}, found {self.device}; remove it{way_out}")
        return self

    @property
    def devices_of_process(self) -> int:
        """Number of devices over which one process splits its micro-batch: those of its topology, otherwise 1."""
        return DEVICES[self.device].topologies[self.topology].devices if self.topology else 1

    @property
    def one_of_host(self) -> bool:
        """True if the topology is one device of a host, whose others stay idle."""
        return self.topology is not None and DEVICES[self.device].topologies[self.topology].one_of_host

    def on_one_device(self) -> "Run":
        """Return the section with one device of its topology, if it names one."""
        return self if self.topology is None else self.model_copy(update={"topology": find_one_device(self.topology)})


class OnMachine(MachineSettings):
    """Keys of `run` for one machine; absent: as elsewhere in the recipe, or chosen."""

    micro_batch_size: int | None = Field(default=None, gt=0)
    """Sequences per forward pass of one process; null: as many as fit into the machine's memory. It follows from a pipeline."""

    @model_validator(mode="after")
    def the_pipeline_has_the_micro_batch(self) -> Self:
        if self.pipeline is not None and self.micro_batch_size is not None:
            raise ValueError(
                f"micro_batch_size ({self.micro_batch_size}): follows from pipeline.micro_batch_size "
                f"({self.pipeline.micro_batch_size}); remove it"
            )
        return self
