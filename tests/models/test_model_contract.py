"""Every model keeps the contract: a step never waits, recomputing layers changes nothing, weights follow from the seed."""

import pytest
import torch
from random_weights import assert_same_gradients, gradients, randomised
from torch import Tensor, nn

from relm.models.bert import Bert, BertConfig
from relm.models.gpt2 import Gpt2, Gpt2Config
from relm.models.layers import set_traced
from relm.models.llama import Llama
from relm.models.llama_configuration import LlamaConfig

GPT2 = Gpt2Config(layers=3, heads=2, hidden_size=8, positions=6, vocabulary_size=11, dropout=0.3)
LLAMA = LlamaConfig(3, 4, 8, 20, positions=6, vocabulary_size=11, key_value_heads=2, dropout=0.3)
BERT = BertConfig(
    layers=3, heads=2, hidden_size=8, intermediate_size=12, positions=6, vocabulary_size=11, next_sentence=True,
    hidden_dropout=0.3, attention_dropout=0.2,
)  # fmt: skip
IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 10, 0]])
GPT2_BATCH = {"input_ids": IDS, "labels": IDS.roll(-1, 1), "document_ids": torch.tensor([[0, 0, 0, 0, 1, 1]] * 2)}
BERT_BATCH = {
    "input_ids": IDS,
    "attention_mask": torch.tensor([[1] * 6, [1, 1, 1, 1, 1, 0]]),
    "token_type_ids": torch.tensor([[0, 0, 0, 1, 1, 1]] * 2),
    "masked_positions": torch.tensor([[1, 4], [2, 0]]),
    "masked_labels": torch.tensor([[7, 8], [9, -100]]),
    "next_sentence_labels": torch.tensor([0, 1]),
}
BOTH = pytest.mark.parametrize(
    ("model", "layers", "batch"),
    [
        (lambda: Gpt2(GPT2), lambda m: m.transformer.h, GPT2_BATCH),
        (lambda: Llama(LLAMA), lambda m: m.transformer.h, GPT2_BATCH),
        (lambda: Bert(BERT), lambda m: m.bert.encoder.layer, BERT_BATCH),
    ],
    ids=["gpt2", "llama", "bert"],
)


@BOTH
def test_recomputing_gives_equal_values_and_gradients_dropout_included(model, layers, batch: dict[str, Tensor]) -> None:
    outcomes = []
    for recompute in (False, True):
        built = randomised(model())
        built.activation_checkpointing = recompute
        calls: list[nn.Module] = []
        for layer in layers(built):
            layer.register_forward_pre_hook(lambda module, _, calls=calls: calls.append(module))
        torch.manual_seed(5)
        loss = sum(term.nats for term in built.terms(batch).values())
        loss.backward()
        # Three layers, each of them once more in the backward pass.
        assert len(calls) == (6 if recompute else 3)
        outcomes.append((loss.detach(), gradients(built)))
    (loss, kept), (recomputed_loss, recomputed) = outcomes
    assert torch.equal(loss, recomputed_loss)
    assert_same_gradients(recomputed, kept, atol=0)


@BOTH
def test_dropout_acts_in_training_only(model, layers, batch: dict[str, Tensor]) -> None:
    built = randomised(model())

    def nats() -> list[float]:
        return [term.nats.item() for term in built.terms(batch).values()]

    assert nats() != nats()
    built.eval()
    assert nats() == nats()


@BOTH
def test_the_traced_form_gives_the_values_and_gradients_of_torchs_own(model, layers, batch: dict[str, Tensor]) -> None:
    operations, outcomes = [], []
    for traced in (False, True):
        built = randomised(model()).eval()
        set_traced(built, traced)
        with torch.profiler.profile() as profile:
            terms = built.terms(batch)
        operations.append({event.key for event in profile.key_averages()})
        sum(term.nats for term in terms.values()).backward()
        outcomes.append(([value.double() for term in terms.values() for value in term], gradients(built)))
    written_out = {"aten::scaled_dot_product_attention", "aten::cross_entropy_loss"}
    assert [operations_of & written_out for operations_of in operations] == [written_out, set()]
    torch.testing.assert_close(outcomes[1][0], outcomes[0][0], rtol=1e-5, atol=1e-6)
    assert_same_gradients(outcomes[1][1], outcomes[0][1], atol=1e-5)


@BOTH
def test_a_forward_pass_never_waits_for_a_value(model, layers, batch: dict[str, Tensor]) -> None:
    """The meta device has shapes and no values, so code that waits for one fails."""
    with torch.device("meta"):
        terms = model().terms({name: tensor.to("meta") for name, tensor in batch.items()})
    for term in terms.values():
        assert [value.shape for value in term] == [torch.Size([])] * 3


@BOTH
def test_building_draws_nothing_from_the_global_generator(model, layers, batch: dict[str, Tensor]) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    model()
    assert torch.equal(torch.rand(3), expected)


@BOTH
def test_the_same_seed_gives_the_same_weights_whatever_was_drawn_before(model, layers, batch: dict[str, Tensor]) -> None:
    first, second, other = model(), model(), model()
    first.initialise(torch.Generator().manual_seed(3))
    torch.rand(5)
    second.initialise(torch.Generator().manual_seed(3))
    other.initialise(torch.Generator().manual_seed(4))
    equal = {name: torch.equal(tensor, second.state_dict()[name]) for name, tensor in first.state_dict().items()}
    assert all(equal.values())
    assert any(not torch.equal(tensor, other.state_dict()[name]) for name, tensor in first.state_dict().items())


@BOTH
def test_under_autocast_the_sums_are_float32_and_nearly_the_same(model, layers, batch: dict[str, Tensor]) -> None:
    built = randomised(model(), spread=0.1).eval()
    exact = built.terms(batch)
    with torch.autocast("cpu", torch.bfloat16):
        coarse = built.terms(batch)
    for name, term in exact.items():
        assert coarse[name].nats.dtype == torch.float32
        assert not torch.equal(coarse[name].nats, term.nats), "nothing was computed in bfloat16"
        torch.testing.assert_close(coarse[name].nats, term.nats, rtol=0.02, atol=0.0)
        assert coarse[name].count == term.count
