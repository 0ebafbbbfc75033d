"""The choice of tokens on the device, and the loop that writes texts with it."""

import pytest
import torch
from torch import Tensor

from relm.devices.ipu.decoding import DecodingLoop, TokenRule, choose, repeat_on_host
from relm.evaluation.generation.ipu_continuation import choose_rule
from relm.evaluation.generation.sampling import Sampling, logits_processors
from relm.models.gpt2 import Gpt2, Gpt2Config

VOCABULARY = 12
DRAWS = 40_000
LOGITS = torch.linspace(2.0, -2.0, VOCABULARY)[torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(5))]
SAMPLINGS = {
    "temperature": Sampling(0.7, VOCABULARY, 1),
    "top-k": Sampling(1.3, 5, 1),
    "nucleus": Sampling(1.0, VOCABULARY, 0.6),
    "nucleus of top-k": Sampling(0.9, 6, 0.8),
    "nucleus of one": Sampling(1.0, VOCABULARY, 0.0),
    "uniform": Sampling(uniform_top_k=4),
    "cold": Sampling(1e-6, VOCABULARY, 1),
}


def gumbel(*shape: int) -> Tensor:
    return -torch.empty(shape).exponential_(generator=torch.Generator().manual_seed(2)).log()


def frequencies(logits: Tensor, sampling: Sampling) -> Tensor:
    rule = choose_rule(sampling, VOCABULARY)
    values, tokens = logits.expand(DRAWS, -1).topk(rule.top_k)
    return torch.bincount(choose(values, tokens, rule, gumbel(DRAWS, rule.top_k)), minlength=VOCABULARY)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_tokens_are_drawn_with_the_probabilities_of_the_host(name: str) -> None:
    expected = logits_processors(SAMPLINGS[name])(None, LOGITS[None].clone())[0].softmax(-1) * DRAWS
    found = frequencies(LOGITS, SAMPLINGS[name])
    assert not found[expected == 0].any()
    possible = expected > 0
    chi_squared = ((found - expected)[possible] ** 2 / expected[possible]).sum()
    assert chi_squared < 33, "the probability of more, with 11 degrees of freedom, is 0.0005"


def test_equally_likely_tokens_are_in_the_nucleus_together() -> None:
    logits = torch.tensor([1.0, 3.0, 3.0, 3.0, *[-9.0] * 8])
    found = frequencies(logits, Sampling(1.0, VOCABULARY, 0.5))
    assert found.nonzero()[:, 0].tolist() == [1, 2, 3]


def test_without_draws_the_likeliest_is_taken() -> None:
    assert choose_rule(Sampling(temperature=0), VOCABULARY) == TokenRule(1)
    values, tokens = LOGITS[None].topk(1)
    assert choose(values, tokens, TokenRule(1), None).tolist() == [int(LOGITS.argmax())]


def loop(tokens: int, weight: float = 1.0) -> DecodingLoop:
    model = Gpt2(Gpt2Config(layers=1, heads=2, hidden_size=8, positions=16, vocabulary_size=VOCABULARY))
    model.initialise(torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(20 if parameter.dim() > 1 else 1)  # each token depends on those before it
        model.transformer.ln_f.weight.mul_(weight)
    return DecodingLoop(repeat_on_host, model.eval(), TokenRule(1), tokens)


@torch.inference_mode()
def test_a_longer_loop_begins_with_the_texts_of_a_shorter_one() -> None:
    ids, lengths = torch.arange(6).reshape(2, 3), torch.tensor([3, 2])
    longest = loop(10)(ids, lengths)[0]
    for tokens in (1, 2, 9):
        assert torch.equal(loop(tokens)(ids, lengths)[0], longest[:, :tokens])


@torch.inference_mode()
def test_tokens_and_the_sum_of_the_largest_logits_are_those_of_passes_over_the_whole_text() -> None:
    made, ids, lengths = loop(8), torch.arange(6).reshape(2, 3), torch.tensor([3, 2])
    tokens, largest = made(ids, lengths)
    for row, length in enumerate(lengths.tolist()):
        text = torch.cat([ids[row, :length], tokens[row]])
        logits, chosen = made.model.logits(text[None])[0, length - 1 : -1].max(-1)
        assert torch.equal(chosen, tokens[row])
        torch.testing.assert_close(largest[row], logits.sum())


@torch.inference_mode()
@pytest.mark.parametrize(("weight", "is_finite"), [(1.0, True), (torch.nan, False), (torch.inf, False)])
def test_logits_that_are_not_finite_are_seen_in_the_sum_of_the_largest(weight: float, is_finite: bool) -> None:
    _, largest = loop(4, weight)(torch.zeros(2, 3, dtype=torch.int64), torch.tensor([3, 2]))
    assert largest.isfinite().all() == is_finite
