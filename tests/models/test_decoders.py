"""Attention of decoders, small enough to check by hand: masks, and turned queries and keys."""

import pytest
import torch
from architectures import DECODERS, IDS

from relm.models.decoder import document_mask
from relm.models.layers import rotary_angles, rotated


@pytest.mark.parametrize("name", ["gpt2", "llama-8/4"])
def test_attention_is_causal(name: str) -> None:
    model, changed = DECODERS[name].build(), IDS.clone()
    changed[:, 4:] = 7
    torch.testing.assert_close(model.logits(IDS)[:, :4], model.logits(changed)[:, :4], rtol=0, atol=0)
    assert not torch.equal(model.logits(IDS)[:, 4:], model.logits(changed)[:, 4:])


def test_a_token_attends_to_itself_and_to_those_before_it_in_its_document() -> None:
    seen = document_mask(torch.tensor([[0, 0, 1], [0, 1, 1]])).int()
    assert seen[0, 0].tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    assert seen[1, 0].tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]


def test_a_pair_turns_by_its_wavelength() -> None:
    """By hand: heads of four numbers and base 100 have two pairs, which turn by 1 and by 1/10 from one position to the next."""
    x = torch.tensor([1.0, 1.0, 0.0, 0.0]).expand(1, 1, 3, 4)
    turned = rotated(x, rotary_angles(torch.arange(3), 4, 100.0))[0, 0]
    angles = torch.tensor([[0.0, 0.0], [1.0, 0.1], [2.0, 0.2]])
    torch.testing.assert_close(turned, torch.cat([angles.cos(), angles.sin()], dim=1))
