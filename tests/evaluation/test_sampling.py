"""Draws have the probabilities that the processors of `transformers` give."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import GPT2Config, GPT2LMHeadModel
from uncached_texts import ALL, GREEDY

from relm.errors import RelmError
from relm.evaluation.generation.sampling import Sampling, logits_processors, random_stream
from relm.evaluation.model_checks import NOT_FINITE

LOGITS = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]]))
IDS = torch.tensor([[1, 3]])
VOCABULARY = 6
DRAWN = 3000
PROMPT = [1, 4]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.1, 0.4, 0.2, 0.3]),
        ({"temperature": 0.5}, [0.01 / 0.3, 0.16 / 0.3, 0.04 / 0.3, 0.09 / 0.3]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_k": 9}, [0.1, 0.4, 0.2, 0.3]),
        ({"top_p": 0.6}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.0}, [0, 1, 0, 0]),
        ({"top_k": 2, "top_p": 0.5}, [0, 1, 0, 0]),  # of the two that top-k keeps, the first alone has 4/7
        ({"uniform_top_k": 3}, [0, 1 / 3, 1 / 3, 1 / 3]),
        ({"uniform_top_k": 2, "temperature": 0.1, "top_k": 1, "top_p": 0.1}, [0, 1 / 2, 0, 1 / 2]),
        ({"uniform_top_k": 2, "repetition_penalty": 9}, [1 / 2, 0, 1 / 2, 0]),  # 0.4 and 0.3 fall behind 0.2 and 0.1
    ],
)
def test_settings_give_each_token_its_probability(settings: dict[str, float], expected: list[float]) -> None:
    sampling = Sampling(**{"temperature": 1, "top_k": None, "top_p": 1, **settings})
    assert logits_processors(sampling)(IDS, LOGITS).softmax(-1)[0].tolist() == pytest.approx(expected)


def test_greedy_takes_the_likeliest_after_the_penalty() -> None:
    assert logits_processors(GREEDY)(IDS, LOGITS).argmax() == 1
    assert logits_processors(Sampling(0, repetition_penalty=9))(IDS, LOGITS).argmax() == 2


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(uniform_top_k=2)], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(value: float, sampling: Sampling) -> None:
    with pytest.raises(RelmError, match=NOT_FINITE):
        logits_processors(sampling)(IDS, torch.tensor([[0.0, value]]))


def drawn(sampling: Sampling, ids: torch.Tensor, logits: torch.Tensor, streams: list[torch.Generator]) -> torch.Tensor:
    """Return the next token of each text, (batch,)."""
    return logits_processors(sampling, streams)(ids, logits).argmax(-1)


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_head=1, n_embd=8, n_positions=8, vocab_size=VOCABULARY, initializer_range=0.8)
    config.bos_token_id = config.eos_token_id = None
    return GPT2LMHeadModel(config).eval()


def drawn_pairs(model: GPT2LMHeadModel, sampling: Sampling) -> np.ndarray:
    """Return the counts of the pairs that relm draws, each text with its own random stream, (vocabulary²,)."""
    streams = [random_stream(0, position) for position in range(DRAWN)]
    texts = torch.tensor([PROMPT] * DRAWN)
    for _ in range(2):
        with torch.no_grad():
            logits = model(texts).logits[:, -1]
        texts = torch.cat([texts, drawn(sampling, texts, logits, streams)[:, None]], dim=1)
    return np.bincount(texts[:, 2] * VOCABULARY + texts[:, 3], minlength=VOCABULARY**2)


def their_pairs(model: GPT2LMHeadModel, sampling: Sampling) -> np.ndarray:
    """Return the counts of the pairs that `generate` of `transformers` draws by itself, (vocabulary²,)."""
    torch.manual_seed(0)
    pairs = model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, 2, dtype=torch.int64),
        pad_token_id=0,
        do_sample=True,
        max_new_tokens=2,
        num_return_sequences=DRAWN,
        temperature=float(sampling.temperature),
        top_k=sampling.top_k or 0,
        top_p=float(sampling.top_p),
        repetition_penalty=float(sampling.repetition_penalty),
    )
    return np.bincount(pairs[:, 2] * VOCABULARY + pairs[:, 3], minlength=VOCABULARY**2)


def p_value(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the p-value of the chi-squared test that two counts are of one distribution; rare cells are merged."""
    rare = ours + theirs < 10
    table = np.array([[*counts[~rare], counts[rare].sum()] for counts in (ours, theirs)])
    table = table[:, table.sum(0) > 0]
    return float(stats.chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        ALL,
        Sampling(temperature=1.7, top_k=3, top_p=1),
        Sampling(temperature=1, top_k=None, top_p=0.6),
        Sampling(temperature=0.9, top_k=4, top_p=0.8, repetition_penalty=1.3),
    ],
    ids=str,
)
def test_tokens_are_drawn_as_often_as_transformers_draws_them(model: GPT2LMHeadModel, sampling: Sampling) -> None:
    assert p_value(drawn_pairs(model, sampling), their_pairs(model, sampling)) > 0.001


def test_draws_from_a_slightly_other_distribution_are_noticed(model: GPT2LMHeadModel) -> None:
    assert p_value(drawn_pairs(model, Sampling(1.2, None, 1)), their_pairs(model, ALL)) < 1e-6


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
