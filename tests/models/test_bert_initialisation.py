"""The distributions of initial weights: mean, standard deviation and kurtosis of every kind of matrix."""

import math
from dataclasses import replace

import pytest
import torch
from bert_cases import FORMS
from scipy import stats
from torch import Tensor

from relm.models.bert import Bert, BertConfig

NORMAL = BertConfig(
    layers=2, heads=2, hidden_size=96, intermediate_size=200, positions=120, vocabulary_size=500, next_sentence=True
)
TRUNCATED = replace(NORMAL, initialisation="truncated_normal")
KINDS = (
    "word_embeddings", "position_embeddings", "token_type_embeddings", "self.query", "self.key", "self.value",
    "attention.output.dense", "intermediate.dense", "output.dense", "pooler.dense", "transform.dense", "seq_relationship",
)  # fmt: skip


def initialised(config: BertConfig) -> Bert:
    model = Bert(config)
    model.initialise(torch.Generator().manual_seed(0))
    return model


def numbers(model: Bert, kind: str) -> Tensor:
    """Return all values of one kind of matrix, without rows that are set to zero."""
    found = [parameter for name, parameter in model.named_parameters() if f"{kind}.weight" in name]
    return torch.cat([matrix[matrix.abs().sum(1) > 0].flatten() for matrix in found]).detach().double()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", [NORMAL, TRUNCATED], ids=["normal", "truncated"])
def test_every_kind_of_matrix_has_the_moments_of_its_distribution(config: BertConfig, kind: str) -> None:
    values = numbers(initialised(config), kind)
    distribution = stats.norm if config is NORMAL else stats.truncnorm(-2, 2)
    _, variance, excess = (float(moment) for moment in distribution.stats(moments="mvk"))
    std, kurtosis = 0.02 * math.sqrt(variance), excess + 3
    # Five standard errors of each estimate: with so many numbers, which are fixed by the seed, a wrong width shows.
    n = len(values)
    assert values.mean().item() == pytest.approx(0.0, abs=5 * std / math.sqrt(n))
    assert values.std().item() == pytest.approx(std, rel=5 * math.sqrt((kurtosis - 1) / (4 * n)))
    standardised = (values - values.mean()) / values.std()
    assert (standardised**4).mean().item() == pytest.approx(kurtosis, abs=5 * math.sqrt(24 / n))
    if config is TRUNCATED:
        assert values.abs().max().item() <= 0.04


def test_truncation_takes_an_eighth_of_the_spread() -> None:
    assert numbers(initialised(TRUNCATED), "word_embeddings").std().item() == pytest.approx(0.8796 * 0.02, rel=0.01)


@pytest.mark.parametrize("config", [NORMAL, TRUNCATED], ids=["normal", "truncated"])
def test_biases_are_zero_and_normalisation_one(config: BertConfig) -> None:
    for name, parameter in initialised(config).named_parameters():
        if parameter.dim() == 1:
            assert parameter.eq(1.0 if name.endswith("LayerNorm.weight") else 0.0).all(), name


def test_rows_of_padding_are_zero_as_in_transformers_and_not_as_in_tensorflow() -> None:
    assert initialised(NORMAL).bert.embeddings.word_embeddings.weight[0].eq(0).all()
    assert initialised(NORMAL).bert.embeddings.position_embeddings.weight[0].ne(0).all()
    assert initialised(TRUNCATED).bert.embeddings.word_embeddings.weight[0].ne(0).all()
    roberta = initialised(replace(NORMAL, family="roberta", next_sentence=False, padding_id=1)).bert.embeddings
    assert roberta.word_embeddings.weight[1].eq(0).all()
    assert roberta.position_embeddings.weight[1].eq(0).all()
    assert roberta.position_embeddings.weight[[0, 2]].ne(0).all()


@pytest.mark.parametrize("form", ["pairs", "roberta"])
def test_transformers_sets_the_same_rows_to_zero_and_one(form: str) -> None:
    config, kind = FORMS[form]
    theirs = dict(kind(kind.config_class.from_dict(config.to_huggingface())).named_parameters())
    for name, parameter in initialised(config).named_parameters():
        other = theirs[config.published_name(name)]
        for constant in (0.0, 1.0):
            assert torch.equal(parameter == constant, other == constant), name
