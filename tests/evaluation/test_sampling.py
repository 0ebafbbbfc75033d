"""Filters are compared with those of `transformers`, and draws with the probabilities that these give."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import GPT2Config, GPT2LMHeadModel, LogitsProcessorList
from transformers import RepetitionPenaltyLogitsProcessor as Penalty
from transformers import TemperatureLogitsWarper as Temperature
from transformers import TopKLogitsWarper as TopK
from transformers import TopPLogitsWarper as TopP

from relm.errors import RelmError
from relm.evaluation.logits_processors import NUCLEUS_FIRST, filters, logits_processors
from relm.evaluation.sampling import GREEDY, Sampling, random_stream, requested_sampling

LOGITS = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]]))
ALL = Sampling(temperature=1, top_k=None, top_p=1)
SETTINGS = [
    Sampling(),
    ALL,
    Sampling(temperature=0.3, top_k=None, top_p=1),
    Sampling(temperature=1.7, top_k=3, top_p=1),
    Sampling(temperature=1, top_k=None, top_p=0.6),
    Sampling(temperature=1.2, top_k=None, top_p=0.999),
    Sampling(temperature=0.9, top_k=4, top_p=0.8, repetition_penalty=1.3),
    Sampling(temperature=1, top_k=None, top_p=1, repetition_penalty=0.5),
    Sampling(temperature=1, top_k=None, top_p=0.0),
]


def kept_logits(logits: torch.Tensor, texts: Sequence[Sequence[int]], sampling: Sampling) -> torch.Tensor:
    """Return the logits of the distribution that is drawn from."""
    return filters(sampling, texts)(torch.tensor([[0]] * len(logits)), logits)


def chosen(
    logits: torch.Tensor, texts: Sequence[Sequence[int]], sampling: Sampling, streams: Sequence[torch.Generator]
) -> torch.Tensor:
    """Return the next token of each text, (batch,)."""
    return logits_processors(sampling, texts, streams)(torch.tensor([[0]] * len(logits)), logits).argmax(-1)


def probabilities(**settings) -> list[float]:
    return (
        kept_logits(LOGITS, [[]], Sampling(**{"temperature": 1, "top_k": None, "top_p": 1, **settings})).softmax(-1)[0].tolist()
    )


def theirs(sampling: Sampling) -> LogitsProcessorList:
    """Return the processors of `transformers`, in the order of `generate`."""
    processors = [Penalty(sampling.repetition_penalty)] if sampling.repetition_penalty != 1 else []
    processors.append(Temperature(float(sampling.temperature)))
    if sampling.top_k is not None:
        processors.append(TopK(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(TopP(sampling.top_p))
    return LogitsProcessorList(processors)


def test_without_limits_the_distribution_is_the_models() -> None:
    assert probabilities() == pytest.approx([0.1, 0.4, 0.2, 0.3])


def test_temperature_sharpens() -> None:
    assert probabilities(temperature=0.5) == pytest.approx([0.01 / 0.3, 0.16 / 0.3, 0.04 / 0.3, 0.09 / 0.3])


def test_top_k_keeps_the_likeliest() -> None:
    assert probabilities(top_k=2) == pytest.approx([0, 4 / 7, 0, 3 / 7])
    assert probabilities(top_k=9) == pytest.approx([0.1, 0.4, 0.2, 0.3])


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    assert probabilities(top_p=0.6) == pytest.approx([0, 4 / 7, 0, 3 / 7])
    assert probabilities(top_p=0.75) == pytest.approx([0, 4 / 9, 2 / 9, 3 / 9])
    assert probabilities(top_p=0.0) == pytest.approx([0, 1, 0, 0])
    # Of the two that top-k keeps, the first alone has 4/7.
    assert probabilities(top_k=2, top_p=0.5) == pytest.approx([0, 1, 0, 0])


def test_uniform_top_k_takes_each_of_the_likeliest_alike() -> None:
    assert probabilities(uniform_top_k=3) == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])
    # Temperature, top-k and top-p decide nothing, a penalty does: 0.4 and 0.3 fall behind 0.2 and 0.1.
    assert probabilities(uniform_top_k=2, temperature=0.1, top_k=1, top_p=0.1) == pytest.approx([0, 1 / 2, 0, 1 / 2])
    logits = kept_logits(LOGITS, [[1, 3]], Sampling(uniform_top_k=2, repetition_penalty=9))
    assert logits.softmax(-1)[0].tolist() == pytest.approx([1 / 2, 0, 1 / 2, 0])


def test_a_penalty_makes_tokens_of_a_text_less_likely_whatever_the_sign_of_their_logit() -> None:
    logits = torch.tensor([[2.0, 2.0, -2.0, -2.0]])
    assert kept_logits(logits, [[0, 2]], Sampling(1, None, 1, 4.0)).tolist() == [[0.5, 2.0, -8.0, -2.0]]


def test_equally_likely_tokens_stay_or_go_together() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0]])
    kept = kept_logits(logits, [[]], Sampling(1, 2, 1)).isfinite()
    assert kept.tolist() == [[False, True, True, True, True]]
    assert torch.equal(kept, TopK(2)(None, logits).isfinite())
    assert kept_logits(logits, [[]], Sampling(1, None, 0.6)).isfinite().tolist() == [[False, True, True, True, True]]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("vocabulary", [7, 4 * NUCLEUS_FIRST])
def test_kept_tokens_are_those_that_transformers_keeps(sampling: Sampling, vocabulary: int) -> None:
    """Compare in float64: the two sum from opposite ends, and in float32 a token at the nucleus's rim is a matter of luck."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(40, vocabulary, generator=generator).double() * torch.linspace(0.1, 6, 40)[:, None]
    ids = torch.randint(vocabulary, (40, 5), generator=generator)
    ours, expected = kept_logits(logits, ids.tolist(), sampling), theirs(sampling)(ids, logits.clone())
    assert torch.equal(ours.isfinite(), expected.isfinite())
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


VOCABULARY = 6
DRAWN = 3000
PROMPT = [1, 4]


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_head=1, n_embd=8, n_positions=8, vocab_size=VOCABULARY, initializer_range=0.8)
    config.bos_token_id = config.eos_token_id = None
    return GPT2LMHeadModel(config).eval()


def expected_shares(model: GPT2LMHeadModel, sampling: Sampling) -> np.ndarray:
    """Return the exact probability of each pair of tokens after the prompt, by `transformers` alone, (vocabulary²,)."""

    def after(texts: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return theirs(sampling)(texts, model(texts).logits[:, -1]).softmax(-1)

    first = after(torch.tensor([PROMPT]))[0]
    second = after(torch.tensor([[*PROMPT, token] for token in range(VOCABULARY)]))
    return (first[:, None] * second).double().flatten().numpy()


def drawn_pairs(model: GPT2LMHeadModel, sampling: Sampling) -> np.ndarray:
    """Return the counts of the pairs that relm draws, each text with a random stream of its own, (vocabulary²,)."""
    streams = [random_stream(0, position) for position in range(DRAWN)]
    texts = torch.tensor([PROMPT] * DRAWN)
    for _ in range(2):
        with torch.no_grad():
            logits = model(texts).logits[:, -1]
        texts = torch.cat([texts, chosen(logits, texts.tolist(), sampling, streams)[:, None]], dim=1)
    return np.bincount(texts[:, 2] * VOCABULARY + texts[:, 3], minlength=VOCABULARY**2)


def p_value(counts: np.ndarray, shares: np.ndarray) -> float:
    """Return the p-value of the chi-squared test, 0 if an impossible pair was drawn. Cells with few expected are merged."""
    if counts[shares == 0].any():
        return 0.0
    few = shares * counts.sum() < 5
    cells, expected = ([*values[~few], values[few].sum()] for values in (counts, shares * counts.sum()))
    used = [position for position, value in enumerate(expected) if value > 0]
    if len(used) == 1:
        return 1.0
    return float(stats.chisquare([cells[p] for p in used], [expected[p] for p in used], sum_check=False).pvalue)


@pytest.mark.parametrize("sampling", [*SETTINGS[:2], *SETTINGS[3:5], *SETTINGS[6:8]], ids=str)
def test_tokens_are_drawn_as_often_as_transformers_processors_make_them_likely(model, sampling: Sampling) -> None:
    shares, counts = expected_shares(model, sampling), drawn_pairs(model, sampling)
    assert p_value(counts, shares) > 0.001
    # Of as many draws, half the sum of differences is about this far off by chance.
    chance = np.sqrt(shares * (1 - shares) / DRAWN).sum() / math.sqrt(2 * math.pi)
    assert np.abs(counts / DRAWN - shares).sum() / 2 < 2 * chance + 1e-9


def test_draws_from_a_slightly_other_distribution_are_noticed(model) -> None:
    counts = drawn_pairs(model, Sampling(temperature=1.1, top_k=None, top_p=1))
    assert p_value(counts, expected_shares(model, ALL)) < 1e-6
    assert p_value(drawn_pairs(model, ALL), expected_shares(model, SETTINGS[3])) == 0


def test_the_expected_shares_are_those_of_transformers_own_draws(model) -> None:
    sampling = SETTINGS[6]
    torch.manual_seed(0)
    drawn = model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, 2, dtype=torch.int64),
        pad_token_id=0,
        do_sample=True,
        max_new_tokens=2,
        num_return_sequences=DRAWN,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        repetition_penalty=sampling.repetition_penalty,
    )
    counts = np.bincount(drawn[:, 2] * VOCABULARY + drawn[:, 3], minlength=VOCABULARY**2)
    assert p_value(counts, expected_shares(model, sampling)) > 0.001


def test_uniform_top_k_draws_each_as_often() -> None:
    streams = [random_stream(5, position) for position in range(3000)]
    drawn = chosen(LOGITS.expand(3000, -1), [[]] * 3000, Sampling(uniform_top_k=3), streams)
    assert p_value(np.bincount(drawn, minlength=4), np.array([0, 1 / 3, 1 / 3, 1 / 3])) > 0.001


def test_draws_for_a_text_do_not_depend_on_the_others() -> None:
    logits = torch.randn(5, 50, generator=torch.Generator().manual_seed(1))
    together = chosen(logits, [[]] * 5, ALL, [random_stream(3, position) for position in range(5)])
    for position in range(5):
        assert chosen(logits[position : position + 1], [[]], ALL, [random_stream(3, position)])[0] == together[position]
    assert not torch.equal(together, chosen(logits, [[]] * 5, ALL, [random_stream(4, position) for position in range(5)]))


def test_greedy_takes_the_likeliest_after_the_penalty() -> None:
    assert chosen(LOGITS, [[]], GREEDY, []).tolist() == [1]
    assert chosen(LOGITS, [[1]], Sampling(0, None, 1, repetition_penalty=2), []).tolist() == [3]


@pytest.mark.parametrize(
    ("settings", "description"),
    [
        ({"top_p": 1.5}, "--top-p is 1.5; give a probability from 0 to 1"),
        ({"top_p": math.nan}, "--top-p is nan; give a probability from 0 to 1"),
        ({"temperature": -1}, "--temperature is -1; give a number from 0 on"),
        ({"temperature": math.inf}, "--temperature is inf; give a number from 0 on"),
        ({"top_k": 0}, "--top-k is 0; give a whole number from 1 on"),
        ({"repetition_penalty": 0}, "--repetition-penalty is 0; give a number above 0"),
        ({"uniform_top_k": 0}, "--uniform-top-k is 0; give a whole number from 1 on"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float], description: str) -> None:
    with pytest.raises(RelmError, match=description):
        Sampling(**settings)


@pytest.mark.parametrize(
    ("sampling", "description"),
    [
        (Sampling(), "each token is drawn at temperature 0.8, among the 50 likeliest, within the nucleus of 0.95"),
        (ALL, "each token is drawn at temperature 1"),
        (Sampling(0, repetition_penalty=1.2), "each token is the likeliest, repetition penalty 1.2"),
        (Sampling(uniform_top_k=4), "each token is any of the 4 likeliest, all alike"),
    ],
)
def test_the_description_names_the_choice_of_tokens(sampling: Sampling, description: str) -> None:
    assert sampling.describe() == description


def test_options_that_are_not_requested_keep_their_defaults() -> None:
    assert requested_sampling() == Sampling()
    assert requested_sampling(greedy=True) == GREEDY
    assert requested_sampling(True, repetition_penalty=1.2) == Sampling(0, None, 1, 1.2)
    assert requested_sampling(temperature=1, top_k=0, top_p=1) == ALL
    assert requested_sampling(top_k=7) == Sampling(top_k=7)
    assert requested_sampling(uniform_top_k=4, repetition_penalty=2) == Sampling(uniform_top_k=4, repetition_penalty=2)


@pytest.mark.parametrize(
    ("options", "description"),
    [
        ({"greedy": True, "top_p": 0.9}, "--top-p decides nothing beside --greedy; leave one of them out"),
        ({"greedy": True, "uniform_top_k": 4}, "--uniform-top-k decides nothing beside --greedy"),
        ({"uniform_top_k": 4, "temperature": 1.0}, "--temperature decides nothing beside --uniform-top-k"),
        ({"top_k": -1}, "--top-k is -1; give a whole number from 1 on"),
    ],
)
def test_an_option_without_effect_is_refused(options: dict[str, float], description: str) -> None:
    with pytest.raises(RelmError, match=description):
        requested_sampling(**options)
