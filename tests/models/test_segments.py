"""The segments of a model, one after the other, compute its loss bit for bit."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from architectures import BERTS, GRAPHCORE, TUNED, bert_batch, gradients, randomised
from torch import Tensor

from relm.models.bert import Bert, BertConfig
from relm.models.contract import LanguageModel
from relm.models.gpt2 import Gpt2, Gpt2Config
from relm.models.layers import serialised_linear, set_traced
from relm.models.llama import Llama
from relm.models.llama_configuration import LlamaConfig
from relm.models.losses import Term
from relm.models.segments import State, terms_of

GPT2 = Gpt2Config(layers=3, heads=2, hidden_size=8, positions=6, vocabulary_size=11, dropout=0.3)
LLAMA = LlamaConfig(3, 4, 8, 20, positions=6, vocabulary_size=11, key_value_heads=2, dropout=0.3, tied_head=True)
IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 10, 0]])
GPT2_BATCH = {"input_ids": IDS, "labels": torch.where(IDS == 5, -100, IDS.roll(-1, 1))}
DOCUMENTS = {"document_ids": torch.tensor([[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 1]])}
GPT2_NAMES = ["token_embedding", "position_embedding", "layers.0", "layers.1", "layers.2", "head"]


HEADS = {name: TUNED[name] for name in ("masked-answers", "masked-3", "roberta-1")}


def with_dropout(config: BertConfig) -> BertConfig:
    return replace(config, hidden_dropout=0.3, attention_dropout=0.2)


def without(batch: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in batch.items() if name not in names}


def bert_case(config: BertConfig, *absent: str) -> tuple[Callable[[], LanguageModel], dict[str, Tensor]]:
    return lambda: Bert(with_dropout(config)), without(bert_batch(config), *absent)


CASES: dict[str, tuple[Callable[[], LanguageModel], dict[str, Tensor]]] = {
    "gpt2": (lambda: Gpt2(GPT2), GPT2_BATCH),
    "gpt2-documents": (lambda: Gpt2(GPT2), {**GPT2_BATCH, **DOCUMENTS}),
    "gpt2-plain": (lambda: Gpt2(replace(GPT2, biases=False, activation="gelu_erf", layers=1)), GPT2_BATCH),
    "llama": (lambda: Llama(LLAMA), GPT2_BATCH),
    "llama-documents": (lambda: Llama(replace(LLAMA, key_value_heads=4)), {**GPT2_BATCH, **DOCUMENTS}),
    **{f"bert-{name}": bert_case(form.config) for name, form in BERTS.items()},
    **{f"bert-{name}": (partial(form.ours, with_dropout(form.config)), form.make_batch()) for name, form in HEADS.items()},
    "bert-graphcore": bert_case(GRAPHCORE),
    "bert-one-layer": bert_case(replace(GRAPHCORE, layers=1)),
    "bert-unpadded": bert_case(GRAPHCORE, "attention_mask", "token_type_ids"),
}
EVERY = pytest.mark.parametrize("case", CASES)


def through_segments(model: LanguageModel, batch: dict[str, Tensor]) -> dict[str, Term]:
    state: State = {}
    for segment in model.segments():
        state = segment.run(batch, state)
    return terms_of(state)


def outcome(
    model: LanguageModel, terms: Callable[[LanguageModel, dict[str, Tensor]], dict[str, Term]], batch: dict[str, Tensor]
) -> tuple[dict[str, list[float]], dict[str, Tensor]]:
    """Return the terms and all gradients with dropout from one seed."""
    torch.manual_seed(5)
    found = terms(model, batch)
    sum(term.nats for term in found.values()).backward()
    return {name: [value.item() for value in term] for name, term in found.items()}, gradients(model)


def assert_equal_bits(case: str, change: Callable[[LanguageModel], object] = lambda model: None) -> None:
    build, batch = CASES[case]
    outcomes = []
    for terms in (LanguageModel.forward, through_segments):
        model = randomised(build())
        change(model)
        outcomes.append(outcome(model, terms, batch))
    (whole, whole_gradients), (found, found_gradients) = outcomes
    assert found == whole
    assert set(found_gradients) == set(whole_gradients)
    for name, gradient in whole_gradients.items():
        assert torch.equal(found_gradients[name], gradient), name


@EVERY
def test_segments_in_order_equal_the_whole_bit_for_bit(case: str) -> None:
    assert_equal_bits(case)


@EVERY
def test_so_they_do_when_a_compiler_traces_them(case: str) -> None:
    assert_equal_bits(case, lambda model: set_traced(model, True))


@pytest.mark.parametrize("case", ["gpt2", "bert-graphcore"])
def test_so_they_do_when_layers_are_recomputed(case: str) -> None:
    assert_equal_bits(case, lambda model: setattr(model, "activation_checkpointing", True))


@pytest.mark.parametrize("case", ["gpt2", "bert-pairs"])
def test_so_they_do_with_a_serialised_head(case: str) -> None:
    def serialise(model: LanguageModel) -> None:
        model.loss_chunk, model.project_vocabulary = 2, partial(serialised_linear, slices=3)

    assert_equal_bits(case, serialise)


@EVERY
def test_each_parameter_belongs_to_one_segment_but_the_tied_embedding_to_two(case: str) -> None:
    model = CASES[case][0]()
    owners: dict[str, list[str]] = {}
    for segment in model.segments():
        for name in segment.parameters:
            owners.setdefault(name, []).append(segment.name)
    assert set(owners) == {name for name, _ in model.named_parameters()}
    tied = "transformer.wte.weight" if case.startswith(("gpt2", "llama")) else "bert.embeddings.word_embeddings.weight"
    expected = {} if case.removeprefix("bert-") in HEADS else {tied: ["token_embedding", "head"]}
    assert {name: found for name, found in owners.items() if len(found) > 1} == expected


def test_the_segments_of_a_gpt2_are_its_embeddings_its_layers_and_its_head() -> None:
    segments = {segment.name: segment.parameters for segment in Gpt2(GPT2).segments()}
    assert list(segments) == GPT2_NAMES
    assert segments["position_embedding"] == ("transformer.wpe.weight",)
    assert segments["layers.2"][-2:] == ("transformer.ln_f.weight", "transformer.ln_f.bias")
    assert not any("ln_f" in name for name in segments["layers.1"])


def test_layers_ten_and_one_are_not_confused() -> None:
    segments = {segment.name: segment.parameters for segment in Gpt2(replace(GPT2, layers=11)).segments()}
    assert {name.split(".")[2] for name in segments["layers.1"]} == {"1"}


def test_only_the_positions_that_are_read_pass_from_the_last_layer_to_the_head() -> None:
    build, batch = CASES["bert-pairs"]
    state: State = {}
    shapes = {}
    for segment in build().segments():
        state = segment.run(batch, state)
        shapes[segment.name] = {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert shapes["layers.0"] == {"hidden": (3, 10, 8)}
    assert shapes["layers.1"] == {"hidden": (3, 1 + 4, 8)}
    assert set(shapes["head"]) == {f"{t}.{k}" for t in ("masked_token", "next_sentence") for k in ("nats", "count", "correct")}


def test_sequences_that_are_too_long_are_refused_by_segments_too() -> None:
    long = {"input_ids": torch.zeros(1, 7, dtype=torch.int64), "labels": torch.zeros(1, 7, dtype=torch.int64)}
    with pytest.raises(ValueError, match="7 tokens, but the model has 6 positions"):
        through_segments(Gpt2(GPT2), long)
