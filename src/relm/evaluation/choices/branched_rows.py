"""Rows of tokens that hold several sequences which begin alike: what these share once, and then a branch of each.

A token attends to what the sequences share and to its own branch, up to itself, so it has the hidden state that it has in its
own sequence. This is the tree attention of speculative decoding (Miao et al. 2023, SpecInfer, section 4.2) with one fork.
"""

from typing import NamedTuple

from torch import Tensor

from relm.models.gpt2 import Gpt2

SHARED, PADDING = 0, -1


class BranchedRows(NamedTuple):
    """A batch of rows, int64 on one device, each array (rows, length)."""

    input_ids: Tensor
    positions: Tensor
    """Number of each token in its sequence, from 0."""
    branches: Tensor
    """`SHARED`, then the number of each branch from 1, then `PADDING`."""

    def mask(self) -> Tensor:
        """Return true where a token, in the last axis but one, attends to another one, (rows, 1, length, length) bool."""
        reading, read = self.branches[:, None, :, None], self.branches[:, None, None, :]
        return ((read == reading) | (read == SHARED)).tril()


def hidden_of_branches(model: Gpt2, rows: BranchedRows, row: Tensor, column: Tensor) -> Tensor:
    """Return the head's input at some positions, (positions, hidden), by a model in evaluation mode."""
    body, mask = model.transformer, rows.mask()
    assert body.wpe is not None, "a GPT-2 has learnt positions"
    x = body.wte(rows.input_ids) + body.wpe.weight[rows.positions]
    for layer in body.h:
        x = layer(x, mask)
    normalised: Tensor = body.ln_f(x[row, column])
    return normalised
