"""Every architecture against transformers' classes, implementations that share no line with ours."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import (
    BERTS,
    DOCUMENTS,
    FORMS,
    GPT2,
    GRAPHCORE,
    IDS,
    INPUTS,
    PAIRS,
    T5S,
    TUNED,
    Form,
    assert_same_gradients,
    bert_batch,
    classifier,
    form,
    gradients,
    randomised,
    t5_batch,
)
from torch import Tensor
from transformers import AutoModelForCausalLM, BertForNextSentencePrediction, BertModel

from relm.models.bert import Bert, BertConfig
from relm.models.decoder import document_mask
from relm.models.gpt2 import Gpt2Config
from relm.models.layers import set_traced
from relm.models.llama import Llama
from relm.models.t5 import T5, T5Config

# transformers' names of logits.
LOGITS = ("logits", "prediction_logits", "start_logits")


def inputs_of(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: batch[name] for name in INPUTS if name in batch}


def logits_of(ours: Any, batch: dict[str, Tensor]) -> Tensor:
    if isinstance(ours, T5):
        return ours.logits(batch["input_ids"], ours.decoder_inputs(batch["labels"]), batch["attention_mask"])
    return ours.logits(**inputs_of(batch))


def their_logits(output: Any) -> Tensor:
    found = next(getattr(output, name) for name in LOGITS if getattr(output, name, None) is not None)
    return torch.stack([found, output.end_logits], dim=1) if "start_logits" in output else found


def own_gradients(ours: Any) -> dict[str, Tensor]:
    """Return the gradients under the names of transformers."""
    if isinstance(ours, Llama):
        holder = Llama(ours.config)  # whose weights are the gradients
        holder.load_state_dict(gradients(ours))
        return holder.huggingface_weights()
    name_of = getattr(ours.config, "published_name", str)
    return {name_of(name): gradient for name, gradient in gradients(ours).items()}


def mean_loss(terms: dict[str, Any]) -> Tensor:
    return sum(term.nats / term.count for term in terms.values())


def compare(case: Form, folder: Path, batch: dict[str, Tensor], traced: bool = False, spread: float | None = None) -> None:
    """Compare logits, loss, counts of labels and of correct ones, and the gradient of every parameter."""
    ours, theirs = case.pair(folder, spread)
    set_traced(ours, traced)
    with torch.no_grad():  # so that some answers are right
        likeliest = their_logits(theirs(**inputs_of(batch), **case.labels(batch))).argmax(-1)
        if "labels" in batch:
            batch["labels"] = torch.cat([likeliest[:, :1], batch["labels"][:, 1:]], dim=1)
        elif "masked_labels" in batch:
            batch["masked_labels"][:, :1] = likeliest.gather(1, batch["masked_positions"][:, :1])
    expected = theirs(**inputs_of(batch), **case.labels(batch))
    logits, found = their_logits(expected), logits_of(ours, batch)
    token = batch["attention_mask"].bool() if "masked_labels" in batch else ...
    torch.testing.assert_close(found[token], logits[token], rtol=1e-5, atol=2e-5)
    if "seq_relationship_logits" in expected:
        pairs = ours._related(ours.encoded(**inputs_of(batch))[:, 0])
        torch.testing.assert_close(pairs, expected.seq_relationship_logits, rtol=1e-5, atol=1e-5)

    terms, wanted = ours(batch), case.answers(batch)
    torch.testing.assert_close(mean_loss(terms), expected.loss, rtol=2e-6, atol=1e-6)
    right = (found[:, 0] - wanted).abs() < 0.5 if "score" in terms else logits.argmax(-1) == wanted
    term = next(iter(terms.values()))
    assert (term.count, term.correct) == ((wanted != -100).sum(), right.sum())
    assert term.correct >= 2 or case in TUNED.values()

    mean_loss(terms).backward()
    expected.loss.backward()
    lacks_biases = getattr(ours.config, "biases", True) is False  # in transformers they are zeros
    named = {name: each for name, each in gradients(theirs).items() if not (lacks_biases and name.endswith("bias"))}
    assert_same_gradients(own_gradients(ours), named, atol=1e-5)
    assert set(gradients(ours)) == {name for name, _ in ours.named_parameters()}


@pytest.mark.parametrize(
    ("name", "traced"), [*((name, False) for name in FORMS), *((name, True) for name in FORMS if name.startswith("llama"))]
)
def test_logits_loss_and_all_gradients_equal_those_of_transformers(name: str, traced: bool, tmp_path: Path) -> None:
    compare(FORMS[name], tmp_path, FORMS[name].make_batch(), traced)


@pytest.mark.parametrize("name", ["masked", "pairs"])
def test_an_attended_padding_token_learns_only_from_the_output_side_as_in_transformers(name: str, tmp_path: Path) -> None:
    batch = FORMS[name].make_batch()
    batch["input_ids"][0, 5] = FORMS[name].config.padding_id
    compare(FORMS[name], tmp_path, batch)


T5_WIDE = T5Config(2, 12, 64, 768, 2048, vocabulary_size=32_128, dropout=0.0, family="mt5")
WIDE: dict[str, Any] = {
    "base": BertConfig(1, 12, 768, 3072, positions=512, vocabulary_size=30_522, next_sentence=True),
    "large": BertConfig(1, 16, 1024, 4096, positions=512, vocabulary_size=30_522),
    "roberta": BertConfig(
        1, 12, 768, 3072, positions=512, vocabulary_size=50_265, type_vocabulary_size=1, family="roberta", padding_id=1,
        layer_norm_epsilon=1e-5,
    ),
    "mt5": T5_WIDE,
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("width", WIDE)
def test_full_width_equals_transformers_too(width: str, tmp_path: Path) -> None:
    """The mT5 has distances on both sides of the last border."""
    config = WIDE[width] if width == "mt5" else replace(WIDE[width], hidden_dropout=0.0, attention_dropout=0.0)
    batch = t5_batch(config, source=256, target=160) if width == "mt5" else bert_batch(config, length=128, capacity=20)
    compare(form(config), tmp_path, batch, spread=0.03)


@pytest.mark.parametrize(
    "dropping",
    [
        form(replace(GPT2, dropout=0.3)),
        form(replace(PAIRS, hidden_dropout=0.3)),
        form(replace(PAIRS, attention_dropout=0.3)),
        form(replace(PAIRS, hidden_dropout=0.2, attention_dropout=0.4)),
        form(replace(T5S["t5-1.0"].config, dropout=0.2)),
        form(replace(T5S["mt5"].config, dropout=0.2)),
    ],
    ids=["gpt2", "bert-hidden", "bert-attention", "bert-different", "t5", "mt5"],
)
def test_dropout_falls_where_that_of_transformers_falls(dropping: Form, tmp_path: Path) -> None:
    """Dropout drawn from the same numbers in the same order gives the same logits."""
    ours, theirs = dropping.pair(tmp_path)
    batch = dropping.make_batch()
    token = batch["attention_mask"].bool() if "masked_labels" in batch else ...
    torch.manual_seed(3)
    expected = theirs(**inputs_of(batch), **(dropping.labels(batch) if isinstance(ours, T5) else {}))
    torch.manual_seed(3)
    found = logits_of(ours, batch)[token]
    torch.testing.assert_close(found, their_logits(expected)[token], rtol=1e-5, atol=1e-5)
    if "seq_relationship_logits" in expected:
        torch.manual_seed(3)
        pairs = ours._related(ours.encoded(**inputs_of(batch))[:, 0])
        torch.testing.assert_close(pairs, expected.seq_relationship_logits, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, logits_of(ours.eval(), batch)[token], atol=1e-2)


@pytest.mark.parametrize("family", ["masked", "roberta"])
def test_dropout_of_a_classifiers_head_is_where_transformers_has_it(family: str, tmp_path: Path) -> None:
    ours, theirs = classifier(replace(BERTS[family].config, hidden_dropout=0.5), 2).pair(tmp_path)
    hidden = torch.randn(3, 1, ours.config.hidden_size, generator=torch.Generator().manual_seed(0))
    for train in (True, False):
        ours.train(train)
        theirs.train(train)
        torch.manual_seed(5)
        found = ours.head(hidden)
        torch.manual_seed(5)
        pooled = hidden if family == "roberta" else theirs.dropout(theirs.bert.pooler(hidden))
        torch.testing.assert_close(found, theirs.classifier(pooled), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama-8/4"])
def test_packed_documents_do_not_attend_to_each_other_and_positions_count_on(name: str, tmp_path: Path) -> None:
    ours, theirs = FORMS[name].pair(tmp_path)
    documents, changed, positions = DOCUMENTS["document_ids"], IDS.clone(), torch.arange(6).expand(2, 6)
    changed[0, :3] = 7
    packed = ours.logits(IDS, documents)
    torch.testing.assert_close(packed[0, 3:], ours.logits(changed, documents)[0, 3:], rtol=0, atol=0)
    assert not torch.equal(packed[0, 3:], ours.logits(IDS)[0, 3:])
    expected = theirs.eval()(input_ids=IDS, attention_mask=document_mask(documents), position_ids=positions).logits
    torch.testing.assert_close(packed, expected, rtol=1e-5, atol=1e-5)
    labels = IDS.roll(-1, 1)
    term = ours.terms({"input_ids": IDS, "labels": labels, **DOCUMENTS})["next_token"]
    nats = torch.nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(term.nats, nats, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.logits(IDS, torch.zeros_like(IDS)), ours.logits(IDS), rtol=1e-5, atol=1e-5)


def test_without_transform_layer_the_head_is_only_the_embedding(tmp_path: Path) -> None:
    """Graphcore's recipe gives the same outputs in transformers, as far as its classes can hold it."""
    ours, batch = randomised(Bert(GRAPHCORE)), bert_batch(GRAPHCORE)
    ours.save_folder(tmp_path, {})
    inputs, token = inputs_of(batch), batch["attention_mask"].bool()
    encoder = BertModel.from_pretrained(tmp_path).eval()
    pairs, report = BertForNextSentencePrediction.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    expected = encoder(**inputs).last_hidden_state @ encoder.embeddings.word_embeddings.weight.T
    torch.testing.assert_close(ours.logits(**inputs)[token], expected[token], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours._related(ours.encoded(**inputs)[:, 0]), pairs.eval()(**inputs).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["t5-1.0", "mt5"])
def test_transformers_generates_our_likeliest_tokens_from_a_saved_folder(name: str, tmp_path: Path) -> None:
    ours, theirs = FORMS[name].pair(tmp_path)
    batch = FORMS[name].make_batch()
    source, mask = batch["input_ids"], batch["attention_mask"]
    written = theirs.eval().generate(
        input_ids=source, attention_mask=mask, max_new_tokens=5, min_new_tokens=5, do_sample=False, num_beams=1
    )
    ids = torch.zeros(3, 1, dtype=torch.int64)
    for _ in range(5):
        logits = ours.logits(source, ids, mask)[:, -1]
        logits[:, 1] = -torch.inf  # the end, which min_new_tokens forbids
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
    assert ids.tolist() == written.tolist()


@pytest.mark.parametrize("name", ["gpt2", "llama-8/4"])
def test_without_special_tokens_no_token_ends_a_text_in_transformers(name: str, tmp_path: Path) -> None:
    FORMS[name].build().save_folder(tmp_path, {})
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (theirs.config.bos_token_id, theirs.config.eos_token_id, theirs.generation_config.eos_token_id) == (None,) * 3


SIZES: dict[str, tuple[Any, int]] = {
    "gpt2 small": (Gpt2Config(12, 12, 768, 1024, 50_257), 124_439_808),
    "gpt2 of Graphcore": (Gpt2Config(12, 12, 768, 1024, 50_272), 124_439_808 + 15 * 768),
    "gpt2 medium": (Gpt2Config(24, 16, 1024, 1024, 50_257), 354_823_168),
    "gpt2 large": (Gpt2Config(36, 20, 1280, 1024, 50_257), 774_030_080),
    "gpt2 xl": (Gpt2Config(48, 25, 1600, 1024, 50_257), 1_557_611_200),
    "bert base": (BertConfig(12, 12, 768, 3072, 512, 30_522), 109_514_298),
    "bert base of pairs": (BertConfig(12, 12, 768, 3072, 512, 30_522, next_sentence=True), 110_106_428),
    "bert large": (BertConfig(24, 16, 1024, 4096, 512, 30_522, next_sentence=True), 336_226_108),
    "roberta base": (BertConfig(12, 12, 768, 3072, 512, 50_265, 1, family="roberta", padding_id=1), 124_697_433),
    "roberta large": (BertConfig(24, 16, 1024, 4096, 512, 50_265, 1, family="roberta", padding_id=1), 355_412_057),
    "t5 small": (T5Config(6, 8, 64, 512, 2048, 32_128, tied_head=True, feed_forward="relu"), 60_506_624),
    "t5 base": (T5Config(12, 12, 64, 768, 3072, 32_128, tied_head=True, feed_forward="relu"), 222_903_552),
    "t5 1.1 base": (T5Config(12, 12, 64, 768, 2048, 32_128), 247_577_856),
    "mt5 small": (T5Config(8, 6, 64, 512, 1024, 250_112, family="mt5"), 300_176_768),
    "mt5 base": (T5Config(12, 12, 64, 768, 2048, 250_112, family="mt5"), 582_401_280),
    # The card of the Romanian mT5 counts all but the head.
    "mt5 base, tied": (T5Config(12, 12, 64, 768, 2048, 250_112, family="mt5", tied_head=True), 390_315_264),
    "mt5 large": (T5Config(24, 16, 64, 1024, 2816, 250_112, family="mt5"), 1_229_581_312),
}


@pytest.mark.parametrize(("config", "parameters"), SIZES.values(), ids=SIZES)
def test_published_models_have_their_count_of_parameters(config: Any, parameters: int) -> None:
    with torch.device("meta"):
        assert form(config).ours(config).parameter_count() == parameters
