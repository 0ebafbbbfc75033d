"""Folders that we and transformers wrote, folders as published, and folders that do not fit the model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import (
    BERT,
    BERTS,
    FORMS,
    GPT2,
    GRAPHCORE,
    IDS,
    LLAMA,
    MT5,
    PAIRS,
    T5_10,
    T5_11,
    TUNED,
    assert_same_weights,
    change_config,
    change_weights,
    form,
    randomised,
)
from safetensors.torch import load_file
from test_transformers import inputs_of, logits_of, their_logits
from transformers import AutoConfig, AutoModelForSequenceClassification, BertForSequenceClassification, GenerationConfig

from relm.models.bert import Bert
from relm.models.bert_classification import BertForClassification
from relm.models.bert_span import BertForSpans
from relm.models.gpt2 import Gpt2
from relm.models.llama import Llama

MT5_TIED = replace(MT5, tied_head=True)
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
LANGUAGE_MODELS = {name: form for name, form in FORMS.items() if name not in TUNED}
HEADS = {name: TUNED[name] for name in ("roberta-answers", "roberta-1", "masked-1", "masked-2", "masked-3")}
SAVED = {**LANGUAGE_MODELS, **HEADS, "graphcore": form(GRAPHCORE), "llama-dropout": form(replace(LLAMA, dropout=0.3))}
DROPPED = {name: FORMS[name] for name in ("gpt2", "llama-8/4", "masked", "pairs", "masked-2", "t5-1.1")}


def saved(config: Any, folder: Path) -> Any:
    """Save a model with random weights, and return it."""
    model = form(config).build()
    model.save_folder(folder, {"bos_token_id": 10, "eos_token_id": 10})
    return model


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_folder_loads_unchanged(name: str, tmp_path: Path) -> None:
    ours = SAVED[name].build()
    ours.save_folder(tmp_path, {})
    loaded = SAVED[name].ours.from_folder(tmp_path)
    assert loaded.config == ours.config
    assert_same_weights(loaded, ours)
    loaded.save_folder(tmp_path, {})
    assert_same_weights(SAVED[name].ours.from_folder(tmp_path, expected=ours.config), ours)


@pytest.mark.parametrize("name", [*LANGUAGE_MODELS, *HEADS])
def test_a_folder_written_by_transformers_loads_and_gives_its_logits(name: str, tmp_path: Path) -> None:
    ours, theirs = FORMS[name].pair(tmp_path)
    theirs.eval().save_pretrained(tmp_path / "theirs")
    loaded, batch = FORMS[name].ours.from_folder(tmp_path / "theirs"), FORMS[name].make_batch()
    labels = FORMS[name].labels(batch) if "t5" in name else {}
    assert loaded.config == ours.config or "no-biases" in name, "transformers has zeros in place of none"
    token = batch["attention_mask"].bool() if "masked_labels" in batch else ...
    expected = their_logits(theirs(**inputs_of(batch), **labels))
    torch.testing.assert_close(logits_of(loaded.eval(), batch)[token], expected[token], rtol=1e-5, atol=2e-5)


def test_transformers_reads_a_classifier_as_one(tmp_path: Path) -> None:
    TUNED["masked-2"].pair(tmp_path)[1].save_pretrained(tmp_path / "theirs")
    assert type(AutoModelForSequenceClassification.from_pretrained(tmp_path / "theirs")) is BertForSequenceClassification


def older_bert(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """bert-base-uncased was published with gamma and beta, a buffer of positions, and copies of the head."""
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in weights.items()
    }
    return renamed | {
        "bert.embeddings.position_ids": torch.arange(10)[None],
        "cls.predictions.decoder.weight": weights["bert.embeddings.word_embeddings.weight"].clone(),
        "cls.predictions.decoder.bias": weights["cls.predictions.bias"].clone(),
    }


def older_roberta(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The file has a pooler that its masked language model does not use."""
    extra = {"roberta.pooler.dense.weight": torch.ones(8, 8), "roberta.embeddings.position_ids": torch.arange(12)[None]}
    return weights | extra


def older_t5(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The first T5s were published with copies of the embedding and an unused table."""
    names = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
    names += [] if "lm_head.weight" in weights else ["lm_head.weight"]
    return weights | {name: weights["shared.weight"].clone() for name in names} | {UNUSED: torch.ones(8, 3)}


def head_of_its_own(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    embedding = next(name for name in ("shared.weight", "model.embed_tokens.weight") if name in weights)
    return weights | {"lm_head.weight": weights[embedding].clone()}


def named_in(stack: str) -> Any:
    """Some converters keep another of a tensor's names."""

    def rename(weights: dict[str, torch.Tensor]) -> None:
        weights[f"{stack}.embed_tokens.weight"] = weights.pop("shared.weight")

    return rename


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (PAIRS, older_bert),
        (BERTS["roberta"].config, older_roberta),
        (T5_10, older_t5),
        (MT5, older_t5),
        (MT5_TIED, head_of_its_own),
        (LLAMA, head_of_its_own),
        *((config, named_in(stack)) for config in (T5_10, MT5, MT5_TIED) for stack in ("encoder", "decoder")),
    ],
)
def test_files_in_the_style_of_other_programs_load(config: Any, change: Any, tmp_path: Path) -> None:
    ours = saved(config, tmp_path)
    change_weights(tmp_path, change)
    loaded = form(config).ours.from_folder(tmp_path)
    assert loaded.config == config
    assert_same_weights(loaded, ours)


def test_a_gpt2_of_the_first_release_loads(tmp_path: Path) -> None:
    """Such files lack the prefix, hold the causal mask as a buffer and a copy of the head, and are in half precision."""

    def older(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        halved = {name.removeprefix("transformer."): tensor.half() for name, tensor in weights.items()}
        return halved | {"h.0.attn.bias": torch.ones(1, 1, 6, 6), "lm_head.weight": halved["wte.weight"].clone()}

    ours = saved(GPT2, tmp_path)
    change_weights(tmp_path, older)
    loaded = Gpt2.from_folder(tmp_path)
    assert all(parameter.dtype == torch.float32 for parameter in loaded.parameters())
    torch.testing.assert_close(loaded.logits(IDS), ours.logits(IDS), rtol=0.02, atol=0.05)


def test_a_model_without_sentence_pairs_takes_the_rest_of_one_with_them(tmp_path: Path) -> None:
    whole, ids = saved(PAIRS, tmp_path), BERTS["masked"].make_batch()["input_ids"]
    ours = Bert.from_folder(tmp_path, expected=BERT)
    assert ours.bert.pooler is None
    torch.testing.assert_close(ours.logits(ids), whole.logits(ids), rtol=0, atol=0)


@pytest.mark.parametrize("name", DROPPED)
def test_the_loaded_model_trains_with_the_requested_dropout(name: str, tmp_path: Path) -> None:
    DROPPED[name].build().save_folder(tmp_path, {})
    config = DROPPED[name].config
    keys = ("dropout",) if hasattr(config, "dropout") else ("hidden_dropout", "attention_dropout")
    loaded = DROPPED[name].ours.from_folder(tmp_path, expected=replace(config, **dict.fromkeys(keys, 0.3)))
    assert {module.dropout for module in loaded.modules() if isinstance(getattr(module, "dropout", None), float)} <= {0.3}


@pytest.mark.parametrize("config", [GPT2, PAIRS, replace(T5_11, pad_token_id=3, decoder_start_token_id=4)])
def test_tokens_go_into_both_configurations(config: Any, tmp_path: Path) -> None:
    saved(config, tmp_path)
    assert (tmp_path / "generation_config.json").exists() == (config is not PAIRS)
    for kind in (AutoConfig, *([] if config is PAIRS else [GenerationConfig])):
        found = kind.from_pretrained(tmp_path)
        assert (found.bos_token_id, found.eos_token_id) == (10, 10)
        assert hasattr(config, "positions") or (found.pad_token_id, found.decoder_start_token_id) == (3, 4)


def without(name: str) -> Any:
    return lambda weights: {key: tensor for key, tensor in weights.items() if key != name}


BIAS = "bert.encoder.layer.0.attention.self.value.bias"
NO_WEIGHTS: dict[str, tuple[Any, Any, str]] = {
    "missing": (GPT2, without("transformer.ln_f.bias"), "transformer.ln_f.bias is missing"),
    "unknown": (GPT2, lambda w: w | {"extra": torch.zeros(1)}, "transformer.extra is unknown"),
    "shape": (
        GPT2,
        lambda w: w | {"transformer.wpe.weight": torch.zeros(5, 8)},
        r"transformer.wpe.weight has shape \(5, 8\), expected \(6, 8\)",
    ),
    "head of a GPT-2": (
        GPT2,
        lambda w: w | {"lm_head.weight": torch.zeros(11, 8)},
        "lm_head.weight differs from transformer.wte.weight",
    ),
    "head of a Llama": (
        LLAMA,
        lambda w: w | {"lm_head.weight": w["model.embed_tokens.weight"] + 1},
        "lm_head.weight differs from model.embed_tokens.weight, to which it is tied here",
    ),
    "head of a BERT": (
        PAIRS,
        lambda w: w | {"cls.predictions.decoder.weight": torch.zeros(23, 8)},
        "cls.predictions.decoder.weight differs from bert.embeddings.word_embeddings.weight, to which it is tied here",
    ),
    "embedding of a T5": (
        T5_11,
        lambda w: w | {"decoder.embed_tokens.weight": torch.zeros(23, 8)},
        "decoder.embed_tokens.weight differs from shared.weight, to which it is tied here",
    ),
    "layer of a T5": (
        T5_11,
        without("decoder.block.1.layer.1.EncDecAttention.o.weight"),
        "decoder.block.1.layer.1.EncDecAttention.o.weight is missing",
    ),
    "bias of a GPT-2": (
        replace(GPT2, biases=False),
        lambda w: w | {"transformer.h.1.attn.c_attn.bias": torch.ones(24)},
        r"transformer\.h\.1\.attn\.c_attn\.bias is not zero, but this model has none",
    ),
    "bias of a BERT": (GRAPHCORE, lambda w: w | {BIAS: torch.ones(8)}, f"{BIAS} is not zero, but this model has none"),
    "many": (PAIRS, lambda w: {"extra": torch.zeros(1)}, r"; and \d+ more$"),
}


@pytest.mark.parametrize(("config", "change", "message"), NO_WEIGHTS.values(), ids=NO_WEIGHTS)
def test_weights_that_do_not_fit_are_named(config: Any, change: Any, message: str, tmp_path: Path) -> None:
    saved(config, tmp_path)
    change_weights(tmp_path, change)
    with pytest.raises(ValueError, match=rf"model\.safetensors: .*{message}"):
        form(config).ours.from_folder(tmp_path)


SIZES = replace(PAIRS, heads=4, positions=12, query_key_value_bias=False)


@pytest.mark.parametrize(
    ("held", "expected", "message"),
    [
        (GPT2, replace(GPT2, heads=4, activation="gelu_erf"), "heads is 2, expected 4; activation is 'gelu_tanh', expected"),
        (PAIRS, SIZES, "heads is 2, expected 4; positions is 10, expected 12; query_key_value_bias is True, expected False"),
        (BERT, PAIRS, "bert.pooler.dense.weight is missing; bert.pooler.dense.bias is missing"),
        (MT5, MT5_TIED, "lm_head.weight differs from shared.weight, to which it is tied here"),
        (MT5_TIED, MT5, "lm_head.weight is missing"),
        (T5_11, T5_10, "tied_head is False, expected True"),
        (T5_10, T5_11, "tied_head is True, expected False"),
        (T5_11, replace(T5_11, decoder_layers=1, heads=5), "heads is 3, expected 5; decoder_layers is None, expected 1"),
        (T5_11, MT5, "family is 't5', expected 'mt5'"),
    ],
)
def test_another_architecture_than_expected_is_named(held: Any, expected: Any, message: str, tmp_path: Path) -> None:
    saved(held, tmp_path)
    with pytest.raises(ValueError, match=message):
        form(held).ours.from_folder(tmp_path, expected=expected)


def test_another_head_than_expected_is_named(tmp_path: Path) -> None:
    classes = TUNED["masked-3"]
    classes.build().save_folder(tmp_path, {})
    with pytest.raises(ValueError, match=r"labels is 3, expected 2"):
        BertForClassification.from_folder(tmp_path, expected=replace(classes.config, labels=2))
    TUNED["roberta-answers"].build().save_folder(tmp_path, {})
    with pytest.raises(ValueError, match=r"cls.predictions.bias is missing"):
        Bert.from_folder(tmp_path)


def test_a_model_without_biases_has_none_and_its_folder_has_zeros(tmp_path: Path) -> None:
    ours = saved(replace(GPT2, biases=False), tmp_path)
    assert not [name for name, _ in ours.named_parameters() if name.endswith("bias")]
    assert load_file(tmp_path / "model.safetensors")["transformer.h.1.attn.c_attn.bias"].tolist() == [0.0] * 24


def test_a_llama_of_transformers_has_the_newer_key_of_its_base(tmp_path: Path) -> None:
    _, theirs = FORMS["llama-8/4"].pair(tmp_path)
    theirs.save_pretrained(tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert "rope_theta" not in config, "transformers writes the key that relm writes"
    Llama(replace(LLAMA, dropout=0.3)).save_folder(tmp_path, {})
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["attention_dropout"], config["relm"]) == (0.3, {"dropout": 0.3})


@pytest.mark.parametrize("kind", [BertForClassification, BertForSpans])
@pytest.mark.parametrize("name", BERTS)
def test_a_head_is_put_on_the_encoder_of_a_masked_model(name: str, kind: Any, tmp_path: Path) -> None:
    masked = randomised(Bert(BERTS[name].config))
    masked.save_folder(tmp_path, {})
    labels = {"labels": 3} if kind is BertForClassification else {}
    models = [kind.on_encoder(tmp_path, torch.Generator().manual_seed(seed), **labels) for seed in (3, 3, 4)]
    states = [model.state_dict() for model in models]
    for key, weight in states[0].items():
        assert torch.equal(weight, states[1][key]), key
        if key in masked.state_dict():
            assert torch.equal(weight, masked.state_dict()[key]), key
        elif weight.dim() == 1:
            assert not weight.any(), key
        else:
            assert not torch.equal(weight, states[2][key]), key
            assert 0.005 < float(weight.std()) < 0.05, key
    # A model of sentence pairs has a pooler, which a classifier goes on training.
    assert ("bert.pooler.dense.weight" in masked.state_dict()) == (name == "pairs")
    assert ("bert.pooler.dense.weight" in states[0]) == (name != "roberta" and kind is BertForClassification)
    assert models[0].config.labels == labels.get("labels", 2)


def test_an_encoder_that_lacks_a_weight_is_refused(tmp_path: Path) -> None:
    Bert(replace(BERT, layers=1)).save_folder(tmp_path, {})
    change_config(tmp_path, num_hidden_layers=2)
    with pytest.raises(ValueError, match=r"bert.encoder.layer.1.attention.self.query.weight is missing"):
        BertForSpans.on_encoder(tmp_path, torch.Generator())
