"""A model on several simulated IPUs in plain torch, which exchange only the tensors that a pipeline sends.

Each IPU has a copy of the model without the parameters of the others, so a segment on the wrong IPU cannot compute.
"""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import torch
from torch import Tensor, nn

from relm.devices.ipu.partition import ipus_of_parameters
from relm.devices.ipu.schedule import PipelineStage, Work, pipeline_schedule, stages_of
from relm.models.contract import LanguageModel
from relm.models.losses import Term
from relm.models.segments import ModelSegment, State, terms_of


class SeededMicroBatch(NamedTuple):
    """The input of one forward pass of one replica."""

    batch: Mapping[str, Tensor]
    divisors: Mapping[str, float]
    """Term -> divisor of its nats in the loss of the update."""
    seed: int
    """Seed of dropout."""


class Outcome(NamedTuple):
    """The result of one micro-batch."""

    loss: Tensor
    """Its part of the loss of the update, without the loss scale."""
    terms: dict[str, Term]


class _Run(NamedTuple):
    """The tensors of a micro-batch that an IPU keeps between the forward and the backward pass of a stage."""

    inputs: State
    outputs: State | None
    """With their graph; None: computed again from the inputs."""


class ForeignParameter(Tensor):
    """A parameter of another IPU: any operation on it raises an error that names it."""

    parameter: str
    lies_on: int

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        foreign = next(_foreign((args, kwargs or {})))
        raise RuntimeError(f"{foreign.parameter} is on IPU {foreign.lies_on}, but another one read it")


def _foreign(values: Any) -> Iterator[ForeignParameter]:
    """Yield the foreign parameters among nested values."""
    if isinstance(values, ForeignParameter):
        yield values
    elif isinstance(values, (tuple, list, dict)):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _foreign(value)


def make_foreign_parameter(name: str, ipu: int) -> ForeignParameter:
    """Return the placeholder for a parameter of `ipu` on the other IPUs."""
    foreign = torch.empty(0, device="meta").as_subclass(ForeignParameter)
    foreign.parameter, foreign.lies_on = name, ipu
    return foreign


def build_on_ipu(build: Callable[[], LanguageModel], ipu: int, lies_on: Mapping[str, int]) -> LanguageModel:
    """Return a copy of the model with the unset parameters of one IPU; reading another's raises an error."""
    with torch.device("meta"):  # so that parameters of other IPUs take no memory
        model = build()
    for name, parameter in list(model.named_parameters()):
        module, _, leaf = name.rpartition(".")
        owner = lies_on[name]
        own = nn.Parameter(torch.empty(parameter.shape)) if owner == ipu else make_foreign_parameter(name, owner)
        model.get_submodule(module)._parameters[leaf] = own  # type: ignore[assignment]
    return model


def derive_seed(seed: int, name: str) -> int:
    """Return the seed of a generator, from a seed and a name."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@contextmanager
def seeded(seed: int, name: str) -> Iterator[None]:
    """Draw random numbers from a seed and a name, and restore the generator afterwards."""
    kept = torch.get_rng_state()
    torch.default_generator.manual_seed(derive_seed(seed, name))
    try:
        yield
    finally:
        torch.set_rng_state(kept)


class SimulatedPipeline:
    """One replica of a model, divided over IPUs."""

    def __init__(
        self,
        build: Callable[[], LanguageModel],
        placement: Sequence[tuple[str, int]],
        recompute: bool,
        autocast: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Build the copies of the model with unset weights.

        With `recompute`, stages before the last keep only their inputs, and compute the rest again in the backward pass.
        """
        with torch.device("meta"):
            whole = build()
        lies_on = ipus_of_parameters(whole.segments(), placement)
        self.ipus = {ipu: build_on_ipu(build, ipu, lies_on) for ipu in sorted({ipu for _, ipu in placement})}
        self.parameters: dict[str, nn.Parameter] = {
            name: parameter
            for model in self.ipus.values()
            for name, parameter in model.named_parameters()
            if isinstance(parameter, nn.Parameter)
        }
        """The model's parameters by name, in the model's order, each on its IPU."""
        self.parameters = {name: self.parameters[name] for name, _ in whole.named_parameters()}
        self.stages = stages_of(placement)
        self._segments: dict[int, dict[str, ModelSegment]] = {
            ipu: {segment.name: segment for segment in model.segments()} for ipu, model in self.ipus.items()
        }
        self._recompute, self._autocast = recompute, autocast

    def accumulate(self, micro_batches: Sequence[SeededMicroBatch], loss_scale: float = 1.0) -> list[Outcome]:
        """Add the gradient of the micro-batches' loss, times the loss scale, to the parameters'; return their results."""
        transfers = _Transfers()
        for work in pipeline_schedule(len(self.stages), len(micro_batches)):
            micro_batch = micro_batches[work.micro_batch]
            if work.is_backward:
                self._backward(work, micro_batch, transfers, loss_scale)
            else:
                self._forward(work, micro_batch, transfers)
        return [transfers.outcomes[number] for number in range(len(micro_batches))]

    def _forward(self, work: Work, micro_batch: SeededMicroBatch, transfers: _Transfers) -> None:
        key, is_last = (work.stage, work.micro_batch), work.stage == len(self.stages) - 1
        inputs = transfers.sent.pop(key, {})
        # The last stage goes back at the same clock, and has nothing to compute again.
        keeps_outputs = is_last or not self._recompute
        with torch.set_grad_enabled(keeps_outputs):
            outputs = self._through(self.stages[work.stage], micro_batch, inputs)
        transfers.runs[key] = _Run(inputs, outputs if keeps_outputs else None)
        if not is_last:
            transfers.sent[work.stage + 1, work.micro_batch] = _cut(outputs)

    def _backward(self, work: Work, micro_batch: SeededMicroBatch, transfers: _Transfers, loss_scale: float) -> None:
        key = (work.stage, work.micro_batch)
        inputs, outputs = transfers.runs.pop(key)
        if outputs is None:  # the seed of the forward pass gives the same dropout
            outputs = self._through(self.stages[work.stage], micro_batch, inputs)
        if work.stage == len(self.stages) - 1:
            terms = terms_of(outputs)
            loss = _part_of_loss(terms, micro_batch.divisors)
            torch.autograd.backward(loss * loss_scale)
            transfers.outcomes[work.micro_batch] = Outcome(loss.detach(), _detached(terms))
        else:
            gradients = transfers.returned.pop(key)
            torch.autograd.backward([outputs[name] for name in gradients], list(gradients.values()))
        if work.stage > 0:
            back = {name: tensor.grad for name, tensor in inputs.items() if tensor.grad is not None}
            transfers.returned[work.stage - 1, work.micro_batch] = back

    def _through(self, stage: PipelineStage, micro_batch: SeededMicroBatch, state: State) -> State:
        """Return the state after all segments of a stage; dropout depends only on micro-batch and segment."""
        for name in stage.segments:
            with seeded(micro_batch.seed, name), self._autocast():
                state = self._segments[stage.ipu][name].run(micro_batch.batch, state)
        return state


class _Transfers:
    """The tensors in flight between stages during one update, by (stage, micro-batch)."""

    def __init__(self) -> None:
        self.sent: dict[tuple[int, int], State] = {}
        """Inputs that the stage before has computed."""
        self.returned: dict[tuple[int, int], State] = {}
        """Gradients of the stage's outputs, from the stage after."""
        self.runs: dict[tuple[int, int], _Run] = {}
        """The tensors that stages keep until their backward pass."""
        self.outcomes: dict[int, Outcome] = {}
        """Results by micro-batch."""


def _cut(state: State) -> State:
    """Return copies of the state without its graph; floating-point ones collect gradients."""
    return {name: value.detach().clone().requires_grad_(value.is_floating_point()) for name, value in state.items()}


def _part_of_loss(terms: Mapping[str, Term], divisors: Mapping[str, float]) -> Tensor:
    """Return a micro-batch's part of the loss of its update."""
    if set(terms) != set(divisors):
        raise ValueError(f"the model's terms are {sorted(terms)}, but there are divisors for {sorted(divisors)}")
    quotients = [term.nats / divisors[name] for name, term in terms.items()]
    return sum(quotients[1:], quotients[0])


def _detached(terms: Mapping[str, Term]) -> dict[str, Term]:
    return {name: Term(*(value.detach() for value in term)) for name, term in terms.items()}
