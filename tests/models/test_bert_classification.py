"""The heads for classes and scores against transformers' classifiers, and the encoder that they are put on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bert_cases import FORMS, TINY, batch_for
from random_weights import assert_same_gradients, gradients, randomised
from torch import Tensor
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification, RobertaForSequenceClassification

from relm.models.bert import Bert
from relm.models.bert_classification import BertForClassification
from relm.models.bert_configuration import BertConfig
from relm.models.losses import squared_error

CLASSES = {
    "masked": BertForSequenceClassification,
    "tanh": BertForSequenceClassification,
    "roberta": RobertaForSequenceClassification,
}
# Count of outputs -> labels of three sequences.
LABELS: dict[int, Tensor] = {1: torch.tensor([0.0, 2.25, 5.0]), 2: torch.tensor([1, 0, 1]), 3: torch.tensor([2, 0, 1])}


def labelled_batch(config: BertConfig) -> dict[str, Tensor]:
    """Return three sequences with labels."""
    batch = {key: batch_for(config)[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    if config.family == "roberta":  # transformers counts positions of tokens that are not padding
        batch["input_ids"] = torch.where(batch["attention_mask"].bool(), batch["input_ids"].clamp(min=2), 1)
    return {**batch, "scores" if config.labels == 1 else "class_labels": LABELS[config.labels]}


def models(form: str, labels: int, folder: Path) -> tuple[BertForClassification, Any]:
    """Return our model, and the one that transformers reads from its folder with every weight found and none left over."""
    ours = randomised(BertForClassification(replace(FORMS[form][0], labels=labels)), 0.5)
    ours.save_folder(folder, {})
    theirs, report = CLASSES[form].from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return ours, theirs.train()


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("form", CLASSES)
def test_logits_loss_and_all_gradients_equal_those_of_transformers(form: str, labels: int, tmp_path: Path) -> None:
    ours, theirs = models(form, labels, tmp_path)
    batch = labelled_batch(ours.config)
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    expected = theirs(**inputs, labels=LABELS[labels])
    assert theirs.config.num_labels == labels
    logits = ours.logits(**inputs)
    torch.testing.assert_close(logits, expected.logits, rtol=1e-5, atol=1e-5)

    (name,) = ours(batch)
    term = ours(batch)[name]
    assert name == ("score" if labels == 1 else "class")
    torch.testing.assert_close(term.nats / term.count, expected.loss, rtol=1e-5, atol=1e-6)
    assert term.count == 3
    right = (logits[:, 0] - LABELS[1]).abs() < 0.5 if labels == 1 else logits.argmax(-1) == LABELS[labels]
    assert term.correct == right.sum()
    (term.nats / term.count).backward()
    expected.loss.backward()
    assert_same_gradients(
        {ours.config.published_name(name): each for name, each in gradients(ours).items()}, gradients(theirs), atol=1e-5
    )


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_dropout_is_where_transformers_has_it(family: str, tmp_path: Path) -> None:
    form = {"bert": "masked", "roberta": "roberta"}[family]
    config = replace(FORMS[form][0], labels=2, hidden_dropout=0.5)
    ours = randomised(BertForClassification(config), 0.5)
    ours.save_folder(tmp_path, {})
    theirs = CLASSES[form].from_pretrained(tmp_path)
    hidden = torch.randn(3, 1, config.hidden_size, generator=torch.Generator().manual_seed(0))

    def their_head() -> Tensor:
        if family == "roberta":
            return theirs.classifier(hidden)
        return theirs.classifier(theirs.dropout(theirs.bert.pooler(hidden)))

    for train in (True, False):
        ours.train(train)
        theirs.train(train)
        torch.manual_seed(5)
        found = ours.head(hidden)
        torch.manual_seed(5)
        torch.testing.assert_close(found, their_head(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_it_is_put_on_the_encoder_of_a_masked_model(form: str, tmp_path: Path) -> None:
    masked = randomised(Bert(FORMS[form][0]), 0.5)
    masked.save_folder(tmp_path, {})
    models = [BertForClassification.on_encoder(tmp_path, torch.Generator().manual_seed(seed), labels=3) for seed in (3, 3, 4)]
    states = [model.state_dict() for model in models]
    for name, weight in states[0].items():
        assert torch.equal(weight, states[1][name]), name
        if name in masked.state_dict():
            assert torch.equal(weight, masked.state_dict()[name]), name
        elif weight.dim() == 1:
            assert not weight.any(), name
        else:
            assert not torch.equal(weight, states[2][name]), name
            assert 0.005 < float(weight.std()) < 0.05, name
    # A model of sentence pairs has a pooler, which goes on being trained.
    assert ("bert.pooler.dense.weight" in masked.state_dict()) == (form == "pairs")
    assert ("bert.pooler.dense.weight" in states[0]) == (form != "roberta")
    assert models[0].config.labels == 3


@pytest.mark.parametrize(("form", "labels"), [("masked", 3), ("roberta", 1)])
def test_a_folder_gives_the_same_model_again(form: str, labels: int, tmp_path: Path) -> None:
    saved, _ = models(form, labels, tmp_path)
    read = BertForClassification.from_folder(tmp_path)
    assert read.config == saved.config
    assert all(torch.equal(weight, read.state_dict()[name]) for name, weight in saved.state_dict().items())
    with pytest.raises(ValueError, match=r"labels is \d, expected 2"):
        BertForClassification.from_folder(tmp_path, expected=replace(saved.config, labels=2))


@pytest.mark.parametrize("labels", LABELS)
def test_a_folder_that_transformers_wrote_is_read(labels: int, tmp_path: Path) -> None:
    _, theirs = models("masked", labels, tmp_path)
    (tmp_path / "theirs").mkdir()
    theirs.save_pretrained(tmp_path / "theirs")
    read = BertForClassification.from_folder(tmp_path / "theirs")
    inputs = labelled_batch(read.config)
    batch = {key: inputs[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    torch.testing.assert_close(read.logits(**batch), theirs(**batch).logits, rtol=1e-5, atol=1e-5)
    auto = AutoModelForSequenceClassification.from_pretrained(tmp_path / "theirs")
    assert type(auto) is BertForSequenceClassification


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"problem_type": "multi_label_classification"}, "problem_type is 'multi_label_classification', expected null or"),
        ({"id2label": ["a"]}, r"id2label is \['a'\], expected an object with a name for each label"),
    ],
)
def test_a_configuration_of_another_loss_is_refused(keys: dict[str, Any], message: str) -> None:
    content = replace(TINY, head="classes").to_huggingface() | keys
    with pytest.raises(ValueError, match=message):
        BertConfig.from_huggingface(content)


def test_a_configuration_without_names_of_labels_has_two() -> None:
    content = replace(TINY, head="classes", labels=3).to_huggingface()
    assert BertConfig.from_huggingface(content).labels == 3
    for key in ("id2label", "label2id", "problem_type"):
        del content[key]
    assert BertConfig.from_huggingface(content).labels == 2


def test_segments_in_order_equal_the_whole() -> None:
    for labels, name in ((3, "class"), (1, "score")):
        model = randomised(BertForClassification(replace(TINY, labels=labels)), 0.5)
        batch, state = labelled_batch(model.config), {}
        for segment in model.segments():
            state = segment.run(batch, state)
        term = model(batch)[name]
        assert torch.equal(state[f"{name}.nats"], term.nats)
        assert torch.equal(state[f"{name}.correct"], term.correct)


def test_a_score_without_a_label_counts_nothing() -> None:
    predicted = torch.tensor([1.0, 7.0, 3.0], requires_grad=True)
    term = squared_error(predicted, torch.tensor([1.25, -100.0, 5.0]))
    assert (float(term.nats.detach()), int(term.count), int(term.correct)) == (0.0625 + 4.0, 2, 1)
    term.nats.backward()
    assert predicted.grad is not None
    assert predicted.grad.tolist() == [-0.5, 0.0, -4.0]
