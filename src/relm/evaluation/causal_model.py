"""The contract of causal language models, which every evaluation of them calls."""

from pathlib import Path

from torch import Tensor

from relm.errors import RelmError


class CausalModel:
    """A causal language model on its device, without dropout."""

    folder: Path
    sha256: str
    """sha256 of the weights."""
    positions: int | None
    """Tokens of the longest sequence; None: any length."""
    vocabulary_size: int
    short_rows: int | None = None
    """Tokens of the longest row whose output padding does not change, which no batch mixes with longer rows; None: any."""

    def hidden(self, input_ids: Tensor) -> Tensor:
        """Return the head's input, (batch, sequence, width) on the device, for (batch, sequence) int64 ids on the host.

        Sequences may be padded at the end with any id, which earlier tokens do not see.
        """
        raise NotImplementedError

    def hidden_at(self, input_ids: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Return `hidden` at some positions, (positions, width), whose rows and columns are (positions,) int64 on the host."""
        hidden = self.hidden(input_ids)
        return hidden.flatten(0, 1)[(rows * input_ids.shape[1] + columns).to(hidden.device)]

    def head(self, hidden: Tensor) -> Tensor:
        """Return float32 logits of the next token, (positions, width) -> (positions, vocabulary), on the device."""
        raise NotImplementedError


def require_context(model: CausalModel, context: int) -> None:
    """Reject a context that is longer than the model's positions."""
    if context < 1 or (model.positions is not None and context > model.positions):
        raise RelmError(f"{model.folder}: has {model.positions} positions; a context of {context} does not fit")
