"""Memory and disk that a phase needs for certain, by arithmetic, compared with what there is before it begins.

Activations are measured and not modelled: by a trial (`relm estimate --trial`, `relm rehearse`). Imports no torch.
"""

from pathlib import Path
from typing import NamedTuple

from relm.limits import require_disk, require_memory
from relm.models.configuration import Configuration
from relm.recipes.devices import DEVICES
from relm.recipes.optimization import OPTIMIZERS, Optimizer
from relm.recipes.recipe import Phase, Run
from relm.training.arithmetic import lengths, model_weights, parameter_count
from relm.training.micro_batches import micro_batch_size

# Bytes of a number.
FLOAT, HALF = 4, 2


class State(NamedTuple):
    """What a process holds of a model from the first step on, in bytes; activations come on top."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of it: no training takes less memory."""
        return sum(self)


def sequences_per_device(phase: Phase, run: Run) -> int:
    """Return how many sequences of a micro-batch each device computes at once."""
    return -(-micro_batch_size(phase, run.micro_batch_size, run.processes) // run.devices_of_process)


def state_bytes(config: Configuration, optimizer: Optimizer) -> State:
    """Return what each process holds of a model, on an accelerator each device."""
    weights = _bytes_of_number(optimizer) * parameter_count(config)
    return State(weights, gradients=weights, optimizer=optimizer_bytes(config, optimizer))


def _bytes_of_number(optimizer: Optimizer) -> int:
    """Return the size of one number that is learnt, or that the optimizer remembers."""
    return HALF if optimizer.state_precision == "bfloat16" else FLOAT


def optimizer_bytes(config: Configuration, optimizer: Optimizer) -> int:
    """Return the size of an optimizer's state."""
    count = OPTIMIZERS[optimizer.name].count_state
    numbers = sum(weights.times * count(weights.shape, optimizer) for weights in model_weights(config))
    return _bytes_of_number(optimizer) * numbers


class Disk(NamedTuple):
    """What a phase writes, in bytes."""

    checkpoint: int
    """Weights and the optimizer's state."""
    checkpoints: int
    """How many there may be, the one that is being written included."""
    model: int
    """The finished model, in float32."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.checkpoints * self.checkpoint + self.model


def disk_bytes(config: Configuration, phase: Phase, run: Run) -> Disk:
    """Return what the run folder of a phase holds at most."""
    state = state_bytes(config, phase.optimizer)
    forever = phase.steps // (run.checkpoint_interval * run.keep_every) if run.keep_every else 0
    return Disk(state.weights + state.optimizer, run.keep_checkpoints + 2 + forever, FLOAT * parameter_count(config))


def require_resources(config: Configuration, phase: Phase, run: Run, run_folder: Path) -> None:
    """Refuse a phase that cannot fit into memory, or does not fit onto the disk of its run folder.

    Raises:
        RelmError: it does not; says how much is missing.
    """
    require_state_memory(config, phase, run)
    files = disk_bytes(config, phase, run)
    present = len(list((run_folder / "checkpoints").glob("step-*")))
    missing = max(files.checkpoints - present, 1)
    needed = missing * files.checkpoint + files.model
    model = f"a model of {parameter_count(config):,} parameters"
    require_disk(run_folder, needed, f"{missing:,} checkpoints (run.keep_checkpoints) and {model}")


def require_state_memory(config: Configuration, phase: Phase, run: Run) -> None:
    """Refuse a phase whose weights, gradients, optimizer state and logits alone exceed the memory of this machine.

    Other activations are not counted, so a phase that passes may still not fit. An accelerator's own memory is not asked.

    Raises:
        RelmError: they do; says how much is missing.
    """
    if not DEVICES[run.device].in_main_memory:
        return
    state, logits = state_bytes(config, phase.optimizer).total, logits_bytes(config, phase, run)
    work = f"training {parameter_count(config):,} parameters"
    require_memory(run.processes * state, f"{work}: weights, gradients and optimizer state alone")
    size = micro_batch_size(phase, run.micro_batch_size, run.processes)
    require_memory(
        run.processes * (state + logits), f"{work} with run.micro_batch_size {size:,}: its logits and the state alone"
    )


def logits_bytes(config: Configuration, phase: Phase, run: Run) -> int:
    """Return the size of the logits of one micro-batch in the shorter of the types that they can have."""
    return HALF * sequences_per_device(phase, run) * lengths(phase).scored * config.vocabulary_size
