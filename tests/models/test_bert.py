"""BERT against transformers' classes, implementations that share no line with ours."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bert_cases import FORMS, GRAPHCORE, TINY, batch_for, dense_labels, pair
from random_weights import assert_same_gradients, gradients, randomised
from torch import Tensor
from transformers import BertForNextSentencePrediction, BertModel

from relm.models.bert import Bert, BertConfig
from relm.models.losses import Term, cross_entropy

WIDE = {
    "base": BertConfig(1, 12, 768, 3072, positions=512, vocabulary_size=30_522, next_sentence=True),
    "large": BertConfig(1, 16, 1024, 4096, positions=512, vocabulary_size=30_522),
    "roberta": BertConfig(
        1, 12, 768, 3072, positions=512, vocabulary_size=50_265, type_vocabulary_size=1, family="roberta", padding_id=1,
        layer_norm_epsilon=1e-5,
    ),
}  # fmt: skip


def mean_loss(terms: dict[str, Term]) -> Tensor:
    return sum(term.nats / term.count for term in terms.values())


def compare(form: str, folder: Path, config: BertConfig | None, batch: dict[str, Tensor], spread: float = 0.5) -> None:
    """Compare the logits of tokens, the loss, the count of correct ones, and the gradient of every parameter."""
    ours, theirs = pair(form, folder, config, spread)
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    with torch.no_grad():  # so that some answers are right
        batch["masked_labels"][:, 0] = theirs(**inputs)[0].argmax(-1).gather(1, batch["masked_positions"][:, :1])[:, 0]
    more = {"next_sentence_label": batch["next_sentence_labels"]} if ours.config.next_sentence else {}
    expected = theirs(**inputs, labels=dense_labels(batch), **more)
    expected_logits = expected.prediction_logits if more else expected.logits
    token = batch["attention_mask"].bool()
    torch.testing.assert_close(ours.logits(**inputs)[token], expected_logits[token], rtol=1e-5, atol=2e-5)
    if more:
        logits = ours.next_sentence_logits(**inputs)
        torch.testing.assert_close(logits, expected.seq_relationship_logits, rtol=1e-5, atol=1e-5)

    terms = ours(batch)
    torch.testing.assert_close(mean_loss(terms), expected.loss, rtol=2e-6, atol=1e-6)
    assert terms["masked_token"].count == (batch["masked_labels"] != -100).sum()
    right = (expected_logits.argmax(-1) == dense_labels(batch)).sum()
    assert terms["masked_token"].correct == right >= 3

    mean_loss(terms).backward()
    expected.loss.backward()
    named = {ours.config.published_name(name): gradient for name, gradient in gradients(ours).items()}
    assert_same_gradients(named, gradients(theirs))


@pytest.mark.parametrize("form", FORMS)
def test_logits_loss_and_all_gradients_equal_those_of_transformers(form: str, tmp_path: Path) -> None:
    compare(form, tmp_path, None, batch_for(FORMS[form][0]))


@pytest.mark.parametrize("form", ["masked", "pairs"])
def test_an_attended_padding_token_learns_from_the_output_side_alone_as_in_transformers(form: str, tmp_path: Path) -> None:
    batch = batch_for(FORMS[form][0])
    batch["input_ids"][0, 5] = FORMS[form][0].padding_id
    compare(form, tmp_path, None, batch)


@pytest.mark.parametrize(
    ("hidden", "attention"), [(0.3, 0.0), (0.0, 0.3), (0.2, 0.4)], ids=["hidden", "attention", "different"]
)
def test_dropout_falls_where_that_of_transformers_falls(hidden: float, attention: float, tmp_path: Path) -> None:
    """Dropout drawn from the same numbers in the same order gives the same logits."""
    config = replace(FORMS["pairs"][0], hidden_dropout=hidden, attention_dropout=attention)
    ours, theirs = pair("pairs", tmp_path, config)
    inputs = {
        key: value for key, value in batch_for(config).items() if key in ("input_ids", "attention_mask", "token_type_ids")
    }
    token = inputs["attention_mask"].bool()
    torch.manual_seed(3)
    expected = theirs(**inputs)
    torch.manual_seed(3)
    found = ours.logits(**inputs)[token]
    torch.testing.assert_close(found, expected.prediction_logits[token], rtol=1e-5, atol=1e-5)
    torch.manual_seed(3)
    logits = ours.next_sentence_logits(**inputs)
    torch.testing.assert_close(logits, expected.seq_relationship_logits, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, ours.eval().logits(**inputs)[token], atol=1e-2)


@pytest.mark.full
@pytest.mark.parametrize(("width", "form"), [("base", "pairs"), ("large", "masked"), ("roberta", "roberta")])
def test_full_width_equals_transformers_too(width: str, form: str, tmp_path: Path) -> None:
    config = replace(WIDE[width], hidden_dropout=0.0, attention_dropout=0.0)
    compare(form, tmp_path, config, batch_for(config, length=128, capacity=20), spread=0.03)


@pytest.mark.parametrize("form", FORMS)
def test_parameter_names_and_shapes_are_those_of_transformers(form: str) -> None:
    config, kind = FORMS[form]
    theirs = kind(kind.config_class.from_dict(config.to_huggingface()))
    expected = {name: tuple(parameter.shape) for name, parameter in theirs.named_parameters()}
    found = {config.published_name(name): tuple(parameter.shape) for name, parameter in Bert(config).named_parameters()}
    assert found == expected


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (BertConfig(12, 12, 768, 3072, 512, 30_522), 109_514_298),
        (BertConfig(12, 12, 768, 3072, 512, 30_522, next_sentence=True), 110_106_428),
        (BertConfig(24, 16, 1024, 4096, 512, 30_522, next_sentence=True), 336_226_108),
        (BertConfig(12, 12, 768, 3072, 512, 50_265, 1, family="roberta", padding_id=1), 124_697_433),
        (BertConfig(24, 16, 1024, 4096, 512, 50_265, 1, family="roberta", padding_id=1), 355_412_057),
    ],
)
def test_published_models_have_their_count_of_parameters(config: BertConfig, parameters: int) -> None:
    with torch.device("meta"):
        assert Bert(config).parameter_count() == parameters


def test_gathering_changes_neither_the_loss_nor_gradients() -> None:
    ours, batch = randomised(Bert(TINY)), batch_for(TINY)
    gathered = ours.terms(batch)["masked_token"]
    gathered.nats.backward()
    found = gradients(ours)
    ours.zero_grad()
    everywhere = cross_entropy(
        ours.logits(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]), dense_labels(batch)
    )
    everywhere.nats.backward()
    torch.testing.assert_close(gathered.nats, everywhere.nats, rtol=1e-6, atol=1e-6)
    assert (gathered.count, gathered.correct) == (everywhere.count, everywhere.correct)
    assert_same_gradients(found, gradients(ours), atol=1e-5)


def test_logits_at_masked_positions_are_those_of_all_positions() -> None:
    ours, batch = randomised(Bert(TINY)), batch_for(TINY)
    everywhere = ours.logits(batch["input_ids"])
    some = ours.logits(batch["input_ids"], masked_positions=batch["masked_positions"])
    torch.testing.assert_close(some[1, 2], everywhere[1, batch["masked_positions"][1, 2]])
    assert some.shape == (3, 4, TINY.vocabulary_size)


def test_unused_positions_change_nothing() -> None:
    ours, batch = randomised(Bert(TINY)), batch_for(TINY)
    wider = batch | {
        "masked_positions": torch.nn.functional.pad(batch["masked_positions"], (0, 3)),
        "masked_labels": torch.nn.functional.pad(batch["masked_labels"], (0, 3), value=-100),
    }
    outcomes = []
    for given in (batch, wider):
        term = ours.terms(given)["masked_token"]
        term.nats.backward()
        outcomes.append((term, gradients(ours)))
        ours.zero_grad()
    (narrow_term, narrow), (wide_term, wide) = outcomes
    torch.testing.assert_close(list(narrow_term), list(wide_term))
    assert_same_gradients(narrow, wide)


def test_tokens_in_padding_change_nothing() -> None:
    ours, batch = randomised(Bert(FORMS["pairs"][0])), batch_for(TINY)
    padding = batch["attention_mask"] == 0
    changed = batch | {"input_ids": torch.where(padding, 9, batch["input_ids"])}
    assert padding.any()
    for name, term in ours.terms(batch).items():
        assert torch.equal(term.nats, ours.terms(changed)[name].nats), name


def test_a_sequence_without_padding_needs_no_mask() -> None:
    ours, ids = randomised(Bert(TINY)), batch_for(TINY)["input_ids"]
    torch.testing.assert_close(ours.logits(ids), ours.logits(ids, torch.ones_like(ids)))


def test_with_one_kind_of_segment_token_types_are_ignored() -> None:
    ours, batch = randomised(Bert(FORMS["roberta"][0])), batch_for(TINY)
    pairs = batch | {"token_type_ids": torch.ones_like(batch["input_ids"])}
    assert torch.equal(ours.terms(batch)["masked_token"].nats, ours.terms(pairs)["masked_token"].nats)


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="11 tokens, but the model has 10 positions"):
        Bert(TINY).logits(torch.zeros(1, 11, dtype=torch.int64))


def test_without_transform_layer_the_head_is_the_embedding_alone(tmp_path: Path) -> None:
    """Graphcore's recipe gives the same outputs in transformers, as far as its classes can hold it."""
    ours, batch = randomised(Bert(GRAPHCORE)), batch_for(GRAPHCORE)
    ours.save_folder(tmp_path, {})
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    encoder = BertModel.from_pretrained(tmp_path).eval()
    pairs, report = BertForNextSentencePrediction.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    words = encoder.embeddings.word_embeddings.weight
    token = batch["attention_mask"].bool()
    expected = encoder(**inputs).last_hidden_state @ words.T
    torch.testing.assert_close(ours.logits(**inputs)[token], expected[token], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.next_sentence_logits(**inputs), pairs.eval()(**inputs).logits, rtol=1e-5, atol=1e-5)


def test_switches_remove_the_weights_that_they_name() -> None:
    everything = {name for name, _ in Bert(replace(TINY, next_sentence=True)).named_parameters()}
    left_out = everything - {name for name, _ in Bert(GRAPHCORE).named_parameters()}
    attention = [f"bert.encoder.layer.{layer}.attention" for layer in (0, 1)]
    assert left_out == {
        *(f"{prefix}.self.{part}.bias" for prefix in attention for part in ("query", "key", "value")),
        *(f"{prefix}.output.dense.bias" for prefix in attention),
        *(f"cls.predictions.transform.{part}" for part in ("dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias")),
        "cls.predictions.bias",
    }


def test_the_bias_of_keys_changes_nothing() -> None:
    """So it does not matter that Graphcore does not train it."""
    ours, batch = randomised(Bert(TINY)), batch_for(TINY)
    before = ours.logits(batch["input_ids"])
    with torch.no_grad():
        ours.bert.encoder.layer[0].attention.self.key.bias += 3.0
    torch.testing.assert_close(ours.logits(batch["input_ids"]), before, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "heads is 3, expected a divisor of hidden_size, 8"),
        ({"layers": 0}, "layers is 0, expected a whole number from 1 on"),
        ({"activation": "relu"}, "activation is 'relu', expected gelu_tanh or gelu_erf"),
        ({"attention_dropout": 1.0}, "attention_dropout is 1.0, expected a share from 0 to below 1"),
        ({"initialisation": "xavier"}, "initialisation is 'xavier', expected normal or truncated_normal"),
        ({"family": "albert"}, "family is 'albert', expected bert or roberta"),
        ({"padding_id": 23}, "padding_id is 23, expected one of the 23 tokens"),
        ({"family": "roberta", "next_sentence": True}, "next_sentence is True, expected False for family roberta"),
        ({"family": "roberta", "activation": "gelu_tanh"}, "activation is 'gelu_tanh', expected 'gelu_erf' for family roberta"),
        ({"family": "roberta", "transform_layer": False}, "transform_layer is False, expected True for family roberta"),
        ({"family": "roberta", "padding_id": None}, "padding_id is None, expected a token's id for family roberta"),
    ],
)
def test_an_impossible_architecture_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)


def test_configurations_survive_a_file() -> None:
    for config in (*(config for config, _ in FORMS.values()), GRAPHCORE):
        assert BertConfig.from_huggingface(json.loads(json.dumps(config.to_huggingface()))) == config
