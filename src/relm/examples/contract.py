"""The interface between training and the examples of every objective: their number, and a batch of given indices."""

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from relm.examples.draws import below
from relm.examples.order import epochs_of, example_indices, row_keys
from relm.examples.tokenization.tokenizer_files import SpecialIds

Integers = npt.NDArray[np.int64]
# Name -> (examples, ...) array; integers as int64, flags as bool and scores as float32, ready for `torch.from_numpy`.
Batch = dict[str, npt.NDArray[Any]]

IGNORED = -100
"""The label that is not scored, as in PyTorch's cross-entropy."""


class Vocabulary(NamedTuple):
    """The tokens of generated examples."""

    size: int
    """Exclusive limit of token ids."""
    special: SpecialIds


class Examples(Protocol):
    """The examples of one split, by index.

    Names in a batch, by objective, where L is the sequence length, T the target's and P the capacity for masked positions:

    - causal: ``input_ids`` (examples, L), ``labels`` (examples, L); with document attention ``document_ids`` (examples, L),
      counted from 0 in each row.
    - masked: ``input_ids``, ``attention_mask``, ``token_type_ids`` (examples, L); ``masked_positions``, ``masked_labels``
      (examples, P), ascending, unused entries at the end with position 0 and label `IGNORED`; with sentence pairs
      ``next_sentence_labels`` (examples,), 0 where the second segment follows the first, 1 where it is random.
    - seq2seq: ``input_ids``, ``attention_mask`` (examples, L); ``labels`` (examples, T), padded with `IGNORED`.
    - spans, two_classes, three_classes, score: ``input_ids``, ``attention_mask``, ``token_type_ids`` (examples, L);
      ``answer_positions`` (examples, 2), ``class_labels`` (examples,) or ``scores`` (examples,).
    """

    def __len__(self) -> int:
        """Return the number of examples in an epoch."""

    def batch(self, indices: Integers, epochs: Integers) -> Batch:
        """Return the examples with these indices in their epochs, in this order.

        `indices`, (examples,), are 0 to len(self) - 1, otherwise IndexError is raised. `epochs`, (examples,), count from 0;
        draws that differ between epochs depend on them.
        """


def numbers_at(examples: Examples, order_seed: int, positions: Integers) -> tuple[Integers, Integers]:
    """Return the indices and epochs of the examples at some positions of a run, the arguments of `Examples.batch`.

    Positions count over all epochs. Examples with `is_ordered` are read from first to last, those with `is_drawn` with
    replacement, all others in the order of a permutation; the seed decides the permutation or the draws.
    """
    size = len(examples)
    if getattr(examples, "is_ordered", False):
        return positions % size, epochs_of(positions, size)
    if getattr(examples, "is_drawn", False):
        return draw_indices(order_seed, positions, size), epochs_of(positions, size)
    return example_indices(order_seed, positions, size), epochs_of(positions, size)


def draw_indices(seed: int, positions: Integers, size: int) -> Integers:
    """Return an example for each position, drawn with replacement, uniformly and independently; both are (n,)."""
    return below(row_keys("examples with replacement", seed, np.zeros_like(positions), positions), size)


def require_indices(indices: npt.NDArray[np.integer], size: int) -> None:
    """Raise IndexError unless all indices are below `size`."""
    if indices.size and not 0 <= int(indices.min()) <= int(indices.max()) < size:
        raise IndexError(f"examples are 0 to {size - 1}, requested {indices.min()} to {indices.max()}")
