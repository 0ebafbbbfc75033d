"""The decoder with Llama's switches against transformers' LlamaForCausalLM, an implementation that shares no line with ours."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from random_weights import assert_same_gradients, gradients, randomised
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from relm.models.decoder import document_mask
from relm.models.layers import rotary_angles, rotated, set_traced
from relm.models.llama import Llama
from relm.models.llama_configuration import LlamaConfig, feed_forward_width

TINY = LlamaConfig(
    layers=2, heads=8, hidden_size=32, intermediate_size=44, positions=6, vocabulary_size=11, key_value_heads=4, tied_head=True
)
TOKENS = {"bos_token_id": 1, "eos_token_id": 2}
IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 10, 0]])


def random_model(config: LlamaConfig = TINY) -> Llama:
    return randomised(Llama(config), 0.3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random_model().save_folder(tmp_path, TOKENS)
    return tmp_path


@pytest.mark.parametrize("traced", [False, True], ids=["kernels", "traced"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"key_value_heads": 1},
        {"key_value_heads": 8, "tied_head": False, "rotary_base": 500.0},
        {"key_value_heads": 2, "tied_head": False, "rms_norm_epsilon": 0.1, "hidden_size": 48},
    ],
    ids=["8/4", "8/1", "8/8-untied", "8/2-untied"],
)
def test_logits_loss_and_all_gradients_equal_those_of_transformers(
    tmp_path: Path, changes: dict[str, Any], traced: bool
) -> None:
    ours = random_model(replace(TINY, **changes))
    ours.save_folder(tmp_path, TOKENS)
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(theirs, LlamaForCausalLM)
    assert not any(report.values()), report

    set_traced(ours, traced)
    term = ours.terms({"input_ids": IDS[:, :-1], "labels": IDS[:, 1:]})["next_token"]
    expected = theirs(input_ids=IDS, labels=IDS)
    torch.testing.assert_close(ours.logits(IDS), expected.logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(term.nats / term.count, expected.loss, rtol=1e-6, atol=1e-6)

    (term.nats / term.count).backward()
    expected.loss.backward()
    holder = Llama(ours.config)  # whose weights are the gradients, under the names of transformers
    holder.load_state_dict({name: parameter.grad for name, parameter in ours.named_parameters()})
    assert_same_gradients(holder.huggingface_weights(), gradients(theirs), atol=1e-5)


def test_packed_documents_do_not_attend_to_each_other(folder: Path) -> None:
    documents = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1]])
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    expected = theirs(input_ids=IDS, attention_mask=document_mask(documents), position_ids=torch.arange(6).expand(2, 6)).logits
    torch.testing.assert_close(random_model().logits(IDS, documents), expected, rtol=1e-5, atol=1e-5)


def test_attention_is_causal() -> None:
    model, changed = random_model(), IDS.clone()
    changed[:, 4:] = 7
    torch.testing.assert_close(model.logits(IDS)[:, :4], model.logits(changed)[:, :4], rtol=0, atol=0)
    assert not torch.equal(model.logits(IDS)[:, 4:], model.logits(changed)[:, 4:])


def test_a_pair_turns_by_its_wavelength() -> None:
    """By hand: heads of four numbers and base 100 have two pairs, which turn by 1 and by 1/10 from one position to the next."""
    x = torch.tensor([1.0, 1.0, 0.0, 0.0]).expand(1, 1, 3, 4)
    turned = rotated(x, rotary_angles(torch.arange(3), 4, 100.0))[0, 0]
    angles = torch.tensor([[0.0, 0.0], [1.0, 0.1], [2.0, 0.2]])
    torch.testing.assert_close(turned, torch.cat([angles.cos(), angles.sin()], dim=1))


def test_scores_depend_on_distance_alone() -> None:
    query, key = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0))

    def score(at: int, to: int) -> torch.Tensor:
        turned = (rotated(x, rotary_angles(torch.tensor([n]), 8, 1e4)) for x, n in ((query, at), (key, to)))
        return (next(turned) * next(turned)).sum()

    torch.testing.assert_close(score(5, 3), score(12, 10), rtol=1e-5, atol=1e-6)
    assert not torch.isclose(score(5, 3), score(5, 4), rtol=1e-2)


def test_a_folder_read_and_written_again_is_the_same(folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    Llama.from_folder(folder, expected=replace(TINY, dropout=0.3)).save_folder(again, TOKENS)
    first, second = (load_file(path / "model.safetensors") for path in (folder, again))
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    config = json.loads((again / "config.json").read_text())
    assert (config["attention_dropout"], config["relm"]) == (0.3, {"dropout": 0.3})
    assert LlamaConfig.from_huggingface(config) == replace(TINY, dropout=0.3)


def test_a_folder_of_transformers_is_read(folder: Path, tmp_path: Path) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    theirs.save_pretrained(tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert "rope_theta" not in config, "transformers writes the key that relm writes"
    torch.testing.assert_close(Llama.from_folder(tmp_path / "theirs").logits(IDS), random_model().logits(IDS), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention_bias", True), ("mlp_bias", True), ("hidden_act", "gelu"), ("attention_dropout", 0.1), ("head_dim", 8),
        ("num_key_value_heads", 3), ("rope_scaling", {"type": "linear", "factor": 2.0}), ("model_type", "mistral"),
        ("rope_parameters", {"rope_type": "llama3", "rope_theta": 5e5}),
    ],
)  # fmt: skip
def test_a_model_that_the_decoder_cannot_express_is_refused_by_its_key(folder: Path, key: str, value: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    named = {"rope_scaling": "rope_type", "rope_parameters": "rope_type", "num_key_value_heads": "key_value_heads"}
    with pytest.raises(ValueError, match=named.get(key, key)):
        Llama.from_folder(folder)


def test_an_untied_head_in_the_file_of_a_tied_model_is_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "lm_head.weight": weights["model.embed_tokens.weight"] + 1}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"lm_head.weight differs from model.embed_tokens.weight, to which it is tied here"):
        Llama.from_folder(folder)
    save_file({**weights, "lm_head.weight": weights["model.embed_tokens.weight"].clone()}, folder / "model.safetensors")
    Llama.from_folder(folder)


def test_initial_weights_are_normal_and_llama2_c_scales_two_projections() -> None:
    config = replace(TINY, layers=8, hidden_size=64, intermediate_size=172, initialisation="llama2_c")
    model = Llama(config)
    model.initialise(torch.Generator().manual_seed(0))
    weights = model.huggingface_weights()
    for name, weight in weights.items():
        if weight.dim() == 1:
            assert bool((weight == 1).all()), name
        else:
            scaled = name.endswith(("o_proj.weight", "up_proj.weight"))
            assert weight.std().item() == pytest.approx(0.02 / 4 if scaled else 0.02, rel=0.1), name


def test_the_feed_forward_width_is_that_of_published_models() -> None:
    assert [feed_forward_width(width, 256) for width in (4096, 5120, 6656, 8192)] == [11008, 13824, 17920, 22016]
    assert feed_forward_width(64, 4) == 172


def test_without_special_tokens_no_token_ends_a_text_in_transformers(folder: Path, tmp_path: Path) -> None:
    Llama.from_folder(folder).save_folder(tmp_path, {})
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (theirs.config.eos_token_id, theirs.generation_config.eos_token_id) == (None, None), "2 is a letter"
