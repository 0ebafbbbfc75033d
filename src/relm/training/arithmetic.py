"""A phase's parameters, operations, memory and disk space, by arithmetic. Imports no torch.

A multiplication with an addition counts as two operations. Only products that are computed count: the head's at scored
positions, a BERT's last layer at positions that are read, a T5's decoder over the target's length. Normalisation,
activations, softmax and the optimizer are left out, because their operations grow with the width and not with its square, as
in the usual references for utilisation: Narayanan et al. 2021 (arXiv 2104.04473), appendix A, and Chowdhery et al. 2022 (PaLM,
arXiv 2204.02311), appendix B.

Activations are bounded from above; `relm rehearse` measures them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from relm.formatting import format_bytes
from relm.limits import require_disk, require_memory
from relm.models.configuration import Configuration
from relm.models.counting import FLOAT, Activations, Computing, Lengths, Tensors
from relm.recipes.architectures import ARCHITECTURES
from relm.recipes.declaration import load
from relm.recipes.devices import DEVICES
from relm.recipes.optimization import OPTIMIZERS, Optimizer
from relm.recipes.phase import Phase
from relm.recipes.run import Run
from relm.training.micro_batches import micro_batch_size

# Bytes of an element in half precision.
HALF = 2
# The gradient of a product is two products of its size: by its input, and by its weight.
BACKWARD = 2
# Largest `elements_per_operation` of `relm.devices.contract.Device`.
UPDATED_TOGETHER = 1 << 26


class Parameters(NamedTuple):
    """The count of parameters of each kind; a tied parameter counts once."""

    token_embedding: int
    """A vector for every token; with a tied head, the projection to the vocabulary as well."""
    position_embeddings: int
    """Embeddings of positions and segments, and biases of relative distances."""
    matrices: int
    """Matrices of layers, and of heads before the vocabulary."""
    vectors: int
    """Biases and normalisation."""
    head: int
    """A projection to the vocabulary that is not tied."""

    @property
    def total(self) -> int:
        """Return the count of all parameters."""
        return sum(self)


def lengths(phase: Phase) -> Lengths:
    """Return the lengths of a phase's sequences, padding included."""
    return Lengths(*load(phase.declaration.lengths)(phase))


def tensors(config: Configuration, positions: Lengths) -> list[Tensors]:
    """Return a model's parameters and the other factors of its products for one sequence."""
    return list(load(ARCHITECTURES[config.architecture].tensors)(config, positions))


def model_weights(config: Configuration) -> list[Tensors]:
    """Return a model's parameters by kind and shape."""
    return [each for each in tensors(config, Lengths(0, 0, 0)) if each.kind in Parameters._fields]


def parameters(config: Configuration) -> Parameters:
    """Return the count of a model's parameters of each kind."""
    kinds = dict.fromkeys(Parameters._fields, 0)
    for each in model_weights(config):
        kinds[each.kind] += each.numbers
    return Parameters(**kinds)


def parameter_count(config: Configuration) -> int:
    """Return the count of a model's parameters."""
    return parameters(config).total


class Operations(NamedTuple):
    """Floating-point operations of one optimizer step, over the global batch."""

    forward: int
    backward: int
    recomputed: int
    """Operations of layers that activation checkpointing computes again: the hardware's work, not the model's."""

    @property
    def model(self) -> int:
        """Return the operations that the model requires, by which utilisation is defined: forward and backward pass.

        Let a GPT-2 have N parameters without positions, biases and normalisation, n layers, width h and a vocabulary of V. For
        B sequences of L tokens it requires ``B * L * (6 * N + 12 * n * h * L)``, as in PaLM, appendix B, with h for its heads
        times their size. This equals ``72 * B * L * n * h ** 2 * (1 + L / (6 * h) + V / (12 * n * h))``, as in Narayanan et
        al., appendix A. Both count the whole matrix of attention scores, including the causally masked half.
        """
        return self.forward + self.backward

    @property
    def hardware(self) -> int:
        """Return the operations that are executed."""
        return self.model + self.recomputed


def operations(config: Configuration, phase: Phase, run: Run) -> Operations:
    """Return the operations of one optimizer step over all devices."""
    computed = tensors(config, lengths(phase))
    forward = phase.global_batch_size * sum(each.operations for each in computed)
    again = phase.global_batch_size * sum(each.operations for each in computed if each.recomputed)
    recomputes = run.activation_checkpointing if run.pipeline is None else run.pipeline.recompute_layers
    return Operations(forward, BACKWARD * forward, again if recomputes else 0)


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
    element = HALF if optimizer.state_precision == "bfloat16" else FLOAT
    count = OPTIMIZERS[optimizer.name].count_state
    elements = sum(weights.times * count(weights.shape, optimizer) for weights in model_weights(config))
    weights = element * parameter_count(config)
    return State(weights, gradients=weights, optimizer=element * elements)


def _computing(phase: Phase, run: Run) -> Computing:
    """Return the facts that decide the size of activations."""
    device = DEVICES[run.device]
    element = FLOAT if phase.precision == "float32" else HALF
    # On a CPU, torch's dropout multiplies by a mask of the tensor's type; elsewhere masks are booleans.
    return Computing(
        element=element,
        mask=element if device.in_main_memory else 1,
        attention=device.attention,
        compiled=device.compiles if run.compile is None else run.compile,
        loss_chunk=run.loss_chunk,
    )


def activation_bytes(config: Configuration, phase: Phase, run: Run, sequences: int) -> int | None:
    """Return the peak memory of activations on one device, without gradients; None if the architecture counts none."""
    function = ARCHITECTURES[config.architecture].activations
    if function is None:
        return None
    how = _computing(phase, run)
    positions = lengths(phase)
    parts: list[Activations] = [part for part in load(function)(config, positions, how) if part.times]
    again = [run.activation_checkpointing and part.inputs is not None for part in parts]
    kept = sum(part.times * (part.inputs or 0 if twice else part.kept) for part, twice in zip(parts, again, strict=True))
    momentary = max(part.temporary + (part.kept if twice else 0) for part, twice in zip(parts, again, strict=True))
    if run.loss_chunk is not None:  # the gradient of the head's input, which the forward pass leaves
        kept += (
            FLOAT * positions.scored * next(each.shape[1] for each in model_weights(config) if each.kind == "token_embedding")
        )
    return sequences * (kept + momentary) + _weight_bytes(config, how)


def _weight_bytes(config: Configuration, how: Computing) -> int:
    """Return the bytes of the weights' copies in lower precision, and of the largest gradient while it is computed."""
    largest = max(weights.size for weights in model_weights(config))
    copies = how.element * (parameter_count(config) + largest) if how.element < FLOAT else 0
    # A compiler that writes attention out makes one program of a micro-batch, which adds gradients in place.
    return copies + (0 if how.attention == "written_out" else FLOAT * largest)


def update_bytes(config: Configuration) -> int:
    """Return an upper bound of an optimizer's temporary memory, which it takes after the activations are freed.

    It updates one large weight at a time, or several small ones, with at most three temporary numbers for each element.
    """
    largest = max(weights.size for weights in model_weights(config))
    return 3 * FLOAT * min(parameter_count(config), max(largest, UPDATED_TOGETHER))


class Disk(NamedTuple):
    """Disk space of a phase's files, in bytes."""

    checkpoint: int
    """Weights and the optimizer's state."""
    checkpoints: int
    """The most checkpoints at a time, including the one that is being written."""
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
    """Return the bytes that a phase has yet to write into its run folder: of checkpoints and of the model."""
    files = disk_bytes(config, phase, run)
    present = len(list((run_folder / "checkpoints").glob("step-*")))
    return max(files.checkpoints - present, 1) * files.checkpoint, files.model


def require_state_memory(config: Configuration, phase: Phase, run: Run) -> None:
    """Raise if a phase's weights, gradients, optimizer state and logits exceed the main memory of this machine.

    Other activations are not counted, so a phase that passes may still not fit. An accelerator's memory is not checked.
    """
    for needed, work, remedy in list_memory_needs(config, phase, run):
        require_memory(needed, work, remedy)


def list_memory_needs(config: Configuration, phase: Phase, run: Run) -> Iterator[tuple[int, str, str]]:
    """Yield the bytes of main memory that a phase takes at least, what they hold, and what to do if they are too many.

    The worker of a device that takes whole updates has a second copy of the state.
    """
    device, whole = DEVICES[run.device], state_bytes(config, phase.optimizer)
    work = f"training {parameter_count(config):,} parameters"
    smaller = "make the model smaller (fewer model.layers, or a smaller hidden size)"
    kept = whole.weights + whole.optimizer
    if device.pipelined:
        worker = whole.total if device.in_main_memory else kept
        yield kept + worker, f"{work}: weights and optimizer state of the training loop and its worker", smaller
    if not device.in_main_memory:
        return
    of_each = "" if run.processes == 1 else f" in each of {run.processes:,} processes (run.processes)"
    fewer = smaller if run.processes == 1 else f"{smaller}, lower run.processes"
    yield run.processes * whole.total, f"{work}: {format_state(whole)}{of_each}", fewer
    size = micro_batch_size(phase, run.micro_batch_size, run.processes)
    # In the shorter of the types that logits can have.
    logits = HALF * sequences_per_device(phase, run) * lengths(phase).scored * config.vocabulary_size
    yield (
        run.processes * (whole.total + logits),
        f"{work}: {format_state(whole)} and logits {format_bytes(logits)} of {size:,} sequences at once{of_each}",
        f"lower run.micro_batch_size, {fewer}" if size > 1 else fewer,
    )


def format_state(state: State) -> str:
    """Return the parts of a training state.

    >>> format_state(State(weights=4_000, gradients=4_000, optimizer=8_000))
    'weights 4 kB, gradients 4 kB, optimizer 8 kB'
    """
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in state._asdict().items() if size)
