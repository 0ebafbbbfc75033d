"""The memory and disk that a phase needs at least, by arithmetic, compared with the machine's before it begins.

Activations are not counted here: `relm.training.activations` bounds them from above, and `relm rehearse` measures them. Imports
no torch.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from relm.formatting import format_bytes
from relm.limits import require_disk, require_memory
from relm.models.configuration import Configuration
from relm.recipes.devices import DEVICES
from relm.recipes.optimization import OPTIMIZERS, Optimizer
from relm.recipes.phase import Phase
from relm.recipes.run import Run
from relm.training.arithmetic import lengths, model_weights, parameter_count
from relm.training.micro_batches import micro_batch_size

# Bytes of an element.
FLOAT, HALF = 4, 2


class State(NamedTuple):
    """Memory of a model's training state in one process, in bytes; activations come on top."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """Return the total: training takes at least this memory."""
        return sum(self)


def sequences_per_device(phase: Phase, run: Run) -> int:
    """Return the count of a micro-batch's sequences that each device computes at once."""
    return -(-micro_batch_size(phase, run.micro_batch_size, run.processes) // run.devices_of_process)


def state_bytes(config: Configuration, optimizer: Optimizer) -> State:
    """Return the memory of a model's training state in each process, or on each device of an accelerator."""
    weights = _element_size(optimizer) * parameter_count(config)
    return State(weights, gradients=weights, optimizer=optimizer_bytes(config, optimizer))


def _element_size(optimizer: Optimizer) -> int:
    """Return the bytes of one element of the weights or of the optimizer's state."""
    return HALF if optimizer.state_precision == "bfloat16" else FLOAT


def optimizer_bytes(config: Configuration, optimizer: Optimizer) -> int:
    """Return the size of an optimizer's state, in bytes."""
    count = OPTIMIZERS[optimizer.name].count_state
    elements = sum(weights.times * count(weights.shape, optimizer) for weights in model_weights(config))
    return _element_size(optimizer) * elements


class Disk(NamedTuple):
    """Disk space of a phase's files, in bytes."""

    checkpoint: int
    """Weights and the optimizer's state."""
    checkpoints: int
    """The largest count of checkpoints, including the one that is being written."""
    model: int
    """The finished model, in float32."""

    @property
    def total(self) -> int:
        """Return the total size."""
        return self.checkpoints * self.checkpoint + self.model


def disk_bytes(config: Configuration, phase: Phase, run: Run) -> Disk:
    """Return the largest size of a phase's run folder."""
    state = state_bytes(config, phase.optimizer)
    forever = phase.steps // (run.checkpoint_interval * run.keep_every) if run.keep_every else 0
    return Disk(state.weights + state.optimizer, run.keep_checkpoints + 2 + forever, FLOAT * parameter_count(config))


def require_resources(config: Configuration, phase: Phase, run: Run, run_folder: Path) -> None:
    """Raise if a phase cannot fit into memory, or does not fit onto the disk of its run folder."""
    require_state_memory(config, phase, run)
    checkpoints, model = missing_disk(config, phase, run, run_folder)
    count = checkpoints // disk_bytes(config, phase, run).checkpoint
    words = f"{count:,} checkpoints (run.keep_checkpoints) and a model of {parameter_count(config):,} parameters"
    require_disk(run_folder, checkpoints + model, words)


def missing_disk(config: Configuration, phase: Phase, run: Run, run_folder: Path) -> tuple[int, int]:
    """Return the bytes that a phase has yet to write into its run folder: of checkpoints, without those there, and a model."""
    files = disk_bytes(config, phase, run)
    present = len(list((run_folder / "checkpoints").glob("step-*")))
    return max(files.checkpoints - present, 1) * files.checkpoint, files.model


def require_state_memory(config: Configuration, phase: Phase, run: Run) -> None:
    """Raise if a phase's weights, gradients, optimizer state and logits alone exceed the memory of this machine.

    Other activations are not counted, so a phase that passes may still not fit. An accelerator's own memory is not checked.
    """
    for needed, work, remedy in list_memory_needs(config, phase, run):
        require_memory(needed, work, remedy)


def list_memory_needs(config: Configuration, phase: Phase, run: Run) -> Iterator[tuple[int, str, str]]:
    """Yield the bytes of main memory that a phase takes at least, what they hold, and what to do where there are fewer.

    A device that takes whole updates has a worker with its own copy of the state.
    """
    device, whole = DEVICES[run.device], state_bytes(config, phase.optimizer)
    work = f"training {parameter_count(config):,} parameters"
    smaller = "make the model smaller (fewer model.layers, or a smaller hidden size)"
    kept = whole.weights + whole.optimizer
    if device.pipelined:
        worker = whole.total if device.in_main_memory else kept
        yield kept + worker, f"{work}: weights and optimizer state of the training loop and of its worker alone", smaller
    if not device.in_main_memory:
        return
    of_each = "" if run.processes == 1 else f" in each of {run.processes:,} processes (run.processes)"
    fewer = smaller if run.processes == 1 else f"{smaller}, lower run.processes"
    yield run.processes * whole.total, f"{work}: {format_state(whole)}{of_each} alone", fewer
    size, logits = micro_batch_size(phase, run.micro_batch_size, run.processes), logits_bytes(config, phase, run)
    yield (
        run.processes * (whole.total + logits),
        f"{work}: {format_state(whole)} and logits {format_bytes(logits)} of {size:,} sequences at once{of_each} alone",
        f"lower run.micro_batch_size, {fewer}" if size > 1 else fewer,
    )


def format_state(state: State) -> str:
    """Return the parts of a training state.

    >>> format_state(State(weights=4_000, gradients=4_000, optimizer=8_000))
    'weights 4 kB, gradients 4 kB, optimizer 8 kB'
    """
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in state._asdict().items() if size)


def logits_bytes(config: Configuration, phase: Phase, run: Run) -> int:
    """Return the size of the logits of one micro-batch in the shorter of the types that they can have."""
    return HALF * sequences_per_device(phase, run) * lengths(phase).scored * config.vocabulary_size
