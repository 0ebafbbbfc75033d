"""Graphcore's BERT for TensorFlow 1 by formula, in both of its layouts, has the loss and the gradients of our model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from architectures import GRAPHCORE, gradients, randomised
from torch import Tensor

from relm.examples.as_published.graphcore_bert import PAD_POSITION, remask
from relm.models.bert import Bert, BertConfig
from tensorflow_formula import TensorflowBert, as_variable, variables_of

LENGTH, PREDICTIONS, TOKENS = 16, 4, 50
# The table has a row for the position of empty slots, and the vocabulary rows that no token has.
PADDED = replace(GRAPHCORE, positions=512, vocabulary_size=30_400, activation="gelu_tanh")
SWITCHES: dict[str, BertConfig] = {
    "as published": PADDED,
    "biases of queries, keys and values": replace(PADDED, query_key_value_bias=True),
    "bias after attention": replace(PADDED, attention_projection_bias=True),
    "transform layer": replace(PADDED, transform_layer=True),
    "bias of predictions": replace(PADDED, prediction_bias=True),
}


def make_columns() -> dict[str, np.ndarray]:
    """Return five instances as they are stored: from full to short, with as many masks as positions and with fewer."""
    draws = np.random.default_rng(5)
    lengths, counts = np.array([16, 16, 14, 9, 5]), np.array([4, 4, 3, 2, 1])
    ids = np.where(np.arange(LENGTH) < lengths[:, None], draws.integers(1, TOKENS, (5, LENGTH)), 0)
    positions, labels = np.zeros((5, PREDICTIONS), np.int64), np.zeros((5, PREDICTIONS), np.int64)
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        positions[row, :count] = np.sort(1 + draws.permutation(length - 2)[:count])
        labels[row, :count] = draws.integers(1, TOKENS, count)
    return {
        "input_ids": ids, "length": lengths, "second_start": lengths // 2, "masked_positions": positions,
        "masked_labels": labels, "masked_count": counts, "next_sentence_label": np.array([0, 1, 1, 0, 1]),
    }  # fmt: skip


def model_inputs(columns: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Return the batch that training builds from such columns."""
    slots, used = np.arange(LENGTH), np.arange(PREDICTIONS) < columns["masked_count"][:, None]
    attended = slots < columns["length"][:, None]
    arrays = {
        "input_ids": columns["input_ids"],
        "attention_mask": attended.astype(np.int64),
        "token_type_ids": ((slots >= columns["second_start"][:, None]) & attended).astype(np.int64),
        "masked_positions": columns["masked_positions"],
        "masked_labels": np.where(used, columns["masked_labels"], -100),
        "next_sentence_labels": columns["next_sentence_label"],
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def original_of(model: Bert) -> TensorflowBert:
    parameters = dict(model.named_parameters())
    values = {theirs: as_variable(theirs, parameters[ours].detach()) for ours, theirs in variables_of(model).items()}
    assert len(values) == len(parameters)
    return TensorflowBert(values, heads=model.config.heads)


def assert_equal(model: Bert, batch: Mapping[str, Tensor], original: TensorflowBert, sums: tuple[Tensor, Tensor]) -> None:
    """Compare both terms, and the gradients of their weighted sum."""
    terms = model.terms(batch)
    for name, expected in zip(("masked_token", "next_sentence"), sums, strict=True):
        assert terms[name].nats.item() == pytest.approx(expected.item(), rel=1e-6)
    (terms["masked_token"].nats / 7 + terms["next_sentence"].nats / 5).backward()
    (sums[0] / 7 + sums[1] / 5).backward()
    found = gradients(model)
    assert found.keys() == dict(model.named_parameters()).keys()
    for ours, theirs in variables_of(model).items():
        expected = original.variables[theirs].grad
        torch.testing.assert_close(
            as_variable(theirs, found[ours]).double(), expected, rtol=2e-4, atol=2e-6, msg=lambda m, n=theirs: f"{n}: {m}"
        )


def as_tensors(fields: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.asarray(field)) for name, field in fields.items()}


@pytest.mark.parametrize("case", SWITCHES)
def test_masked_tokens_first_with_explicit_positions_change_neither_loss_nor_gradients(case: str) -> None:
    """The original trains on the remasked layout, and our model on the plain one."""
    model, columns = randomised(Bert(SWITCHES[case]), 0.3), make_columns()
    fields = as_tensors({name: array.astype(np.int64) for name, array in remask(columns, PREDICTIONS).items()})
    assert (fields["input_position"] == PAD_POSITION).any(), "some slots are empty"
    assert (fields["input_ids"][:, PREDICTIONS] == torch.from_numpy(columns["input_ids"][:, 0])).all(), "the first token"
    original = original_of(model)
    assert_equal(model, model_inputs(columns), original, original.remasked_terms(fields))


def test_rows_beyond_the_tokenizers_share_the_probability_and_learn() -> None:
    model = randomised(Bert(PADDED), 0.3)
    terms = model.terms(model_inputs(make_columns()))
    terms["masked_token"].nats.backward()
    gradient = model.bert.embeddings.word_embeddings.weight.grad
    assert gradient is not None
    assert gradient[TOKENS:].abs().sum(1).gt(0).all()
