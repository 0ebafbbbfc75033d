"""An encoder-decoder keeps the contract of every model: it never waits, recomputing changes nothing, seeds decide weights."""

from dataclasses import replace

import pytest
import torch
from random_weights import assert_same_gradients, gradients, randomised
from t5_cases import FORMS, TINY, batch_for
from torch import Tensor, nn

from relm.models.t5 import T5

DROPPING = replace(TINY, dropout=0.3, decoder_layers=1)
BATCH = batch_for(TINY)


def test_recomputing_gives_equal_values_and_gradients_dropout_included() -> None:
    outcomes = []
    for recompute in (False, True):
        model = randomised(T5(DROPPING))
        model.activation_checkpointing = recompute
        calls: list[nn.Module] = []
        for block in (*model.encoder.block, *model.decoder.block):
            block.register_forward_pre_hook(lambda module, _, calls=calls: calls.append(module))
        torch.manual_seed(5)
        nats = model(BATCH)["target_token"].nats
        nats.backward()
        # Two layers and one, each of them once more in the backward pass.
        assert len(calls) == (6 if recompute else 3)
        outcomes.append((nats.detach(), gradients(model)))
    (nats, kept), (recomputed_nats, recomputed) = outcomes
    assert torch.equal(nats, recomputed_nats)
    assert_same_gradients(recomputed, kept, atol=0)


def test_dropout_acts_in_training_only() -> None:
    model = randomised(T5(DROPPING))
    assert model(BATCH)["target_token"].nats != model(BATCH)["target_token"].nats
    model.eval()
    assert model(BATCH)["target_token"].nats == model(BATCH)["target_token"].nats


@pytest.mark.parametrize("form", FORMS)
def test_a_forward_pass_never_waits_for_a_value(form: str) -> None:
    """The meta device has shapes and no values, so code that waits for one fails."""
    with torch.device("meta"):
        term = T5(FORMS[form][0]).terms({name: tensor.to("meta") for name, tensor in BATCH.items()})["target_token"]
    assert [value.shape for value in term] == [torch.Size([])] * 3


def test_building_draws_nothing_from_the_global_generator() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    T5(TINY)
    assert torch.equal(torch.rand(3), expected)


def test_the_same_seed_gives_the_same_weights_whatever_was_drawn_before() -> None:
    drawn = []
    for seed in (3, 3, 4):
        torch.rand(5)
        model = T5(TINY)
        model.initialise(torch.Generator().manual_seed(seed))
        drawn.append(model.state_dict())
    first, second, other = drawn
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_under_autocast_the_sums_are_float32_and_nearly_the_same() -> None:
    model = randomised(T5(TINY), spread=0.3).eval()
    exact = model(BATCH)["target_token"]
    with torch.autocast("cpu", torch.bfloat16):
        coarse = model(BATCH)["target_token"]
    assert coarse.nats.dtype == torch.float32
    assert not torch.equal(coarse.nats, exact.nats), "nothing was computed in bfloat16"
    torch.testing.assert_close(coarse.nats, exact.nats, rtol=0.02, atol=0.0)
    assert coarse.count == exact.count


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_one_array_as_large_as_the_logits_is_kept_for_the_backward_pass(precision: torch.dtype) -> None:
    """With 250,112 tokens that is 1 MB for each position of a target; a second array would double it."""
    model, kept = randomised(T5(replace(TINY, vocabulary_size=1009))), set()

    def pack(tensor: Tensor) -> Tensor:
        if tensor.numel() == 1009 * BATCH["labels"].numel():
            kept.add((tensor.untyped_storage().data_ptr(), tensor.dtype))
        return tensor

    enabled = precision != torch.float32
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        model(BATCH)
    assert [dtype for _, dtype in kept] == [torch.float32]
