"""The model against transformers' GPT2LMHeadModel, an implementation that shares no line with ours."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from random_weights import assert_same_gradients, gradients, randomised
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GPT2LMHeadModel

from relm.models.decoder import document_mask
from relm.models.gpt2 import Gpt2, Gpt2Config

TINY = Gpt2Config(layers=2, heads=2, hidden_size=8, positions=6, vocabulary_size=11, dropout=0.0)
TOKENS = {"bos_token_id": 10, "eos_token_id": 10}


def random_model(config: Gpt2Config = TINY) -> Gpt2:
    return randomised(Gpt2(config))


@pytest.fixture
def batch() -> torch.Tensor:
    return torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 10, 0]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random_model().save_folder(tmp_path, TOKENS)
    return tmp_path


@pytest.mark.parametrize(
    "changes",
    [{}, {"activation": "gelu_erf"}, {"biases": False}, {"activation": "gelu_erf", "biases": False}],
    ids=["tanh", "erf", "no-biases", "erf-no-biases"],
)
def test_logits_loss_and_all_gradients_equal_those_of_transformers(
    tmp_path: Path, batch: torch.Tensor, changes: dict[str, object]
) -> None:
    """Without biases in our model, those of transformers are zeros, whose gradients are ignored here."""
    ours = random_model(replace(TINY, **changes))
    ours.save_folder(tmp_path, TOKENS)
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(theirs, GPT2LMHeadModel)
    assert not any(report.values()), report

    batch[0, 5] = theirs(input_ids=batch).logits[0, 4].argmax()  # so that one answer is right
    term = ours.terms({"input_ids": batch[:, :-1], "labels": batch[:, 1:]})["next_token"]
    expected = theirs(input_ids=batch, labels=batch)
    torch.testing.assert_close(ours.logits(batch), expected.logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(term.nats / term.count, expected.loss, rtol=1e-6, atol=1e-6)
    assert term.count == 10
    right = (expected.logits[:, :-1].argmax(-1) == batch[:, 1:]).sum()
    assert term.correct == right >= 1

    (term.nats / term.count).backward()
    expected.loss.backward()
    biases = {name for name, _ in theirs.named_parameters() if name.endswith("bias") and not ours.config.biases}
    assert_same_gradients(gradients(ours), {name: g for name, g in gradients(theirs).items() if name not in biases})


def test_dropout_falls_where_that_of_transformers_falls(tmp_path: Path, batch: torch.Tensor) -> None:
    """Dropout drawn from the same numbers in the same order gives the same logits."""
    ours = random_model(replace(TINY, dropout=0.3))
    ours.save_folder(tmp_path, TOKENS)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).train()
    torch.manual_seed(3)
    expected = theirs(input_ids=batch).logits
    torch.manual_seed(3)
    torch.testing.assert_close(ours.logits(batch), expected, rtol=1e-5, atol=1e-5)


def test_the_loss_of_a_batch_is_that_of_its_logits(batch: torch.Tensor) -> None:
    ours = random_model()
    term = ours.terms({"input_ids": batch[:, :-1], "labels": batch[:, 1:]})["next_token"]
    logits = ours.logits(batch[:, :-1])
    nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")
    assert term.count == batch[:, 1:].numel()
    torch.testing.assert_close(term.nats, nats)


def test_parameter_names_and_shapes_are_those_of_transformers(folder: Path) -> None:
    theirs = GPT2LMHeadModel(AutoConfig.from_pretrained(folder))
    expected = {name: tuple(parameter.shape) for name, parameter in theirs.named_parameters()}
    assert {name: tuple(parameter.shape) for name, parameter in Gpt2(TINY).named_parameters()} == expected


@pytest.mark.parametrize(
    ("layers", "heads", "hidden_size", "vocabulary_size", "parameters", "gigaflops"),
    [
        (12, 12, 768, 50_257, 124_439_808, 0.855),
        (12, 12, 768, 50_272, 124_439_808 + 15 * 768, 0.855),
        (24, 16, 1024, 50_257, 354_823_168, 2.42),
        (36, 20, 1280, 50_257, 774_030_080, 5.20),
        (48, 25, 1600, 50_257, 1_557_611_200, 10.27),
    ],
    ids=["small", "graphcore", "medium", "large", "xl"],
)
def test_published_sizes_have_their_count_of_parameters(
    layers: int, heads: int, hidden_size: int, vocabulary_size: int, parameters: int, gigaflops: float
) -> None:
    with torch.device("meta"):
        model = Gpt2(Gpt2Config(layers, heads, hidden_size, positions=1024, vocabulary_size=vocabulary_size))
    assert model.parameter_count() == parameters
    # 6 N + 12 layers width context, positions not counted: operations to train on a token.
    operations = 6 * (parameters - 1024 * hidden_size) + 12 * layers * hidden_size * 1024
    assert operations / 1e9 == pytest.approx(gigaflops, rel=2e-3)


def test_attention_is_causal(batch: torch.Tensor) -> None:
    model = random_model()
    changed = batch.clone()
    changed[:, 4:] = 7
    torch.testing.assert_close(model.logits(batch)[:, :4], model.logits(changed)[:, :4], rtol=0, atol=0)
    assert not torch.equal(model.logits(batch)[:, 4:], model.logits(changed)[:, 4:])


def test_a_token_attends_to_itself_and_to_those_before_it_in_its_document() -> None:
    seen = document_mask(torch.tensor([[0, 0, 1], [0, 1, 1]])).int()
    assert seen[0, 0].tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    assert seen[1, 0].tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]


def test_packed_documents_do_not_attend_to_each_other_and_positions_count_on(tmp_path: Path, batch: torch.Tensor) -> None:
    ours = random_model()
    documents = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1]])
    changed = batch.clone()
    changed[0, :3] = 7
    packed = ours.logits(batch, documents)
    torch.testing.assert_close(packed[0, 3:], ours.logits(changed, documents)[0, 3:], rtol=0, atol=0)
    assert not torch.equal(packed[0, 3:], ours.logits(batch)[0, 3:])

    ours.save_folder(tmp_path, TOKENS)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    positions = torch.arange(6).expand(2, 6)
    expected = theirs(input_ids=batch, attention_mask=document_mask(documents), position_ids=positions).logits
    torch.testing.assert_close(packed, expected, rtol=1e-5, atol=1e-5)

    labels = batch.roll(-1, 1)
    term = ours.terms({"input_ids": batch, "labels": labels, "document_ids": documents})["next_token"]
    expected_nats = torch.nn.functional.cross_entropy(expected.flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(term.nats, expected_nats, rtol=1e-6, atol=1e-6)


def test_attention_within_one_document_is_causal(batch: torch.Tensor) -> None:
    ours = random_model()
    torch.testing.assert_close(ours.logits(batch, torch.zeros_like(batch)), ours.logits(batch), rtol=1e-5, atol=1e-5)


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="7 tokens, but the model has 6 positions"):
        random_model().logits(torch.zeros(1, 7, dtype=torch.int64))


@pytest.mark.parametrize(
    ("kind", "std"),
    [
        ("wte", 0.02),
        ("wpe", 0.02),
        ("attn.c_attn", 0.02),
        ("mlp.c_fc", 0.02),
        ("attn.c_proj", 0.02 / 4),  # sqrt(2 * 8) = 4
        ("mlp.c_proj", 0.02 / 4),
    ],
)
def test_initial_weights_are_normal_and_spread_as_in_the_paper(kind: str, std: float) -> None:
    model = Gpt2(Gpt2Config(layers=8, heads=2, hidden_size=64, positions=200, vocabulary_size=500, initializer_range=0.02))
    model.initialise(torch.Generator().manual_seed(0))
    drawn = [weight.flatten() for name, weight in model.named_parameters() if name.endswith(f"{kind}.weight")]
    values = torch.cat(drawn).detach().double()
    n = len(values)
    assert values.mean().item() == pytest.approx(0.0, abs=5 * std / n**0.5)
    assert values.std().item() == pytest.approx(std, rel=5 * (0.5 / n) ** 0.5)
    assert (values**4).mean().item() / values.var().item() ** 2 == pytest.approx(3.0, abs=5 * (24 / n) ** 0.5)


def test_biases_begin_at_zero_and_normalisation_at_one() -> None:
    model = Gpt2(TINY)
    model.initialise(torch.Generator().manual_seed(0))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert parameter.eq(1.0 if name.endswith("weight") else 0.0).all(), name


def test_a_saved_folder_loads_unchanged(folder: Path, batch: torch.Tensor) -> None:
    loaded = Gpt2.from_folder(folder)
    assert loaded.config == TINY
    assert torch.equal(loaded.logits(batch), random_model().logits(batch))


def test_a_folder_written_by_transformers_loads_and_gives_its_logits(tmp_path: Path, batch: torch.Tensor) -> None:
    theirs = GPT2LMHeadModel(AutoConfig.for_model("gpt2", n_layer=2, n_head=2, n_embd=8, n_positions=6, vocab_size=11)).eval()
    theirs.save_pretrained(tmp_path)
    torch.testing.assert_close(Gpt2.from_folder(tmp_path).eval().logits(batch), theirs(batch).logits, rtol=1e-5, atol=1e-5)


def test_files_in_the_style_of_the_first_release_load(folder: Path, batch: torch.Tensor) -> None:
    """Such files lack the prefix, hold the causal mask as a buffer and a copy of the head, and are in half precision."""
    weights = {
        name.removeprefix("transformer."): tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()
    }
    weights |= {"h.0.attn.bias": torch.ones(1, 1, 6, 6), "lm_head.weight": weights["wte.weight"].clone()}
    save_file(weights, folder / "model.safetensors")
    loaded = Gpt2.from_folder(folder)
    assert all(parameter.dtype == torch.float32 for parameter in loaded.parameters())
    torch.testing.assert_close(loaded.logits(batch), random_model().logits(batch), rtol=0.02, atol=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("transformer.ln_f.bias"), "transformer.ln_f.bias is missing"),
        (lambda w: w.update(extra=torch.zeros(1)), "transformer.extra is unknown"),
        (
            lambda w: w.update({"transformer.wpe.weight": torch.zeros(5, 8)}),
            r"transformer.wpe.weight has shape \(5, 8\), expected \(6, 8\)",
        ),
        (lambda w: w.update({"lm_head.weight": torch.zeros(11, 8)}), "lm_head.weight differs from transformer.wte.weight"),
    ],
)
def test_weights_that_do_not_fit_are_named(folder: Path, change, message: str) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        Gpt2.from_folder(folder)


def test_another_architecture_than_expected_is_named_even_where_shapes_agree(folder: Path) -> None:
    with pytest.raises(ValueError, match="heads is 2, expected 4; activation is 'gelu_tanh', expected 'gelu_erf'"):
        Gpt2.from_folder(folder, expected=replace(TINY, heads=4, activation="gelu_erf"))


def test_dropout_may_differ_from_the_folder_and_is_the_expected_one(folder: Path) -> None:
    assert Gpt2.from_folder(folder, expected=replace(TINY, dropout=0.3)).transformer.h[0].attn.dropout == 0.3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "llama"),
        ("activation_function", "relu"),
        ("n_inner", 20),
        ("tie_word_embeddings", False),
        ("scale_attn_weights", False),
        ("scale_attn_by_inverse_layer_idx", True),
        ("attn_pdrop", 0.2),
        ("n_head", 3),
        ("n_layer", 0),
        ("layer_norm_epsilon", "1e-5"),
    ],
)
def test_a_config_that_computes_something_else_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"config.json: {key} is {value!r}, expected"):
        Gpt2Config.from_huggingface({**TINY.to_huggingface(), key: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "heads is 3, expected a divisor of hidden_size, 8"),
        ({"positions": 0}, "positions is 0, expected a whole number from 1 on"),
        ({"activation": "relu"}, "activation is 'relu', expected gelu_tanh or gelu_erf"),
        ({"dropout": -0.1}, "dropout is -0.1, expected a share from 0 to below 1"),
    ],
)
def test_an_impossible_architecture_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)


def test_a_model_without_biases_has_none_and_its_folder_has_zeros(tmp_path: Path) -> None:
    ours = random_model(replace(TINY, biases=False))
    assert not [name for name, _ in ours.named_parameters() if name.endswith("bias")]
    ours.save_folder(tmp_path, TOKENS)
    weights = load_file(tmp_path / "model.safetensors")
    assert weights["transformer.h.1.attn.c_attn.bias"].tolist() == [0.0] * 24
    assert Gpt2.from_folder(tmp_path).config == ours.config
    weights["transformer.h.1.attn.c_attn.bias"] += 1
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"transformer\.h\.1\.attn\.c_attn\.bias is not zero, but this model has none"):
        Gpt2.from_folder(tmp_path)


def test_defaults_of_a_sparse_config_are_those_of_transformers() -> None:
    theirs = AutoConfig.for_model("gpt2")
    ours = Gpt2Config.from_huggingface({"model_type": "gpt2"})
    assert ours == Gpt2Config.from_huggingface(theirs.to_dict())
    assert (ours.layers, ours.hidden_size, ours.vocabulary_size, ours.dropout) == (12, 768, 50257, 0.1)


def test_the_config_has_the_end_of_text_of_the_tokenizer(folder: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text())
        assert (content["bos_token_id"], content["eos_token_id"]) == (10, 10)


def test_a_model_whose_tokenizer_has_no_special_tokens_names_none_to_transformers(tmp_path: Path) -> None:
    random_model(TINY).save_folder(tmp_path, {})
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (theirs.config.bos_token_id, theirs.config.eos_token_id) == (None, None), "50256 is no token of it"
    assert theirs.generation_config.eos_token_id is None
