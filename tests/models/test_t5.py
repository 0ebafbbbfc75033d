"""T5 and mT5 against transformers' classes, implementations that share no line with ours."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from random_weights import assert_same_gradients, gradients, randomised
from t5_cases import FORMS, TINY, batch_for, pair
from torch import Tensor
from transformers.models.t5.modeling_t5 import T5Attention

from relm.models.t5 import T5, T5Config
from relm.models.t5_attention import bucket_borders, relative_buckets

CPU = torch.device("cpu")


def compare(form: str, folder: Path, config: T5Config | None, batch: dict[str, Tensor], spread: float = 0.5) -> None:
    """Compare the logits, the loss, the count of correct ones, and the gradient of every parameter."""
    ours, theirs = pair(form, folder, config, spread)
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    with torch.no_grad():  # so that some answers are right
        batch["labels"][:, 0] = theirs(**inputs, labels=batch["labels"]).logits[:, 0].argmax(-1)
    expected = theirs(**inputs, labels=batch["labels"])
    logits = ours.logits(batch["input_ids"], ours.decoder_inputs(batch["labels"]), batch["attention_mask"])
    torch.testing.assert_close(logits, expected.logits, rtol=1e-5, atol=2e-5)

    term = ours(batch)["target_token"]
    torch.testing.assert_close(term.nats / term.count, expected.loss, rtol=2e-6, atol=1e-6)
    assert term.count == (batch["labels"] != -100).sum()
    right = (expected.logits.argmax(-1) == batch["labels"]).sum()
    assert term.correct == right >= 3

    (term.nats / term.count).backward()
    expected.loss.backward()
    assert_same_gradients(gradients(ours), gradients(theirs), atol=2e-6)
    assert set(gradients(ours)) == {name for name, _ in ours.named_parameters()}


@pytest.mark.parametrize("form", FORMS)
def test_logits_loss_and_all_gradients_equal_those_of_transformers(form: str, tmp_path: Path) -> None:
    compare(form, tmp_path, None, batch_for(TINY))


@pytest.mark.parametrize("form", ["1.0", "mt5"])
def test_dropout_falls_where_that_of_transformers_falls(form: str, tmp_path: Path) -> None:
    """Dropout drawn from the same numbers in the same order gives the same loss."""
    ours, theirs = pair(form, tmp_path, replace(FORMS[form][0], dropout=0.2))
    batch = batch_for(TINY)
    torch.manual_seed(3)
    expected = theirs(**batch).loss
    torch.manual_seed(3)
    term = ours.terms(batch)["target_token"]
    torch.testing.assert_close(term.nats / term.count, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(term.nats, ours.eval().terms(batch)["target_token"].nats, rtol=1e-3)


@pytest.mark.full
def test_full_width_equals_transformers_too(tmp_path: Path) -> None:
    """The case is two layers of mT5-base, with distances on both sides of the last border."""
    config = T5Config(2, 12, 64, 768, 2048, vocabulary_size=32_128, dropout=0.0, family="mt5")
    compare("mt5", tmp_path, config, batch_for(config, source=256, target=160), spread=0.03)


@pytest.mark.parametrize("form", FORMS)
def test_parameter_names_and_shapes_are_those_of_transformers(form: str, tmp_path: Path) -> None:
    ours, theirs = pair(form, tmp_path)
    expected = {name: tuple(parameter.shape) for name, parameter in theirs.named_parameters()}
    assert {name: tuple(parameter.shape) for name, parameter in ours.named_parameters()} == expected


MT5_BASE = T5Config(12, 12, 64, 768, 2048, 250_112, family="mt5")


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (T5Config(6, 8, 64, 512, 2048, 32_128, tied_head=True, feed_forward="relu"), 60_506_624),
        (T5Config(12, 12, 64, 768, 3072, 32_128, tied_head=True, feed_forward="relu"), 222_903_552),
        (T5Config(12, 12, 64, 768, 2048, 32_128), 247_577_856),
        (T5Config(8, 6, 64, 512, 1024, 250_112, family="mt5"), 300_176_768),
        (MT5_BASE, 582_401_280),
        (T5Config(24, 16, 64, 1024, 2816, 250_112, family="mt5"), 1_229_581_312),
    ],
    ids=["t5-small", "t5-base", "t5-v1.1-base", "mt5-small", "mt5-base", "mt5-large"],
)
def test_published_models_have_their_count_of_parameters(config: T5Config, parameters: int) -> None:
    with torch.device("meta"):
        assert T5(config).parameter_count() == parameters


def test_the_card_of_the_romanian_mt5_counts_all_but_the_head() -> None:
    """The card has 390 M, and the file 2.33 GB of float32: as many parameters as an mT5-base with an untied head."""
    with torch.device("meta"):
        whole, tied = (T5(replace(MT5_BASE, tied_head=tied)).parameter_count() for tied in (False, True))
    assert (whole, tied) == (582_401_280, 390_315_264)
    assert whole - tied == 250_112 * 768
    assert (round(4 * whole / 1e9, 2), round(4 * tied / 1e9, 2)) == (2.33, 1.56)


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
    ours = T5(replace(TINY, pad_token_id=3, decoder_start_token_id=4))
    read = ours.decoder_inputs(torch.tensor([[7, 8, 1], [9, -100, -100]]))
    assert read.tolist() == [[4, 7, 8], [4, 9, 3]]


def test_a_target_token_attends_to_those_before_it_and_to_all_of_the_source() -> None:
    ours = randomised(T5(TINY))
    source, target = batch_for(TINY)["input_ids"], torch.arange(6).expand(3, 6)
    before = ours.logits(source, target)
    later = target.clone()
    later[:, 4:] = 9
    torch.testing.assert_close(ours.logits(source, later)[:, :4], before[:, :4], rtol=0, atol=0)
    assert not torch.equal(ours.logits(source, later)[:, 4:], before[:, 4:])
    source = source.clone()
    source[:, -1] = 9
    assert (ours.logits(source, target) != before).any(-1).all()


def test_tokens_in_padding_change_nothing() -> None:
    ours, batch = randomised(T5(TINY)), batch_for(TINY)
    padding = ~batch["attention_mask"]
    changed = batch | {"input_ids": torch.where(padding, 9, batch["input_ids"])}
    assert padding.any()
    assert torch.equal(ours.terms(batch)["target_token"].nats, ours.terms(changed)["target_token"].nats)
    longer = {
        "input_ids": torch.nn.functional.pad(batch["input_ids"], (0, 4)),
        "attention_mask": torch.nn.functional.pad(batch["attention_mask"], (0, 4)),
        "labels": torch.nn.functional.pad(batch["labels"], (0, 4), value=-100),
    }
    for found, expected in zip(ours.terms(longer)["target_token"], ours.terms(batch)["target_token"], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0.0)


def test_a_source_without_padding_needs_no_mask_and_a_mask_may_be_integers() -> None:
    ours, batch = randomised(T5(TINY)), batch_for(TINY)
    ids, target = batch["input_ids"], ours.decoder_inputs(batch["labels"])
    torch.testing.assert_close(ours.logits(ids, target), ours.logits(ids, target, torch.ones_like(ids)))
    as_numbers = ours.logits(ids, target, batch["attention_mask"].long())
    assert torch.equal(as_numbers, ours.logits(ids, target, batch["attention_mask"]))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_pair_without_a_token_stays_finite(kind: torch.dtype) -> None:
    ours, batch = randomised(T5(TINY)).to(kind), batch_for(TINY)
    batch["attention_mask"][1] = False
    batch["labels"][1] = -100
    ours.terms(batch)["target_token"].nats.backward()
    assert all(gradient.isfinite().all() for gradient in gradients(ours).values())


@pytest.mark.parametrize("form", ["1.0", "mt5"])
def test_transformers_generates_our_likeliest_tokens_from_a_saved_folder(form: str, tmp_path: Path) -> None:
    ours, theirs = pair(form, tmp_path)
    batch = batch_for(TINY)
    source, mask = batch["input_ids"], batch["attention_mask"]
    written = theirs.eval().generate(
        input_ids=source, attention_mask=mask, max_new_tokens=5, min_new_tokens=5, do_sample=False, num_beams=1
    )
    encoded = ours.encoded(source, mask)
    ids = torch.zeros(3, 1, dtype=torch.int64)
    for _ in range(5):
        logits = ours.decoded(ids, encoded, mask)[:, -1]
        logits[:, 1] = -torch.inf  # the end, which min_new_tokens forbids
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
    assert ids.tolist() == written.tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 0}, "layers is 0, expected a whole number from 1 on"),
        ({"decoder_layers": 0}, "decoder_layers is 0, expected a whole number from 1 on, or none"),
        ({"head_size": -1}, "head_size is -1, expected a whole number from 1 on"),
        ({"dropout": 1.0}, "dropout is 1.0, expected a share from 0 to below 1"),
        ({"family": "byt5"}, "family is 'byt5', expected t5 or mt5"),
        ({"feed_forward": "gelu"}, "feed_forward is 'gelu', expected gated_gelu or relu"),
        ({"relative_attention_buckets": 3}, "relative_attention_buckets is 3, expected at least 4"),
        ({"relative_attention_distance": 4}, "relative_attention_distance is 4, expected more than 4, half of"),
        ({"pad_token_id": 23}, "pad_token_id is 23, expected one of the 23 tokens"),
        ({"decoder_start_token_id": -1}, "decoder_start_token_id is -1, expected one of the 23 tokens"),
    ],
)
def test_an_impossible_architecture_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)


def test_decoder_layers_equal_to_layers_are_the_same_architecture_as_none() -> None:
    assert replace(TINY, decoder_layers=2) == TINY
    assert len(T5(replace(TINY, layers=3)).decoder.block) == 3
