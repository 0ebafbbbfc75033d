"""Continuation of batches of texts by a GPT-2 on IPUs: on one IPU in one call, by a loop on the device, else a call a token."""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from relm.devices.ipu.decoding import TokenRule
from relm.evaluation.generation.continuation import Continuer, Texts, continue_by_passes
from relm.evaluation.generation.sampling import Sampling
from relm.evaluation.generation.stop import Stop
from relm.evaluation.ipu_model import IpuCausalModel, WritingProgram

log = logging.getLogger(__name__)


class IpuContinuer(Continuer):
    """A model on IPUs. A loop on the device always writes all tokens."""

    def __init__(self, model: IpuCausalModel) -> None:
        self._model = model

    def prepare(self, texts: Texts, tokens: int, sampling: Sampling) -> None:
        """Run a new program once, if texts with `tokens` more ids need one, so that their time excludes its compilation."""
        longest = max(map(len, texts))
        if self.loops(longest + tokens, sampling):
            rule = choose_rule(sampling, self._model.vocabulary_size)
            self._model.prepare_writing(WritingProgram(len(texts), longest, tokens, rule))
            return
        longest = min(longest + tokens - 1, self._model.positions or longest + tokens)
        if longest > self._model.length:
            log.warning(
                "each token takes a call of the device and a pass over the whole text. A loop on the device needs one IPU, "
                "texts within the model's positions, no repetition penalty, and a top-k if tokens are drawn"
            )
            self._model.hidden(torch.zeros(len(texts), longest, dtype=torch.int64))

    def write(
        self, texts: Texts, tokens: int, sampling: Sampling, streams: Sequence[torch.Generator], stop: Stop
    ) -> list[list[int]]:
        if self.loops(max(map(len, texts)) + tokens, sampling):
            rule = choose_rule(sampling, self._model.vocabulary_size)
            noise = draw_noise(streams, tokens, rule.top_k) if rule.draws else None
            written: list[list[int]] = self._model.write(texts, tokens, rule, noise).tolist()
            return written
        return continue_by_passes(self._model, texts, tokens, sampling, streams, stop)

    def loops(self, longest: int, sampling: Sampling) -> bool:
        """Return whether a loop on the device can write texts of at most `longest` tokens, the last of which is not read."""
        fits = self._model.positions is None or longest - 1 <= self._model.positions
        chooses = not sampling.draws or sampling.uniform_top_k is not None or sampling.top_k is not None
        return self._model.ipus == 1 and fits and chooses and sampling.repetition_penalty == 1


def draw_noise(streams: Sequence[torch.Generator], tokens: int, top_k: int) -> Tensor:
    """Return standard Gumbel draws, (streams, tokens, top_k) float32, from one generator for each text."""
    return torch.stack([-torch.empty(tokens, top_k).exponential_(generator=stream).log() for stream in streams])


def choose_rule(sampling: Sampling, vocabulary_size: int) -> TokenRule:
    """Return the rule by which a loop on the device chooses tokens."""
    if not sampling.draws:
        return TokenRule(1)
    if sampling.uniform_top_k is not None:
        return TokenRule(min(sampling.uniform_top_k, vocabulary_size), uniform=True)
    assert sampling.top_k is not None, "a loop draws only among the likeliest"
    return TokenRule(min(sampling.top_k, vocabulary_size), sampling.temperature, sampling.top_p)
