"""Buckets of distances, shifted labels and masks of T5."""

from dataclasses import replace

import pytest
import torch
from architectures import T5_11, gradients, randomised, t5_batch
from transformers.models.t5.modeling_t5 import T5Attention

from relm.models.t5 import T5
from relm.models.t5_attention import bucket_borders, relative_buckets

CPU = torch.device("cpu")


def test_buckets_hold_one_distance_each_and_then_more_and_more() -> None:
    seen = relative_buckets(13, 13, buckets=8, distance=16, both_ways=False, device=CPU)
    assert seen[12].tolist() == [7, 6, 6, 6, 6, 5, 5, 4, 4, 3, 2, 1, 0]
    assert seen[0].tolist() == [0] * 13, "what follows is in the bucket of the token itself"


def test_the_encoder_has_buckets_for_each_direction() -> None:
    seen = relative_buckets(11, 11, buckets=8, distance=8, both_ways=True, device=CPU)
    assert seen[5].tolist() == [3, 3, 2, 2, 1, 0, 5, 6, 6, 7, 7]


@pytest.mark.parametrize("both_ways", [True, False], ids=["encoder", "decoder"])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 12), (4, 3), (5, 9), (64, 512), (16, 20)])
def test_buckets_are_those_of_transformers(buckets: int, distance: int, both_ways: bool) -> None:
    length = 2 * distance
    relative = torch.arange(length) - torch.arange(length)[:, None]
    expected = T5Attention._relative_position_bucket(relative, both_ways, buckets, distance)
    assert torch.equal(relative_buckets(length, length, buckets, distance, both_ways, CPU), expected)


def test_borders_follow_a_geometric_series() -> None:
    assert bucket_borders(16, 128) == [12, 16, 23, 32, 46, 64, 91]
    assert bucket_borders(2, 3) == []


def test_the_decoder_reads_the_labels_shifted_by_one() -> None:
    ours = T5(replace(T5_11, pad_token_id=3, decoder_start_token_id=4))
    read = ours.decoder_inputs(torch.tensor([[7, 8, 1], [9, -100, -100]]))
    assert read.tolist() == [[4, 7, 8], [4, 9, 3]]


def test_a_source_without_padding_needs_no_mask_and_a_mask_may_be_integers() -> None:
    ours, batch = randomised(T5(T5_11)), t5_batch(T5_11)
    ids, target = batch["input_ids"], ours.decoder_inputs(batch["labels"])
    torch.testing.assert_close(ours.logits(ids, target), ours.logits(ids, target, torch.ones_like(ids)))
    as_numbers = ours.logits(ids, target, batch["attention_mask"].long())
    assert torch.equal(as_numbers, ours.logits(ids, target, batch["attention_mask"]))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_pair_without_a_token_stays_finite(kind: torch.dtype) -> None:
    ours, batch = randomised(T5(T5_11)).to(kind), t5_batch(T5_11)
    batch["attention_mask"][1] = False
    batch["labels"][1] = -100
    ours.terms(batch)["target_token"].nats.backward()
    assert all(gradient.isfinite().all() for gradient in gradients(ours).values())
