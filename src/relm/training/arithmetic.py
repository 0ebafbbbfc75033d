"""Parameters of a model, and floating-point operations of its matrix products, by arithmetic. Imports no torch.

A multiplication with an addition counts as two operations. Only products that are computed count: the head's at scored
positions, a BERT's last layer at positions that are read, a T5's decoder over its own length. Normalisation, activations,
softmax and the optimizer, whose operations grow with the width and not with its square, are left out, as in the usual
references for utilisation: Narayanan et al. 2021 (arXiv 2104.04473), appendix A, and Chowdhery et al. 2022 (PaLM, arXiv
2204.02311), appendix B.
"""

from typing import NamedTuple

from relm.models.configuration import Configuration
from relm.models.counting import Lengths, Tensors
from relm.recipes.architectures import ARCHITECTURES
from relm.recipes.declaration import load
from relm.recipes.phase import Phase
from relm.recipes.run import Run

# The gradient of a product is two products of its size: by its input, and by its weight.
BACKWARD = 2


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
    """Return a model's parameters, and what it multiplies the positions of one sequence by."""
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

        For a GPT-2 of N parameters without positions, biases and normalisation, with n layers, width h and B sequences of L
        tokens, these are ``B * L * (6 * N + 12 * n * h * L)``, as in PaLM, appendix B, with h for its heads times their size,
        and ``72 * B * L * n * h ** 2 * (1 + L / (6 * h) + V / (12 * n * h))``, as in Narayanan et al., appendix A. The whole
        matrix of attention scores counts, including the causally masked half, as in both.
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
