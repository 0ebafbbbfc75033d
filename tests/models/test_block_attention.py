"""Attention within documents by blocks: the values and gradients of a mask of all pairs, and the blocks that are skipped."""

import pytest
import torch
from torch.nn.attention import flex_attention

from relm.models.attention import attention
from relm.models.block_attention import BLOCK, document_blocks
from relm.models.decoder import document_mask
from relm.models.gpt2 import Gpt2
from relm.models.gpt2_configuration import Gpt2Config

# Documents that begin within blocks, at their borders, and one over two whole blocks.
LENGTH = 3 * BLOCK + 40
STARTS = [[0, 60, BLOCK, 3 * BLOCK], [0, 10]]


def documents() -> torch.Tensor:
    ids = torch.zeros(2, LENGTH, dtype=torch.int64)
    for row, starts in zip(ids, STARTS, strict=True):
        for start in starts[1:]:
            row[start:] += 1
    return ids


@pytest.fixture
def backward_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lift torch's refusal: there is no kernel for the backward pass on a CPU, but its definition in plain products is."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda query, key, value: None)
    return


def outcome(seen: object) -> list[torch.Tensor]:
    """Return the values of attention and the gradients of queries, keys and values."""
    generator = torch.Generator().manual_seed(5)
    inputs = [torch.randn(2, 2, LENGTH, 16, generator=generator).requires_grad_() for _ in range(3)]
    mixed = attention(*inputs, seen)
    mixed.backward(torch.randn(mixed.shape, generator=generator))
    return [mixed.detach(), *(tensor.grad for tensor in inputs if tensor.grad is not None)]


@pytest.mark.usefixtures("backward_on_a_cpu")
def test_blocks_have_the_values_and_gradients_of_the_dense_mask() -> None:
    found, expected = outcome(document_blocks(documents())), outcome(document_mask(documents()))
    assert len(found) == 4
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


def test_no_block_without_a_common_document_is_computed_and_whole_ones_have_no_mask() -> None:
    blocks, mask = document_blocks(documents()), document_mask(documents())
    size = 4 * BLOCK
    by_block = torch.nn.functional.pad(mask, (0, size - LENGTH, 0, size - LENGTH)).view(2, 1, 4, BLOCK, 4, BLOCK)
    assert torch.equal(blocks.to_dense().bool(), by_block.any(-1).any(3))
    whole = by_block[..., :3, :, :, :].all(-1).all(3)
    numbers, counts = blocks.full_kv_indices[:, 0], blocks.full_kv_num_blocks[:, 0]
    for row in range(2):
        for block in range(3):
            taken = set(numbers[row, block, : counts[row, block]].tolist())
            assert taken == set(whole[row, 0, block].nonzero()[:, 0].tolist())
    assert counts[0].tolist() == [0, 0, 1, 0]
    assert counts[1].tolist() == [0, 0, 1, 2]


def test_dropout_is_refused() -> None:
    query = torch.zeros(2, 1, LENGTH, 8)
    with pytest.raises(ValueError, match=r"attention by blocks computes no dropout, found 0\.1"):
        attention(query, query, query, document_blocks(documents()), dropout=0.1)


@pytest.mark.usefixtures("backward_on_a_cpu")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_model_has_the_loss_and_gradients_of_the_dense_mask(checkpointing: bool) -> None:
    ids = torch.randint(0, 20, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "labels": ids.roll(-1, 1), "document_ids": documents()}
    losses, gradients = [], []
    for skips in (False, True):
        model = Gpt2(Gpt2Config(2, 2, 16, LENGTH, 20, dropout=0.0))
        model.initialise(torch.Generator().manual_seed(1))
        model.skips_blocks, model.activation_checkpointing = skips, checkpointing
        nats = model.terms(batch)["next_token"].nats
        (nats / ids.numel()).backward()
        losses.append(nats.detach())
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=0.0)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-7)
    assert not torch.equal(gradients[1], gradients[0]), "both computed the same form"


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_compiled_kernel_that_skips_blocks_has_the_values_of_the_dense_mask() -> None:
    generator = torch.Generator().manual_seed(5)
    query, key, value = (torch.randn(2, 2, LENGTH, 16, generator=generator) for _ in range(3))

    def compiled(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return attention(query, key, value, document_blocks(ids))

    found = torch.compile(compiled, dynamic=False, fullgraph=True)(query, key, value, documents())
    torch.testing.assert_close(found, attention(query, key, value, document_mask(documents())), rtol=1e-5, atol=2e-6)
