"""Folders that transformers wrote, folders as published, and folders that do not fit the model."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from changed_folders import change_config, change_weights
from random_weights import randomised
from t5_cases import FORMS, TINY, batch_for, pair
from transformers import AutoConfig, GenerationConfig

from relm.models.t5 import T5, T5Config

TIED = FORMS["1.0"][0]
MT5 = FORMS["mt5"][0]
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def saved(config: T5Config, folder: Path) -> Path:
    randomised(T5(config)).save_folder(folder, {"eos_token_id": 1})
    return folder


def assert_as_saved(loaded: T5, config: T5Config) -> None:
    assert loaded.config == config
    expected = randomised(T5(config)).state_dict()
    assert set(loaded.state_dict()) == set(expected)
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in expected.items())


@pytest.mark.parametrize("form", FORMS)
def test_a_saved_folder_loads_unchanged(form: str, tmp_path: Path) -> None:
    config = FORMS[form][0]
    assert_as_saved(T5.from_folder(saved(config, tmp_path)), config)


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_written_by_transformers_loads_and_gives_its_logits(form: str, tmp_path: Path) -> None:
    """transformers writes tie_word_embeddings: true even where head and embedding differ."""
    ours, theirs = pair(form, tmp_path)
    again = tmp_path / "again"
    theirs.save_pretrained(again)
    assert json.loads((again / "config.json").read_text())["tie_word_embeddings"] is True
    loaded, batch = T5.from_folder(again), batch_for(TINY)
    assert loaded.config == ours.config
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    target = ours.decoder_inputs(batch["labels"])
    expected = theirs.eval()(**inputs, decoder_input_ids=target).logits
    torch.testing.assert_close(loaded.logits(decoder_input_ids=target, **inputs), expected, rtol=1e-5, atol=2e-5)
    assert T5.from_folder(again, expected=ours.config).config == ours.config


@pytest.mark.parametrize("config", [TIED, MT5], ids=["tied", "untied"])
def test_files_with_copies_and_an_unused_table_load(config: T5Config, tmp_path: Path) -> None:
    """The first T5s were published so."""

    def older(weights: dict[str, torch.Tensor]) -> None:
        names = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", *(["lm_head.weight"] * config.tied_head)]
        weights |= {name: weights["shared.weight"].clone() for name in names}
        weights[UNUSED] = torch.ones(8, 3)

    change_weights(saved(config, tmp_path), older)
    assert_as_saved(T5.from_folder(tmp_path), config)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("config", [TIED, MT5, FORMS["mt5-tied"][0]], ids=["t5-tied", "mt5", "mt5-tied"])
def test_the_embedding_may_have_its_name_in_a_stack(config: T5Config, stack: str, tmp_path: Path) -> None:
    """Some converters keep another of a tensor's names."""

    def renamed(weights: dict[str, torch.Tensor]) -> None:
        weights[f"{stack}.embed_tokens.weight"] = weights.pop("shared.weight")

    change_weights(saved(config, tmp_path), renamed)
    assert_as_saved(T5.from_folder(tmp_path), config)


def test_an_mt5_head_that_equals_the_embedding_is_tied_if_the_configuration_ties_it(tmp_path: Path) -> None:
    config = FORMS["mt5-tied"][0]
    change_weights(saved(config, tmp_path), lambda weights: weights | {"lm_head.weight": weights["shared.weight"].clone()})
    assert_as_saved(T5.from_folder(tmp_path), config)


@pytest.mark.parametrize(
    ("held", "expected", "message"),
    [
        (MT5, replace(MT5, tied_head=True), "lm_head.weight differs from shared.weight, to which it is tied here"),
        (replace(MT5, tied_head=True), MT5, "lm_head.weight is missing"),
        (TINY, TIED, "tied_head is False, expected True"),
        (TIED, TINY, "tied_head is True, expected False"),
        (TINY, replace(TINY, decoder_layers=1, heads=5), "heads is 3, expected 5; decoder_layers is None, expected 1"),
        (TINY, MT5, "family is 't5', expected 'mt5'"),
    ],
    ids=["mt5-head", "mt5-no-head", "head", "no-head", "sizes", "family"],
)
def test_another_architecture_than_expected_is_named(held: T5Config, expected: T5Config, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        T5.from_folder(saved(held, tmp_path), expected=expected)


def test_a_scaled_untied_head_is_refused(tmp_path: Path) -> None:
    """transformers 5 would compute one for a T5 1.0 configuration beside the weights of a 1.1."""
    change_config(saved(TINY, tmp_path), tie_word_embeddings=True)
    with pytest.raises(ValueError, match=r"lm_head\.weight differs from shared\.weight"):
        T5.from_folder(tmp_path)


def test_the_loaded_model_trains_with_the_requested_dropout(tmp_path: Path) -> None:
    loaded = T5.from_folder(saved(TINY, tmp_path), expected=replace(TINY, dropout=0.3, initializer_factor=0.5))
    assert {module.dropout for module in loaded.modules() if hasattr(module, "dropout")} == {0.3}


def test_tokens_go_into_both_configurations(tmp_path: Path) -> None:
    saved(replace(TINY, pad_token_id=3, decoder_start_token_id=4), tmp_path)
    for found in (AutoConfig.from_pretrained(tmp_path), GenerationConfig.from_pretrained(tmp_path)):
        assert (found.pad_token_id, found.decoder_start_token_id, found.eos_token_id) == (3, 4, 1)


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    def spoil(weights: dict[str, torch.Tensor]) -> None:
        del weights["decoder.block.1.layer.1.EncDecAttention.o.weight"]
        weights["extra"] = torch.zeros(1)
        weights["encoder.final_layer_norm.weight"] = torch.zeros(7)
        weights["decoder.embed_tokens.weight"] = torch.zeros(23, 8)

    change_weights(saved(TINY, tmp_path), spoil)
    with pytest.raises(ValueError, match=r"model\.safetensors: ") as raised:
        T5.from_folder(tmp_path)
    for fault in (
        "decoder.embed_tokens.weight differs from shared.weight, to which it is tied here",
        "decoder.block.1.layer.1.EncDecAttention.o.weight is missing",
        "extra is unknown",
        "encoder.final_layer_norm.weight has shape (7,), expected (8,)",
    ):
        assert fault in str(raised.value)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("model_type", "umt5", '"t5" or "mt5"'),
        ("is_encoder_decoder", False, "true"),
        ("is_decoder", True, "false"),
        ("feed_forward_proj", "gated-silu", '"gated-gelu" or "relu"'),
        ("dense_act_fn", "gelu", '"gelu_new"'),
        ("is_gated_act", False, "true"),
        ("tie_word_embeddings", "no", "true or false"),
        ("scale_decoder_outputs", True, "false"),
        ("num_layers", 0, "a whole number from 1 on"),
        ("num_decoder_layers", "2", "a whole number from 1 on"),
        ("pad_token_id", None, "a whole number from 0 on"),
        ("dropout_rate", None, "a number from 0 on"),
    ],
)
def test_a_config_that_computes_something_else_is_refused(key: str, value: object, expected: str) -> None:
    with pytest.raises(ValueError, match=f"config.json: {key} is {value!r}, expected {expected}"):
        T5Config.from_huggingface(TINY.to_huggingface() | {key: value})


@pytest.mark.parametrize("family", ["t5", "mt5"])
def test_defaults_of_a_sparse_config_are_those_of_transformers(family: str) -> None:
    sparse = T5Config.from_huggingface({"model_type": family})
    assert sparse == T5Config.from_huggingface(AutoConfig.for_model(family).to_dict())
    assert (sparse.layers, sparse.vocabulary_size) == ((6, 32_128) if family == "t5" else (8, 250_112))


def test_the_configuration_of_a_romanian_mt5_is_read() -> None:
    """The keys are of a `config.json` that transformers 4 wrote after fine-tuning dumitrescustefan/mt5-base-romanian."""
    published = {
        "architectures": ["MT5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64, "d_model": 768, "decoder_start_token_id": 0,
        "dense_act_fn": "gelu_new", "dropout_rate": 0.1, "eos_token_id": 1, "feed_forward_proj": "gated-gelu",
        "initializer_factor": 1.0, "is_encoder_decoder": True, "is_gated_act": True, "layer_norm_epsilon": 1e-06,
        "model_type": "mt5", "num_decoder_layers": 12, "num_heads": 12, "num_layers": 12, "pad_token_id": 0,
        "relative_attention_max_distance": 128, "relative_attention_num_buckets": 32, "tie_word_embeddings": False,
        "vocab_size": 250100,
    }  # fmt: skip
    assert T5Config.from_huggingface(published) == T5Config(12, 12, 64, 768, 2048, 250_100, family="mt5")


def test_configurations_survive_a_file() -> None:
    for config, _ in FORMS.values():
        assert T5Config.from_huggingface(json.loads(json.dumps(config.to_huggingface()))) == config
