"""Texts that one IPU writes in one call of it, by a loop on the device."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteria

from relm.devices.ipu.decoding import TokenRule
from relm.evaluation.ipu_model import IpuCausalModel, WritingProgram
from relm.evaluation.sampling import Sampling


class LoopContinuer:
    """A model on one IPU with the choice of tokens of one batch; fulfils `relm.evaluation.continuation.Continuer`."""

    pads = at_once = True

    def __init__(self, model: IpuCausalModel, rule: TokenRule, streams: Sequence[torch.Generator]) -> None:
        """Keep the model, the rule, and the random generator of each text of the batch."""
        self.positions: int | None = model.positions
        self._model, self._rule, self._streams = model, rule, streams

    def compile(self, texts: Sequence[Sequence[int]], tokens: int) -> None:
        """Run a new program once, if texts with `tokens` more ids need one, so that the time of compiling it is not theirs."""
        self._model.prepare_writing(WritingProgram(len(texts), max(map(len, texts)), tokens, self._rule))

    def extend(
        self, texts: Sequence[Sequence[int]], tokens: int, processors: LogitsProcessorList, criterion: StoppingCriteria
    ) -> None:
        """Continue all texts of the batch; see `Continuer`.

        The device chooses all tokens, so `processors` have nothing to do, and the criterion ends no text before the last token.
        """
        noise = draw_noise(self._streams, tokens, self._rule.top_k) if self._rule.draws else None
        for column in self._model.write(texts, tokens, self._rule, noise).T:
            criterion(column[:, None], column)


def draw_noise(streams: Sequence[torch.Generator], tokens: int, top_k: int) -> Tensor:
    """Return standard Gumbel draws, (streams, tokens, top_k) float32, each text's from its own generator."""
    return torch.stack([-torch.empty(tokens, top_k).exponential_(generator=stream).log() for stream in streams])


def find_obstacle(model: IpuCausalModel, longest: int, sampling: Sampling) -> str | None:
    """Return why a loop on the device cannot write texts, as a sentence ends after "since"; None if it can.

    Args:
        longest: tokens of the longest text at its end.
    """
    if model.ipus > 1:
        return f"the model is on {model.ipus} IPUs, and a loop on the device is on one"
    if model.positions is not None and longest - 1 > model.positions:  # the last token is not read
        return f"a text may have {longest} tokens, and the model has {model.positions} positions"
    if sampling.repetition_penalty != 1:
        return "a loop on the device has no repetition penalty"
    if sampling.draws and sampling.uniform_top_k is None and sampling.top_k is None:
        return "a loop on the device draws among the likeliest tokens alone, and there is no top-k"
    return None


def rule_of(sampling: Sampling, vocabulary_size: int) -> TokenRule:
    """Return the rule by which a device chooses tokens, for a sampling without an obstacle."""
    if not sampling.draws:
        return TokenRule(1)
    if sampling.uniform_top_k is not None:
        return TokenRule(min(sampling.uniform_top_k, vocabulary_size), uniform=True)
    assert sampling.top_k is not None, "it would be an obstacle"
    return TokenRule(min(sampling.top_k, vocabulary_size), sampling.temperature, sampling.top_p)
