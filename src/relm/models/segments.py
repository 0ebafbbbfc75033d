"""The forward pass of a model as segments in the order of their execution, for devices that split a model into a pipeline."""

from __future__ import annotations

from typing import Callable, Dict, Mapping, NamedTuple

from torch import Tensor

from relm.models.losses import Term

State = Dict[str, Tensor]
"""The tensors that one segment passes to the next, by name."""
RunSegment = Callable[[Mapping[str, Tensor], State], State]


class ModelSegment(NamedTuple):
    """One part of a model that is wholly on one device of a pipeline."""

    name: str
    """token_embedding, position_embedding, layers.N or head."""
    parameters: tuple[str, ...]
    """The names of the model's parameters that it reads; several segments read a tied parameter."""
    run: RunSegment
    """Function (micro-batch, state of the previous segment, empty for the first) -> state. The host sends the micro-batch to
    every segment. The state is `hidden`, the residual stream; the head's has the loss's terms, by the names TERM.nats,
    TERM.count and TERM.correct."""


def state_of(terms: Mapping[str, Term]) -> State:
    """Return the head's state, which has the terms of the loss."""
    return {f"{name}.{key}": value for name, term in terms.items() for key, value in term._asdict().items()}


def terms_of(state: State) -> dict[str, Term]:
    """Return the terms of the loss in the head's state."""
    names = dict.fromkeys(name.rpartition(".")[0] for name in state)
    return {name: Term(state[f"{name}.nats"], state[f"{name}.count"], state[f"{name}.correct"]) for name in names}
