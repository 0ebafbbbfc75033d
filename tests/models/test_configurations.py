"""Configurations that no model has, and files that describe another computation than ours."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from architectures import BERT, GPT2, LLAMA, PAIRS, T5_11, form
from transformers import AutoConfig

from relm.models.bert import Bert, BertConfig
from relm.models.gpt2 import Gpt2Config
from relm.models.llama_configuration import LlamaConfig, feed_forward_width
from relm.models.t5 import T5Config

SHARE = "expected a share from 0 to below 1"
WHOLE = "expected a whole number from 1 on"
CLASSES = replace(BERT, head="classes")


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (GPT2, {"heads": 3}, "heads is 3, expected a divisor of hidden_size, 8"),
        (GPT2, {"positions": 0}, f"positions is 0, {WHOLE}"),
        (GPT2, {"activation": "relu"}, "activation is 'relu', expected gelu_tanh or gelu_erf"),
        (GPT2, {"dropout": -0.1}, f"dropout is -0.1, {SHARE}"),
        (BERT, {"heads": 3}, "heads is 3, expected a divisor of hidden_size, 8"),
        (BERT, {"layers": 0}, f"layers is 0, {WHOLE}"),
        (BERT, {"activation": "relu"}, "activation is 'relu', expected gelu_tanh or gelu_erf"),
        (BERT, {"attention_dropout": 1.0}, f"attention_dropout is 1.0, {SHARE}"),
        (BERT, {"initialisation": "xavier"}, "initialisation is 'xavier', expected normal or truncated_normal"),
        (BERT, {"family": "albert"}, "family is 'albert', expected bert or roberta"),
        (BERT, {"padding_id": 23}, "padding_id is 23, expected one of the 23 tokens"),
        (BERT, {"family": "roberta", "next_sentence": True}, "next_sentence is True, expected False for family roberta"),
        (BERT, {"family": "roberta", "activation": "gelu_tanh"}, "is 'gelu_tanh', expected 'gelu_erf' for family roberta"),
        (BERT, {"family": "roberta", "transform_layer": False}, "transform_layer is False, expected True for family roberta"),
        (BERT, {"family": "roberta", "padding_id": None}, "padding_id is None, expected a token's id for family roberta"),
        (T5_11, {"layers": 0}, f"layers is 0, {WHOLE}"),
        (T5_11, {"decoder_layers": 0}, f"decoder_layers is 0, {WHOLE}, or none"),
        (T5_11, {"head_size": -1}, f"head_size is -1, {WHOLE}"),
        (T5_11, {"dropout": 1.0}, f"dropout is 1.0, {SHARE}"),
        (T5_11, {"family": "byt5"}, "family is 'byt5', expected t5 or mt5"),
        (T5_11, {"feed_forward": "gelu"}, "feed_forward is 'gelu', expected gated_gelu or relu"),
        (T5_11, {"relative_attention_buckets": 3}, "relative_attention_buckets is 3, expected at least 4"),
        (T5_11, {"relative_attention_distance": 4}, "relative_attention_distance is 4, expected more than 4, half of"),
        (T5_11, {"pad_token_id": 23}, "pad_token_id is 23, expected one of the 23 tokens"),
        (T5_11, {"decoder_start_token_id": -1}, "decoder_start_token_id is -1, expected one of the 23 tokens"),
    ],
)
def test_an_impossible_architecture_is_refused(config: Any, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(config, **changes)


OTHERS: dict[Any, list[tuple[str, object, str]]] = {
    GPT2: [
        ("model_type", "llama", ""),
        ("activation_function", "relu", ""),
        ("n_inner", 20, ""),
        ("tie_word_embeddings", False, ""),
        ("scale_attn_weights", False, ""),
        ("scale_attn_by_inverse_layer_idx", True, ""),
        ("attn_pdrop", 0.2, ""),
        ("n_head", 3, ""),
        ("n_layer", 0, ""),
        ("layer_norm_epsilon", "1e-5", ""),
    ],
    BERT: [
        ("model_type", "albert", '"bert" or "roberta"'),
        ("hidden_act", "relu", '"gelu_new" or "gelu_pytorch_tanh" or "gelu"'),
        ("position_embedding_type", "relative_key", '"absolute"'),
        ("tie_word_embeddings", False, "true"),
        ("is_decoder", True, "false"),
        ("num_attention_heads", 3, "a divisor of hidden_size, 8"),
        ("num_hidden_layers", "2", "a whole number from 1 on"),
        ("hidden_dropout_prob", None, "a number from 0 on"),
    ],
    CLASSES: [
        ("problem_type", "multi_label_classification", "null or"),
        ("id2label", ["a"], "an object with a name for each label"),
    ],
    T5_11: [
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
}


@pytest.mark.parametrize(("config", "case"), [(config, case) for config, cases in OTHERS.items() for case in cases])
def test_a_config_that_computes_something_else_is_refused(config: Any, case: tuple[str, object, str]) -> None:
    key, value, expected = case
    with pytest.raises(ValueError, match=re.escape(f"{key} is {value!r}, expected {expected}")):
        type(config).from_huggingface({**config.to_huggingface(), key: value})


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("attention_bias", True, ""), ("mlp_bias", True, ""), ("hidden_act", "gelu", ""), ("attention_dropout", 0.1, ""),
        ("head_dim", 8, ""), ("num_key_value_heads", 3, "key_value_heads"), ("model_type", "mistral", ""),
        ("rope_scaling", {"type": "linear", "factor": 2.0}, "rope_type"),
        ("rope_parameters", {"rope_type": "llama3", "rope_theta": 5e5}, "rope_type"),
    ],
)  # fmt: skip
def test_a_llama_that_the_decoder_cannot_express_is_refused_by_its_key(key: str, value: object, named: str) -> None:
    with pytest.raises(ValueError, match=named or key):
        LlamaConfig.from_huggingface({**LLAMA.to_huggingface(), key: value})


def test_an_unknown_switch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"config\.json: relm\.biases is unknown, expected one of attention_projection_bias, "):
        BertConfig.from_huggingface(BERT.to_huggingface() | {"relm": {"biases": False}})


@pytest.mark.parametrize(
    ("kind", "family", "layers", "tokens"),
    [
        (Gpt2Config, "gpt2", 12, 50_257),
        (BertConfig, "bert", 12, 30_522),
        (BertConfig, "roberta", 12, 50_265),
        (T5Config, "t5", 6, 32_128),
        (T5Config, "mt5", 8, 250_112),
    ],
)
def test_defaults_of_a_sparse_config_are_those_of_transformers(kind: Any, family: str, layers: int, tokens: int) -> None:
    sparse = kind.from_huggingface({"model_type": family})
    assert sparse == kind.from_huggingface(AutoConfig.for_model(family).to_dict())
    assert (sparse.layers, sparse.vocabulary_size) == (layers, tokens)


def test_a_configuration_without_names_of_labels_has_two() -> None:
    content = replace(CLASSES, labels=3).to_huggingface()
    assert BertConfig.from_huggingface(content).labels == 3
    for key in ("id2label", "label2id", "problem_type"):
        del content[key]
    assert BertConfig.from_huggingface(content).labels == 2


@pytest.mark.parametrize("config", [BERT, PAIRS, GPT2, LLAMA, T5_11])
def test_a_file_names_the_architecture_and_has_no_switches_that_it_does_not_need(config: Any) -> None:
    content = config.to_huggingface()
    assert form(config).theirs.__name__ in content["architectures"]
    assert "relm" not in content


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


def test_the_feed_forward_width_is_that_of_published_models() -> None:
    assert [feed_forward_width(width, 256) for width in (4096, 5120, 6656, 8192)] == [11008, 13824, 17920, 22016]
    assert feed_forward_width(64, 4) == 172


@pytest.mark.parametrize("content", ["{", "[1]", "7"])
def test_a_config_that_is_no_json_object_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json: is not a JSON object"):
        Bert.from_folder(tmp_path)
