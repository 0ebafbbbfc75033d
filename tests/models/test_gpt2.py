"""The model against transformers' GPT2LMHeadModel, an implementation that shares no line with ours."""

import ast
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GPT2LMHeadModel

from relm.models import gpt2
from relm.models.gpt2 import Gpt2, Gpt2Config, causal_loss

TINY = Gpt2Config(layers=2, heads=2, hidden_size=8, positions=6, vocabulary_size=11, dropout=0.0)


def random_model(config: Gpt2Config = TINY) -> Gpt2:
    """Every parameter random and large, biases and normalisation too, so that none can be left out unnoticed."""
    model = Gpt2(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5, generator=generator)
    return model


@pytest.fixture
def batch() -> torch.Tensor:
    return torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 10, 0]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random_model().save_folder(tmp_path, end_of_text_id=10)
    return tmp_path


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf"])
def test_logits_loss_and_all_gradients_equal_those_of_transformers(
    tmp_path: Path, batch: torch.Tensor, activation: str
) -> None:
    ours = random_model(replace(TINY, activation=activation))
    ours.save_folder(tmp_path, end_of_text_id=10)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(theirs, GPT2LMHeadModel)

    logits = ours(batch)
    nats, count = causal_loss(logits[:, :-1], batch[:, 1:])
    expected = theirs(input_ids=batch, labels=batch)
    torch.testing.assert_close(logits, expected.logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(nats / count, expected.loss, rtol=1e-6, atol=1e-6)

    (nats / count).backward()
    expected.loss.backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert set(gradients) == {name for name, _ in ours.named_parameters()}
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_parameter_names_and_shapes_are_those_of_transformers(folder: Path) -> None:
    theirs = GPT2LMHeadModel(AutoConfig.from_pretrained(folder))
    expected = {name: tuple(parameter.shape) for name, parameter in theirs.named_parameters()}
    assert {name: tuple(parameter.shape) for name, parameter in Gpt2(TINY).named_parameters()} == expected


def test_gpt2_small_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        model = Gpt2(Gpt2Config(layers=12, heads=12, hidden_size=768, positions=1024, vocabulary_size=50257))
    assert model.parameter_count() == 124_439_808


def test_a_token_does_not_see_what_follows_it(batch: torch.Tensor) -> None:
    model = random_model()
    changed = batch.clone()
    changed[:, 4:] = 7
    torch.testing.assert_close(model(batch)[:, :4], model(changed)[:, :4], rtol=0, atol=0)
    assert not torch.equal(model(batch)[:, 4:], model(changed)[:, 4:])


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="7 tokens, but the model has 6 positions"):
        random_model()(torch.zeros(1, 7, dtype=torch.int64))


def test_ignored_labels_are_neither_summed_nor_counted() -> None:
    logits = torch.zeros(1, 3, 4)
    nats, count = causal_loss(logits, torch.tensor([[0, -100, 3]]))
    assert count.item() == 2
    assert nats.item() == pytest.approx(2 * 1.3862944)  # ln 4 each


def test_the_same_seed_gives_the_same_initial_weights_whatever_was_drawn_before() -> None:
    first, second, other = Gpt2(TINY), Gpt2(TINY), Gpt2(TINY)
    first.initialise(torch.Generator().manual_seed(3))
    torch.rand(5)
    second.initialise(torch.Generator().manual_seed(3))
    other.initialise(torch.Generator().manual_seed(4))
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name])
    assert not torch.equal(first.transformer.wte.weight, other.transformer.wte.weight)


def test_building_a_model_draws_nothing_from_the_global_generator() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    Gpt2(TINY)
    assert torch.equal(torch.rand(3), expected)


def test_initial_weights_spread_as_in_the_paper() -> None:
    model = Gpt2(Gpt2Config(layers=8, heads=2, hidden_size=128, positions=64, vocabulary_size=500, initializer_range=0.02))
    model.initialise(torch.Generator().manual_seed(0))
    block = model.transformer.h[0]
    for weight in (model.transformer.wte.weight, model.transformer.wpe.weight, block.attn.c_attn.weight, block.mlp.c_fc.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    for weight in (block.attn.c_proj.weight, block.mlp.c_proj.weight):
        assert weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)  # sqrt(2 * 8) = 4
    assert block.ln_1.weight.eq(1).all()
    assert block.ln_1.bias.eq(0).all()
    assert block.attn.c_attn.bias.eq(0).all()


def test_dropout_acts_in_training_only(batch: torch.Tensor) -> None:
    model = random_model(replace(TINY, dropout=0.5))
    assert not torch.equal(model.train()(batch), model.train()(batch))
    assert torch.equal(model.eval()(batch), model.eval()(batch))


def test_a_saved_folder_loads_as_it_was(folder: Path, batch: torch.Tensor) -> None:
    loaded = Gpt2.from_folder(folder)
    assert loaded.config == TINY
    assert torch.equal(loaded(batch), random_model()(batch))


def test_a_folder_written_by_transformers_loads_and_gives_its_logits(tmp_path: Path, batch: torch.Tensor) -> None:
    theirs = GPT2LMHeadModel(AutoConfig.for_model("gpt2", n_layer=2, n_head=2, n_embd=8, n_positions=6, vocab_size=11)).eval()
    theirs.save_pretrained(tmp_path)
    torch.testing.assert_close(Gpt2.from_folder(tmp_path).eval()(batch), theirs(batch).logits, rtol=1e-5, atol=1e-5)


def test_files_in_the_style_of_the_first_release_load(folder: Path, batch: torch.Tensor) -> None:
    """Without the prefix, with the causal mask as a buffer, with a copy of the head, and in half precision."""
    weights = {
        name.removeprefix("transformer."): tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()
    }
    weights |= {"h.0.attn.bias": torch.ones(1, 1, 6, 6), "lm_head.weight": weights["wte.weight"].clone()}
    save_file(weights, folder / "model.safetensors")
    loaded = Gpt2.from_folder(folder)
    assert all(parameter.dtype == torch.float32 for parameter in loaded.parameters())
    torch.testing.assert_close(loaded(batch), random_model()(batch), rtol=0.02, atol=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("transformer.ln_f.bias"), "transformer.ln_f.bias is missing"),
        (lambda w: w.update(extra=torch.zeros(1)), "transformer.extra is unknown"),
        (
            lambda w: w.update({"transformer.wpe.weight": torch.zeros(5, 8)}),
            r"transformer.wpe.weight has shape \(5, 8\), expected \(6, 8\)",
        ),
        (lambda w: w.update({"lm_head.weight": torch.zeros(11, 8)}), "lm_head.weight differs from wte.weight"),
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
    ],
)
def test_a_config_that_computes_something_else_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"config.json: {key} is {value!r}, expected"):
        Gpt2Config.from_huggingface({**TINY.to_huggingface(), key: value})


def test_defaults_of_a_sparse_config_are_those_of_transformers() -> None:
    theirs = AutoConfig.for_model("gpt2")
    ours = Gpt2Config.from_huggingface({"model_type": "gpt2"})
    assert ours == Gpt2Config.from_huggingface(theirs.to_dict())
    assert (ours.layers, ours.hidden_size, ours.vocabulary_size, ours.dropout) == (12, 768, 50257, 0.1)


def test_the_config_says_what_the_tokenizer_ends_with(folder: Path) -> None:
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text())
        assert (content["bos_token_id"], content["eos_token_id"]) == (10, 10)


def test_the_module_imports_nothing_of_the_package_and_parses_as_python_3_8() -> None:
    """It runs inside an image whose Python is that old."""
    tree = ast.parse(Path(gpt2.__file__).read_text(), feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    roots = {name.split(".")[0] for name in imported}
    assert roots <= {"__future__", "torch", "safetensors", *sys.stdlib_module_names}
    assert "annotations" in gpt2.__dict__, "annotations must not be evaluated"
