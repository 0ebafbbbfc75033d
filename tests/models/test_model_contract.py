"""Every model keeps the contract: a step never waits, recomputing layers changes nothing, weights follow from the seed."""

from dataclasses import replace

import pytest
import torch
from architectures import T5_11, assert_same_gradients, assert_same_weights, gradients, initialised, randomised, t5_batch
from torch import Tensor, nn

from relm.models.bert import Bert, BertConfig
from relm.models.gpt2 import Gpt2, Gpt2Config
from relm.models.layers import set_traced
from relm.models.llama import Llama
from relm.models.llama_configuration import LlamaConfig
from relm.models.t5 import T5

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
T5_BATCH = t5_batch(T5_11)
BOTH = pytest.mark.parametrize(
    ("model", "layers", "batch"),
    [
        (lambda: Gpt2(GPT2), lambda m: m.transformer.h, GPT2_BATCH),
        (lambda: Llama(LLAMA), lambda m: m.transformer.h, GPT2_BATCH),
        (lambda: Bert(BERT), lambda m: m.bert.encoder.layer, BERT_BATCH),
        (lambda: T5(replace(T5_11, dropout=0.3, decoder_layers=1)), lambda m: (*m.encoder.block, *m.decoder.block), T5_BATCH),
    ],
    ids=["gpt2", "llama", "bert", "t5"],
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
        # Three layers, or two and one of a decoder, each of them once more in the backward pass.
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
    first = initialised(model(), 3)
    torch.rand(5)
    second, other = initialised(model(), 3), initialised(model(), 4)
    assert_same_weights(second, first)
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


@BOTH
def test_more_tokens_than_positions_are_refused(model, layers, batch: dict[str, Tensor]) -> None:
    if hasattr(model().config, "positions"):
        with pytest.raises(ValueError, match="7 tokens, but the model has 6 positions"):
            model().logits(torch.zeros(1, 7, dtype=torch.int64))


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_one_array_as_large_as_the_logits_is_kept_for_the_backward_pass(precision: torch.dtype) -> None:
    """With 250,112 tokens that is 1 MB for each position of a target; a second array would double it."""
    model, kept = randomised(T5(replace(T5_11, vocabulary_size=1009))), set()

    def pack(tensor: Tensor) -> Tensor:
        if tensor.numel() == 1009 * T5_BATCH["labels"].numel():
            kept.add((tensor.untyped_storage().data_ptr(), tensor.dtype))
        return tensor

    enabled = precision != torch.float32
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        model(T5_BATCH)
    assert [dtype for _, dtype in kept] == [torch.float32]
