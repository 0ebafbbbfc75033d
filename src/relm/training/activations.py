"""An upper bound of the memory that activations take on one device, by arithmetic. Imports no torch.

An architecture counts what the forward pass keeps of each sequence, and its largest temporary tensors. What the weights add is
counted here: their copies in lower precision, and a gradient before it is added to that of the micro-batches before.
"""

from relm.models.configuration import Configuration
from relm.models.counting import Activations, Computing
from relm.recipes.architectures import ARCHITECTURES
from relm.recipes.declaration import load
from relm.recipes.devices import DEVICES
from relm.recipes.phase import Phase
from relm.recipes.run import Run
from relm.training.arithmetic import lengths, model_weights, parameter_count
from relm.training.resources import FLOAT, HALF

# Largest `elements_per_operation` of `relm.devices.contract.Device`.
UPDATED_TOGETHER = 1 << 26


def computing(phase: Phase, run: Run) -> Computing:
    """Return the facts of a phase's precision and a run's device on which the size of activations depends."""
    device = DEVICES[run.device]
    element = FLOAT if phase.precision == "float32" else HALF
    # On a CPU, torch's dropout multiplies by a mask of the tensor's own type; elsewhere masks are of booleans.
    return Computing(
        element=element,
        mask=element if device.in_main_memory else 1,
        attention=device.attention,
        compiled=device.compiles if run.compile is None else run.compile,
        loss_chunk=run.loss_chunk,
    )


def activation_bytes(config: Configuration, phase: Phase, run: Run, sequences: int) -> int | None:
    """Return the largest memory of activations on one device that computes so many sequences at once, gradients not included.

    None for an architecture that does not count its activations.
    """
    function = ARCHITECTURES[config.architecture].activations
    if function is None:
        return None
    how = computing(phase, run)
    positions = lengths(phase)
    parts: list[Activations] = [part for part in load(function)(config, positions, how) if part.times]
    again = [run.activation_checkpointing and part.inputs is not None for part in parts]
    kept = sum(part.times * (part.inputs or 0 if twice else part.kept) for part, twice in zip(parts, again, strict=True))
    momentary = max(part.temporary + (part.kept if twice else 0) for part, twice in zip(parts, again, strict=True))
    if run.loss_chunk is not None:  # the gradient of the head's input, which the forward pass leaves
        kept += FLOAT * positions.scored * _hidden_size(config)
    return sequences * (kept + momentary) + _weight_bytes(config, how)


def _hidden_size(config: Configuration) -> int:
    """Return the width of the head's input, which is that of the token embedding."""
    return next(weights.shape[1] for weights in model_weights(config) if weights.kind == "token_embedding")


def _weight_bytes(config: Configuration, how: Computing) -> int:
    """Return the size of the weights' copies in lower precision, and of the largest gradient while it is computed."""
    largest = max(weights.size for weights in model_weights(config))
    copies = how.element * (parameter_count(config) + largest) if how.element < FLOAT else 0
    # A compiler that writes attention out makes one program of a micro-batch, which adds gradients in place.
    return copies + (0 if how.attention == "written_out" else FLOAT * largest)


def update_bytes(config: Configuration) -> int:
    """Return an upper bound of an optimizer's temporary memory, when the activations are gone.

    It updates one large weight at a time, or smaller ones together, with at most three temporary numbers for each of theirs.
    """
    largest = max(weights.size for weights in model_weights(config))
    return 3 * FLOAT * min(parameter_count(config), max(largest, UPDATED_TOGETHER))
