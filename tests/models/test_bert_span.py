"""The head for answers against transformers' classes for question answering, and the encoder that it is put on."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bert_cases import FORMS, TINY, batch_for
from random_weights import assert_same_gradients, gradients, randomised
from torch import Tensor
from transformers import BertForQuestionAnswering, RobertaForQuestionAnswering

from relm.models.bert import Bert
from relm.models.bert_configuration import BertConfig
from relm.models.bert_span import BertForSpans

CLASSES = {"masked": BertForQuestionAnswering, "tanh": BertForQuestionAnswering, "roberta": RobertaForQuestionAnswering}


def span_batch(config: BertConfig) -> dict[str, Tensor]:
    """Return three sequences with the positions of their answers; the last one's is not in it."""
    batch = {key: batch_for(config)[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    if config.family == "roberta":  # transformers gives its padding another position
        batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
        batch["input_ids"] = batch["input_ids"].clamp(min=2)
    return {**batch, "answer_positions": torch.tensor([[2, 6], [1, 1], [0, 0]])}


@pytest.mark.parametrize("form", CLASSES)
def test_logits_loss_and_all_gradients_equal_those_of_transformers(form: str, tmp_path: Path) -> None:
    config = FORMS[form][0]
    ours = randomised(BertForSpans(config), 0.5)
    ours.save_folder(tmp_path, {})
    theirs, report = CLASSES[form].from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    batch = span_batch(config)
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
    starts, ends = batch["answer_positions"].T
    expected = theirs.train()(**inputs, start_positions=starts, end_positions=ends)
    logits = torch.stack([expected.start_logits, expected.end_logits], 1)
    torch.testing.assert_close(ours.logits(**inputs), logits, rtol=1e-5, atol=1e-5)

    term = ours(batch)["answer"]
    torch.testing.assert_close(term.nats / term.count, expected.loss, rtol=1e-6, atol=1e-6)
    assert term.count == 6
    assert term.correct == (logits.argmax(-1) == batch["answer_positions"]).sum()
    (term.nats / term.count).backward()
    expected.loss.backward()
    assert_same_gradients({ours.config.published_name(name): each for name, each in gradients(ours).items()}, gradients(theirs))


@pytest.mark.parametrize("form", FORMS)
def test_it_is_put_on_the_encoder_of_a_masked_model(form: str, tmp_path: Path) -> None:
    masked = randomised(Bert(FORMS[form][0]), 0.5)
    masked.save_folder(tmp_path, {})
    model = BertForSpans.on_encoder(tmp_path, torch.Generator().manual_seed(3))
    again = BertForSpans.on_encoder(tmp_path, torch.Generator().manual_seed(3))
    other = BertForSpans.on_encoder(tmp_path, torch.Generator().manual_seed(4))
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
        if name.startswith("bert."):
            assert torch.equal(weight, masked.state_dict()[name]), name
    assert not torch.equal(model.qa_outputs.weight, other.qa_outputs.weight)
    assert 0.005 < float(model.qa_outputs.weight.detach().std()) < 0.05
    assert not model.qa_outputs.bias.any()


def test_a_folder_gives_the_same_model_again(tmp_path: Path) -> None:
    saved = randomised(BertForSpans(FORMS["roberta"][0]), 0.5)
    saved.save_folder(tmp_path, {})
    read = BertForSpans.from_folder(tmp_path)
    assert read.config == saved.config
    assert all(torch.equal(weight, read.state_dict()[name]) for name, weight in saved.state_dict().items())
    with pytest.raises(ValueError, match=r"cls.predictions.bias is missing"):
        Bert.from_folder(tmp_path)


def test_an_encoder_that_lacks_a_weight_is_refused(tmp_path: Path) -> None:
    Bert(replace(TINY, layers=1)).save_folder(tmp_path, {})
    config = (tmp_path / "config.json").read_text().replace('"num_hidden_layers": 1', '"num_hidden_layers": 2')
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ValueError, match=r"bert.encoder.layer.1.attention.self.query.weight is missing"):
        BertForSpans.on_encoder(tmp_path, torch.Generator())


def test_segments_in_order_equal_the_whole() -> None:
    model, batch, state = randomised(BertForSpans(TINY), 0.5), span_batch(TINY), {}
    for segment in model.segments():
        state = segment.run(batch, state)
    term = model(batch)["answer"]
    assert torch.equal(state["answer.nats"], term.nats)
    assert torch.equal(state["answer.correct"], term.correct)
