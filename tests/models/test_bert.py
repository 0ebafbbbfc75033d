"""A BERT ignores how positions are gathered, padding, unused positions and the bias of keys; switches remove weights."""

from dataclasses import replace

import torch
from architectures import BERT, BERTS, GRAPHCORE, bert_batch, randomised

from relm.models.bert import Bert


def test_tokens_in_padding_change_nothing() -> None:
    ours, batch = randomised(Bert(BERTS["pairs"].config)), bert_batch(BERT)
    padding = batch["attention_mask"] == 0
    changed = batch | {"input_ids": torch.where(padding, 9, batch["input_ids"])}
    assert padding.any()
    for name, term in ours.terms(batch).items():
        assert torch.equal(term.nats, ours.terms(changed)[name].nats), name


def test_with_one_kind_of_segment_token_types_are_ignored() -> None:
    ours, batch = randomised(Bert(BERTS["roberta"].config)), bert_batch(BERT)
    pairs = batch | {"token_type_ids": torch.ones_like(batch["input_ids"])}
    assert torch.equal(ours.terms(batch)["masked_token"].nats, ours.terms(pairs)["masked_token"].nats)


def test_switches_remove_the_weights_that_they_name() -> None:
    everything = {name for name, _ in Bert(replace(BERT, next_sentence=True)).named_parameters()}
    left_out = everything - {name for name, _ in Bert(GRAPHCORE).named_parameters()}
    attention = [f"bert.encoder.layer.{layer}.attention" for layer in (0, 1)]
    assert left_out == {
        *(f"{prefix}.self.{part}.bias" for prefix in attention for part in ("query", "key", "value")),
        *(f"{prefix}.output.dense.bias" for prefix in attention),
        *(f"cls.predictions.transform.{part}" for part in ("dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias")),
        "cls.predictions.bias",
    }
