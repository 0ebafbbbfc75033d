"""The distributions of initial weights: mean, standard deviation and kurtosis of every kind of matrix."""

import functools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from architectures import BERTS, GPT2, LLAMA, T5S, initialised
from scipy import stats
from torch import Tensor, nn
from transformers import AutoConfig

from relm.models.bert import Bert, BertConfig
from relm.models.gpt2 import Gpt2, Gpt2Config
from relm.models.llama import Llama
from relm.models.t5 import T5, T5Config

NORMAL = BertConfig(
    layers=2, heads=2, hidden_size=96, intermediate_size=200, positions=120, vocabulary_size=500, next_sentence=True
)
TRUNCATED = replace(NORMAL, initialisation="truncated_normal")
BERT_KINDS = (
    "word_embeddings", "position_embeddings", "token_type_embeddings", "self.query", "self.key", "self.value",
    "attention.output.dense", "intermediate.dense", "output.dense", "pooler.dense", "transform.dense", "seq_relationship",
)  # fmt: skip
GATED = T5Config(
    layers=2, heads=6, head_size=25, hidden_size=100, intermediate_size=400, vocabulary_size=300, initializer_factor=0.5
)
RELU = replace(GATED, tied_head=True, feed_forward="relu")
# Standard deviation of each kind, before the factor: 100 wide, 6 heads of 25, 400 in between.
T5_SPREADS = {
    "shared": 1.0, "lm_head": 1.0, "q": 1 / 50, "k": 1 / 10, "v": 1 / 10, "o": 150**-0.5, "relative_attention_bias": 1 / 10,
    "wi_0": 1 / 10, "wi_1": 1 / 10, "wi": 1 / 10, "wo": 1 / 20,
}  # fmt: skip
DEEP = Gpt2Config(layers=8, heads=2, hidden_size=64, positions=200, vocabulary_size=500)
# sqrt(2 * 8) = 4
GPT2_SPREADS = {
    "wte": 0.02,
    "wpe": 0.02,
    "attn.c_attn": 0.02,
    "mlp.c_fc": 0.02,
    "attn.c_proj": 0.02 / 4,
    "mlp.c_proj": 0.02 / 4,
}
CASES = {
    **{f"bert {kind}": (Bert, NORMAL, kind, 0.02) for kind in BERT_KINDS},
    **{f"truncated bert {kind}": (Bert, TRUNCATED, kind, 0.02) for kind in BERT_KINDS},
    **{f"t5 {kind}": (T5, RELU if kind == "wi" else GATED, kind, 0.5 * std) for kind, std in T5_SPREADS.items()},
    **{f"gpt2 {kind}": (Gpt2, DEEP, kind, std) for kind, std in GPT2_SPREADS.items()},
}


@functools.cache
def drawn(model: Any, config: Any) -> Any:
    return initialised(model(config))


def numbers(model: nn.Module, kind: str) -> Tensor:
    """Return all values of one kind of matrix, without rows that are set to zero."""
    dot = "." if isinstance(model, T5) else ""
    found = [p for name, p in model.named_parameters() if f".{name}".endswith(f"{dot}{kind}.weight")]
    return torch.cat([matrix[matrix.abs().sum(1) > 0].flatten() for matrix in found]).detach().double()


@pytest.mark.parametrize(("model", "config", "kind", "width"), CASES.values(), ids=CASES)
def test_every_kind_of_matrix_has_the_moments_of_its_distribution(model: Any, config: Any, kind: str, width: float) -> None:
    values = numbers(drawn(model, config), kind)
    distribution = stats.truncnorm(-2, 2) if config is TRUNCATED else stats.norm
    _, variance, excess = (float(moment) for moment in distribution.stats(moments="mvk"))
    std, kurtosis = width * math.sqrt(variance), excess + 3
    # Five standard errors of each estimate: with so many numbers, which are fixed by the seed, a wrong width shows.
    n = len(values)
    assert values.mean().item() == pytest.approx(0.0, abs=5 * std / math.sqrt(n))
    assert values.std().item() == pytest.approx(std, rel=5 * math.sqrt((kurtosis - 1) / (4 * n)))
    standardised = (values - values.mean()) / values.std()
    assert (standardised**4).mean().item() == pytest.approx(kurtosis, abs=5 * math.sqrt(24 / n))
    if config is TRUNCATED:
        assert values.abs().max().item() <= 0.04


@pytest.mark.parametrize(("model", "config"), [(Bert, NORMAL), (Bert, TRUNCATED), (Gpt2, GPT2), (T5, GATED), (T5, RELU)])
def test_biases_are_zero_and_normalisation_one_or_the_factor(model: Any, config: Any) -> None:
    scale = 0.5 if model is T5 else 1.0
    for name, parameter in initialised(model(config)).named_parameters():
        if parameter.dim() == 1:
            assert parameter.eq(0.0 if name.endswith("bias") else scale).all(), name
        elif model is T5:
            assert name.split(".")[-2] in T5_SPREADS, name


def test_llama2_c_scales_two_projections() -> None:
    config = replace(LLAMA, layers=8, hidden_size=64, intermediate_size=172, initialisation="llama2_c")
    for name, weight in initialised(Llama(config)).huggingface_weights().items():
        if weight.dim() == 1:
            assert bool((weight == 1).all()), name
        else:
            scaled = name.endswith(("o_proj.weight", "up_proj.weight"))
            assert weight.std().item() == pytest.approx(0.02 / 4 if scaled else 0.02, rel=0.1), name


def test_rows_of_padding_are_zero_as_in_transformers_and_not_as_in_tensorflow() -> None:
    normal = initialised(Bert(NORMAL)).bert.embeddings
    assert normal.word_embeddings.weight[0].eq(0).all()
    assert normal.position_embeddings.weight[0].ne(0).all()
    assert initialised(Bert(TRUNCATED)).bert.embeddings.word_embeddings.weight[0].ne(0).all()
    for name in ("pairs", "roberta"):
        form = BERTS[name]
        theirs = dict(form.theirs(form.theirs.config_class.from_dict(form.config.to_huggingface())).named_parameters())
        for own, parameter in initialised(Bert(form.config)).named_parameters():
            other = theirs[form.config.published_name(own)]
            for constant in (0.0, 1.0):
                assert torch.equal(parameter == constant, other == constant), own


@pytest.mark.parametrize("name", ["t5-1.0", "mt5-tied"])
def test_transformers_spreads_every_parameter_of_a_t5_alike(name: str) -> None:
    """The head is tied, since transformers 5 draws no other."""
    form = T5S[name]
    config = replace(GATED, feed_forward=form.config.feed_forward, tied_head=True, family=form.config.family)
    torch.manual_seed(0)
    theirs = dict(form.theirs(AutoConfig.for_model(**config.to_huggingface())).named_parameters())
    ours = dict(initialised(T5(config)).named_parameters())
    assert set(ours) == set(theirs)
    for own, parameter in ours.items():
        sizes = [tensor.detach().double().square().mean().sqrt().item() for tensor in (parameter, theirs[own])]
        tolerance = 0.0 if parameter.dim() == 1 else 5 / math.sqrt(parameter.numel())
        assert sizes[0] == pytest.approx(sizes[1], rel=tolerance), own
