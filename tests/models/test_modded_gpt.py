"""The decoder with modded-nanogpt's switches: what is rejected, and that all ways through it compute the same."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import DECODER_BATCH, IDS, assert_same_weights, change_config, gradients, randomised

from relm.models.cached_decoding import decode_token, read_prompts
from relm.models.counting import Lengths
from relm.models.decoder_counting import decoder_tensors
from relm.models.modded_gpt import ModdedGpt
from relm.models.modded_gpt_configuration import ModdedGptConfig
from relm.models.segments import terms_of

CONFIG = ModdedGptConfig(layers=2, heads=2, hidden_size=16, positions=6, vocabulary_size=11, logit_softcap=2.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "heads is 3, expected a divisor of hidden_size, 16"),
        ({"heads": 8}, "heads is 8, expected heads whose width is a multiple of 4"),
        ({"layers": 0}, "layers is 0"),
        ({"logit_softcap": 0.0}, "logit_softcap is 0.0, expected a number above 0"),
        ({"attention_scale": float("nan")}, "attention_scale is nan"),
        ({"initialisation": "normal"}, "expected torch_linear or zero_biases"),
    ],
)
def test_an_architecture_that_cannot_be_built_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama', expected \"modded_gpt\""),
        ({"logit_softcap": "15"}, "logit_softcap is '15', expected a number"),
        ({"num_hidden_layers": 3}, "layers is 3, expected 2"),
        ({"hidden_size": None}, "hidden_size is None, expected a whole number"),
        ({"initialisation": []}, r"initialisation is \[\], expected"),
        ({"attention_scale": 0.5}, "attention_scale is 0.5, expected 0.12"),
    ],
)
def test_a_folder_of_another_architecture_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    randomised(ModdedGpt(CONFIG)).save_folder(tmp_path, {})
    change_config(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        ModdedGpt.from_folder(tmp_path, CONFIG)


def test_a_folder_has_the_model(tmp_path: Path) -> None:
    model = randomised(ModdedGpt(CONFIG))
    model.save_folder(tmp_path, {"eos_token_id": 1})
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "modded_gpt"
    found = ModdedGpt.from_folder(tmp_path)
    assert found.config == CONFIG
    assert_same_weights(found, model)


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_loss_without_all_logits_has_the_same_gradients(chunk: int) -> None:
    whole, chunked = (randomised(ModdedGpt(CONFIG)) for _ in range(2))
    chunked.loss_chunk, chunked.keeps_logits = chunk, False
    for model in (whole, chunked):
        model(DECODER_BATCH)["next_token"].nats.backward()
    torch.testing.assert_close(chunked(DECODER_BATCH), whole(DECODER_BATCH))
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradients(chunked)[name], gradient, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(chunked(DECODER_BATCH), whole(DECODER_BATCH))


def test_segments_cached_decoding_and_the_count_follow_the_switches() -> None:
    model, state = randomised(ModdedGpt(CONFIG)).eval(), {}
    with torch.no_grad():
        for segment in model.segments():
            state = segment.run(DECODER_BATCH, state)
        torch.testing.assert_close(terms_of(state), model(DECODER_BATCH))
        hidden, cache = read_prompts(model, IDS[:, :3], 6)
        logits = [model.head(hidden)]
        for place in range(3, 6):
            one, cache = decode_token(model, IDS[:, place], torch.full((2,), place), cache)
            logits.append(model.head(one)[:, None])
        torch.testing.assert_close(torch.cat(logits, dim=1), model.logits(IDS), rtol=1e-4, atol=1e-5)
    assert sorted(name for segment in model.segments() for name in segment.parameters) == sorted(dict(model.named_parameters()))
    kinds = ("tied_head", "scores")
    counted = sum(each.numbers for each in decoder_tensors(CONFIG, Lengths(6, 0, 6)) if each.kind not in kinds)
    assert counted == model.parameter_count()
