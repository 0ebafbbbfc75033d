"""How much memory and disk a phase will need, asked before it begins.

A process holds, at its peak,

    interpreter and libraries + weights + optimizer state + small tensors + the large tensors of one moment

Large tensors, over 32 MiB, go back to the system as soon as they are free, so that moment counts which asks for most: the
backward pass of the head, that of the last layer, the end of the backward pass, or the update. Smaller ones leave their place
in glibc's heap, where blocks aligned as torch's seldom fit again while others stand between them. As measured, gradients and
activations take the place of both, though one comes as the other goes; and from the second micro-batch on, when the gradients
of the first stand between, activations take theirs twice (`python benchmarks/estimate.py` prints what the kernel counts beside
this). On an accelerator torch's own allocator uses its memory again, and all tensors count as large ones.
"""

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path

from relm.limits import require_disk, require_memory
from relm.recipes.optimization import Optimizer
from relm.recipes.recipe import Phase, Run
from relm.recipes.topologies import TOPOLOGIES
from relm.training.activations import FLOAT, Activations, Tensors, activations
from relm.training.architecture import Config
from relm.training.arithmetic import parameter_shapes
from relm.training.micro_batches import micro_batch_size

# Of a trainer on a CPU, before there is a model: `python benchmarks/estimate.py base` measures it.
BASE = 375 * 10**6
# glibc's malloc: DEFAULT_MMAP_THRESHOLD_MAX of a 64-bit machine.
LARGE = 32 * 2**20
# Optimizer -> how many tensors of a parameter's size it makes anew while it updates it; torch's AdamW makes none.
MADE_BY_UPDATE = {"adamw": 1, "adam": 2, "lamb": 1, "adafactor": 2, "sgd": 1}


@dataclasses.dataclass(frozen=True)
class Memory:
    """What one process holds, in bytes."""

    base: int
    """Interpreter and libraries; 0 for an accelerator."""
    weights: int
    optimizer: int
    """Its state."""
    gradients: int
    activations: int
    """What a micro-batch's forward pass keeps for its backward pass, copies of weights in half precision included."""
    small: int
    """The place of gradients and activations that never goes back to the system."""
    large: dict[str, int]
    """What goes back, at each moment that may be the peak."""

    @property
    def peak_moment(self) -> str:
        """When most is held."""
        return max(self.large, key=self.large.__getitem__)

    @property
    def peak(self) -> int:
        """The most that is held."""
        return self.base + self.weights + self.optimizer + self.small + self.large[self.peak_moment]


def devices_of_slice(run: Run) -> int:
    """Return how many devices one process splits its micro-batch over: those of a TPU's slice, otherwise 1."""
    return TOPOLOGIES[run.topology].devices if run.device == "tpu" and run.topology else 1


def sequences_per_device(phase: Phase, run: Run) -> int:
    """Return how many sequences of a micro-batch each device computes at once."""
    return -(-micro_batch_size(phase, run.micro_batch_size, run.processes) // devices_of_slice(run))


def memory(config: Config, phase: Phase, run: Run) -> Memory:
    """Return what each process of a phase holds on a CPU, or the least that each device of an accelerator holds."""
    sequences = sequences_per_device(phase, run)
    kept = activations(config, phase, run, sequences)
    gradients = [_bytes_of_state(phase.optimizer) * math.prod(shape) for shape in parameter_shapes(config).values()]
    accumulates = phase.global_batch_size // run.processes > micro_batch_size(phase, run.micro_batch_size, run.processes)
    threshold = LARGE if run.device == "cpu" else 0
    tied = getattr(config, "tied_head", True)
    return Memory(
        base=BASE if run.device == "cpu" else 0,
        weights=sum(gradients),
        optimizer=optimizer_bytes(config, phase.optimizer),
        gradients=sum(gradients),
        activations=sum(kept.kept),
        small=_small(kept, gradients, accumulates, threshold),
        large=_large(kept, gradients, accumulates, tied, phase.optimizer, threshold),
    )


def _small(kept: Activations, gradients: Tensors, accumulates: bool, threshold: int) -> int:
    """The place that tensors up to the threshold take and keep."""

    def small(tensors: Iterable[int]) -> int:
        return sum(size for size in tensors if size <= threshold)

    passing = max(small(kept.of_head), small(kept.of_layer))
    return small(gradients) + (2 if accumulates else 1) * small(kept.kept) + passing


def _large(
    kept: Activations, gradients: Tensors, accumulates: bool, tied: bool, optimizer: Optimizer, threshold: int
) -> dict[str, int]:
    """What tensors beyond the threshold take at each moment.

    Args:
        accumulates: from the second micro-batch on, all gradients are there from the beginning.
        tied: the largest parameter, the token embedding, has a gradient of its own from either end of the model, and their sum.
    """

    def large(tensors: Iterable[int]) -> int:
        return sum(size for size in tensors if size > threshold)

    all_gradients, largest = large(gradients), large([max(gradients)])
    before = all_gradients if accumulates else 0
    at_the_end = (2 if tied else 0) + (1 if accumulates else 0)
    made = 0 if is_library_adamw(optimizer) else MADE_BY_UPDATE[optimizer.name]
    return {
        "the head's backward pass": before + large((*kept.kept, *kept.of_head)),
        "the last layer's backward pass": before + largest + large((*kept.layers, *kept.casts, *kept.of_layer)),
        "the end of the backward pass": all_gradients + at_the_end * largest,
        "the update": all_gradients + made * largest,
    }


def is_library_adamw(optimizer: Optimizer) -> bool:
    """Whether torch's fused AdamW makes the update, on a CPU or GPU."""
    plain = optimizer.name == "adamw" and optimizer.bias_correction and optimizer.form == "pytorch"
    return plain and optimizer.state_precision == "float32"


def _bytes_of_state(optimizer: Optimizer) -> int:
    """Of one number that is learnt, or of the optimizer's memory of it."""
    return 2 if optimizer.state_precision == "bfloat16" else FLOAT


def optimizer_bytes(config: Config, optimizer: Optimizer) -> int:
    """The optimizer's state: two moments in Adam and LAMB, one velocity in SGD with momentum, rows and columns in Adafactor."""
    moments = {"adamw": 2, "adam": 2, "lamb": 2, "sgd": int(optimizer.sgd.momentum > 0)}
    shapes = parameter_shapes(config).values()
    if optimizer.name in moments:
        numbers = moments[optimizer.name] * sum(math.prod(shape) for shape in shapes)
    else:
        first = 1 if optimizer.adafactor.beta1 is not None else 0
        numbers = sum(first * math.prod(shape) + _rows_and_columns(shape) for shape in shapes)
    return _bytes_of_state(optimizer) * numbers


def _rows_and_columns(shape: tuple[int, ...]) -> int:
    """Numbers that Adafactor keeps instead of a second moment of this shape."""
    return shape[0] if len(shape) < 2 else math.prod(shape[:-1]) + math.prod(shape[:-2]) * shape[-1]


@dataclasses.dataclass(frozen=True)
class Disk:
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


def disk(config: Config, phase: Phase, run: Run) -> Disk:
    """What the run folder of a phase will hold at most."""
    numbers = parameter_count(config)
    checkpoint = _bytes_of_state(phase.optimizer) * numbers + optimizer_bytes(config, phase.optimizer)
    forever = phase.steps // (run.checkpoint_interval * run.keep_every) if run.keep_every else 0
    return Disk(checkpoint, run.keep_checkpoints + 2 + forever, FLOAT * numbers)


def require_resources(config: Config, phase: Phase, run: Run, run_folder: Path) -> None:
    """Refuse a phase that does not fit into memory or onto the disk of its run folder.

    Raises:
        RelmError: it does not; says how much is missing.
    """
    require_training_memory(config, phase, run)
    parameters = parameter_count(config)
    files = disk(config, phase, run)
    present = len(list((run_folder / "checkpoints").glob("step-*")))
    missing = max(files.checkpoints - present, 1)
    needed = missing * files.checkpoint + files.model
    require_disk(run_folder, needed, f"{missing:,} checkpoints (run.keep_checkpoints) and a model of {parameters:,} parameters")


def require_training_memory(config: Config, phase: Phase, run: Run) -> None:
    """Refuse a phase that does not fit into the memory of this machine; what a GPU holds, it says by itself.

    Raises:
        RelmError: it does not; says how much is missing.
    """
    if run.device != "cpu":
        return
    wanted = memory(config, phase, run)
    sequences = micro_batch_size(phase, run.micro_batch_size, run.processes)
    # What the processes hold already is no longer available, so it is not asked for again.
    require_memory(
        run.processes * (wanted.peak - wanted.base),
        f"training {parameter_count(config):,} parameters, {sequences:,} sequences at once (run.micro_batch_size)",
    )


def parameter_count(config: Config) -> int:
    """Numbers that a model of this configuration learns."""
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())
