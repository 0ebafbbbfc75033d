"""Folders that transformers wrote, folders as published, and folders that do not fit the model."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bert_cases import FORMS, GRAPHCORE, TINY, batch_for
from changed_folders import change_weights
from random_weights import randomised
from safetensors.torch import load_file
from transformers import AutoConfig, BertForMaskedLM, BertForPreTraining, PreTrainedModel

from relm.models.bert import Bert, BertConfig
from relm.models.weights import read_weights

PAIRS = replace(TINY, next_sentence=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    randomised(Bert(PAIRS)).save_folder(tmp_path, {"cls_token_id": 2})
    return tmp_path


@pytest.mark.parametrize("config", [*(config for config, _ in FORMS.values()), GRAPHCORE], ids=[*FORMS, "graphcore"])
def test_a_saved_folder_loads_unchanged(config: BertConfig, tmp_path: Path) -> None:
    ours = randomised(Bert(config))
    ours.save_folder(tmp_path, {})
    loaded = Bert.from_folder(tmp_path)
    assert loaded.config == config
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in ours.state_dict().items())


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_written_by_transformers_loads_and_gives_its_logits(form: str, tmp_path: Path) -> None:
    config, kind = FORMS[form]
    theirs: PreTrainedModel = randomised(kind(kind.config_class.from_dict(config.to_huggingface()))).eval()
    theirs.save_pretrained(tmp_path)
    batch = batch_for(config)
    inputs, token = {key: batch[key] for key in ("input_ids", "attention_mask")}, batch["attention_mask"].bool()
    ours = Bert.from_folder(tmp_path)
    expected = theirs(**inputs)
    logits = expected.prediction_logits if config.next_sentence else expected.logits
    assert ours.config == config
    torch.testing.assert_close(ours.logits(**inputs)[token], logits[token], rtol=1e-5, atol=1e-5)


def test_files_in_the_style_of_the_first_release_load(folder: Path) -> None:
    """bert-base-uncased was published with gamma and beta, a buffer of positions, and copies of the head."""

    def older(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        renamed = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in weights.items()
        }
        return renamed | {
            "bert.embeddings.position_ids": torch.arange(10)[None],
            "cls.predictions.decoder.weight": weights["bert.embeddings.word_embeddings.weight"].clone(),
            "cls.predictions.decoder.bias": weights["cls.predictions.bias"].clone(),
        }

    change_weights(folder, older)
    assert any(name.endswith("LayerNorm.gamma") for name in load_file(folder / "model.safetensors"))
    loaded = Bert.from_folder(folder).state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in randomised(Bert(PAIRS)).state_dict().items())


def test_roberta_as_published_loads(tmp_path: Path) -> None:
    """The file has a pooler that its masked language model does not use."""
    config, _ = FORMS["roberta"]
    randomised(Bert(config)).save_folder(tmp_path, {})
    extra = {"roberta.pooler.dense.weight": torch.ones(8, 8), "roberta.embeddings.position_ids": torch.arange(12)[None]}
    change_weights(tmp_path, lambda weights: weights | extra)
    assert torch.equal(Bert.from_folder(tmp_path).cls.predictions.bias, randomised(Bert(config)).cls.predictions.bias)


def test_a_model_without_sentence_pairs_takes_the_rest_of_one_with_them(folder: Path) -> None:
    ours = Bert.from_folder(folder, expected=TINY)
    assert ours.bert.pooler is None
    ids = batch_for(TINY)["input_ids"]
    torch.testing.assert_close(ours.logits(ids), Bert.from_folder(folder).logits(ids), rtol=0, atol=0)


def test_a_model_with_sentence_pairs_refuses_weights_without_them(tmp_path: Path) -> None:
    randomised(Bert(TINY)).save_folder(tmp_path, {})
    with pytest.raises(ValueError, match=r"bert.pooler.dense.weight is missing; bert.pooler.dense.bias is missing"):
        Bert.from_folder(tmp_path, expected=PAIRS)


def test_the_loaded_model_trains_with_the_requested_dropout(folder: Path) -> None:
    ours = Bert.from_folder(folder, expected=replace(PAIRS, hidden_dropout=0.3, attention_dropout=0.2))
    layer = ours.bert.encoder.layer[0]
    assert (layer.output.dropout, layer.attention.self.dropout) == (0.3, 0.2)


def test_tokens_go_into_the_configuration(folder: Path) -> None:
    assert AutoConfig.from_pretrained(folder).cls_token_id == 2
    assert not (folder / "generation_config.json").exists()


def test_weights_that_do_not_fit_are_named(folder: Path) -> None:
    def spoil(weights: dict[str, torch.Tensor]) -> None:
        del weights["bert.encoder.layer.1.output.dense.bias"]
        weights["extra"] = torch.zeros(1)
        weights["cls.predictions.bias"] = torch.zeros(7)
        weights["cls.predictions.decoder.weight"] = torch.zeros(23, 8)

    change_weights(folder, spoil)
    with pytest.raises(ValueError, match=r"model\.safetensors: ") as raised:
        Bert.from_folder(folder)
    for fault in (
        "cls.predictions.decoder.weight differs from bert.embeddings.word_embeddings.weight, to which it is tied here",
        "bert.encoder.layer.1.output.dense.bias is missing",
        "extra is unknown",
        "cls.predictions.bias has shape (7,), expected (23,)",
    ):
        assert fault in str(raised.value)


def test_half_precision_is_read_as_float32(folder: Path) -> None:
    change_weights(folder, lambda weights: {name: tensor.half() for name, tensor in weights.items()})
    model = Bert(PAIRS)
    weights = read_weights(folder, model.state_dict(), PAIRS.own_name, {}, {})
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


def test_many_faults_are_counted(folder: Path) -> None:
    change_weights(folder, lambda weights: {"extra": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"; and \d+ more$"):
        Bert.from_folder(folder)


def test_a_bias_that_the_model_lacks_must_be_zero(tmp_path: Path) -> None:
    randomised(Bert(GRAPHCORE)).save_folder(tmp_path, {})
    name = "bert.encoder.layer.0.attention.self.value.bias"
    assert load_file(tmp_path / "model.safetensors")[name].eq(0).all()
    change_weights(tmp_path, lambda weights: weights | {name: torch.ones(8)})
    with pytest.raises(ValueError, match=f"{name} is not zero, but this model has none"):
        Bert.from_folder(tmp_path)


def test_another_architecture_than_expected_is_named(folder: Path) -> None:
    expected = replace(PAIRS, heads=4, positions=12, query_key_value_bias=False)
    message = "heads is 2, expected 4; positions is 10, expected 12; query_key_value_bias is True, expected False"
    with pytest.raises(ValueError, match=message):
        Bert.from_folder(folder, expected=expected)


@pytest.mark.parametrize("content", ["{", "[1]", "7"])
def test_a_config_that_is_no_json_object_is_named(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json: is not a JSON object"):
        Bert.from_folder(folder)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("model_type", "albert", '"bert" or "roberta"'),
        ("hidden_act", "relu", '"gelu_new" or "gelu_pytorch_tanh" or "gelu"'),
        ("position_embedding_type", "relative_key", '"absolute"'),
        ("tie_word_embeddings", False, "true"),
        ("is_decoder", True, "false"),
        ("num_attention_heads", 3, "a divisor of hidden_size, 8"),
        ("num_hidden_layers", "2", "a whole number from 1 on"),
        ("hidden_dropout_prob", None, "a number from 0 on"),
    ],
)
def test_a_config_that_computes_something_else_is_refused(key: str, value: object, expected: str) -> None:
    with pytest.raises(ValueError, match=f"config.json: {key} is {value!r}, expected {expected}"):
        BertConfig.from_huggingface(TINY.to_huggingface() | {key: value})


def test_an_unknown_switch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"config\.json: relm\.biases is unknown, expected one of attention_projection_bias, "):
        BertConfig.from_huggingface(TINY.to_huggingface() | {"relm": {"biases": False}})


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_defaults_of_a_sparse_config_are_those_of_transformers(family: str) -> None:
    sparse = BertConfig.from_huggingface({"model_type": family})
    assert sparse == BertConfig.from_huggingface(AutoConfig.for_model(family).to_dict())
    assert (sparse.layers, sparse.vocabulary_size) == (12, 30_522 if family == "bert" else 50_265)


def test_the_name_of_an_architecture_in_a_file() -> None:
    assert BertForPreTraining.__name__ in PAIRS.to_huggingface()["architectures"]
    assert BertForMaskedLM.__name__ in TINY.to_huggingface()["architectures"]
    assert "relm" not in TINY.to_huggingface()
