"""Folders of models as users meet them that would give figures of another model: the right figure, or a refusal by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers as hf
from test_evaluated_models import GPT2, LLAMA, ONE_THREAD, TOKENS, nats_alone, saved, windows

from relm.errors import RelmError
from relm.evaluation.models import load_causal
from relm.evaluation.scoring import ScoredSequences, score

LONGROPE = {
    "original_max_position_embeddings": 8,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [3.0, 5.0, 7.0, 9.0]},
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
# Models whose output for a token depends on how far away others are, or on the length of the text.
FAR: dict[str, tuple[Callable[..., Any], Any]] = {
    "mistral, a window of 4": (hf.MistralForCausalLM, hf.MistralConfig(**LLAMA, sliding_window=4)),
    "gemma3, a window in some layers": (
        hf.Gemma3ForCausalLM, hf.Gemma3TextConfig(**LLAMA, head_dim=8, sliding_window=4),
    ),
    "phi3, other frequencies beyond 8 tokens": (hf.Phi3ForCausalLM, hf.Phi3Config(**LLAMA, **SPECIAL, **LONGROPE)),
    "mpt, a table of distances": (
        hf.MptForCausalLM,
        hf.MptConfig(d_model=16, n_heads=2, n_layers=2, max_seq_len=20, vocab_size=TOKENS, expansion_ratio=2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAR)
def test_a_batch_of_several_lengths_has_the_losses_of_each_sequence_by_itself(name: str, tmp_path: Path) -> None:
    theirs, ours = saved(tmp_path, *FAR[name]), load_causal(tmp_path, TOKENS, ONE_THREAD)
    sequences = windows()
    expected = pytest.approx(nats_alone(theirs, sequences), rel=1e-5, abs=1e-5)
    for batch_tokens in (20, 100, 1000):
        assert score(ours, sequences, batch_tokens).nats == expected
    with pytest.raises(RelmError, match="has 20 positions; a context of 21 does not fit"):
        score(ours, ScoredSequences(sequences.tokens, np.array([0]), np.array([22]), np.array([1])), 100)


def change(folder: Path, **keys: Any) -> None:
    """Change keys of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


Case = tuple[Callable[..., Any], Any, dict[str, Any], str]
CONFIG = "config.json does not fit the weights: "
CASES: dict[str, Case] = {
    "a layer less": (
        hf.LlamaForCausalLM, hf.LlamaConfig(**LLAMA), {"num_hidden_layers": 1},
        f"{CONFIG}they contain model.layers.1.input_layernorm.weight, which this LlamaForCausalLM lacks",
    ),
    "a layer less of a body that was saved alone": (
        hf.LlamaModel, hf.LlamaConfig(**LLAMA, tie_word_embeddings=True), {"num_hidden_layers": 1},
        f"{CONFIG}they contain layers.1.input_layernorm.weight, which this LlamaForCausalLM lacks",
    ),
    "without the biases": (
        hf.LlamaForCausalLM, hf.LlamaConfig(**LLAMA, attention_bias=True), {"attention_bias": False},
        f"{CONFIG}they contain model.layers.0.self_attn.k_proj.bias, which this LlamaForCausalLM lacks",
    ),
    "an expert less": (
        hf.MixtralForCausalLM, hf.MixtralConfig(**LLAMA, num_local_experts=3), {"num_local_experts": 2},
        f"{CONFIG}model.layers.0.mlp.experts.down_proj has the shape [3, 16, 32], expected [2, 16, 32]",
    ),
    "other heads": (
        hf.LlamaForCausalLM, hf.LlamaConfig(**LLAMA), {"num_key_value_heads": 2},
        f"{CONFIG}model.layers.0.self_attn.k_proj.weight has the shape [8, 16], expected [16, 16]",
    ),
    "a layer less, of relm's own architecture": (
        hf.GPT2LMHeadModel, hf.GPT2Config(**GPT2), {"n_layer": 1}, "transformer.h.1.attn.c_attn.bias is unknown",
    ),
    "a body alone": (
        hf.LlamaModel, hf.LlamaConfig(**LLAMA), {}, "its weights lack lm_head.weight, which LlamaForCausalLM has",
    ),
    "a classifier whose embeddings are one": (
        hf.LlamaForSequenceClassification, hf.LlamaConfig(**LLAMA, tie_word_embeddings=True), {},
        "config.json: architectures is LlamaForSequenceClassification, which is not a language model",
    ),
    "a classifier of relm's own architecture": (
        hf.GPT2ForSequenceClassification, hf.GPT2Config(**GPT2), {}, "transformer.score.weight is unknown",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_weights_that_the_configuration_does_not_fit_and_heads_of_others_are_refused(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kind, config, keys, message = CASES[name]
    saved(tmp_path, kind, config)
    change(tmp_path, **keys)
    capfd.readouterr()
    with pytest.raises(RelmError) as refused:
        load_causal(tmp_path, TOKENS, ONE_THREAD)
    assert f"{tmp_path}: cannot be read as a causal language model: " in str(refused.value)
    assert message in str(refused.value)
    assert "UNEXPECTED" not in "".join(capfd.readouterr())  # no table of transformers' beside the sentence


def test_a_body_whose_embeddings_are_its_head_needs_no_other(tmp_path: Path) -> None:
    theirs = saved(tmp_path / "whole", hf.LlamaForCausalLM, hf.LlamaConfig(**LLAMA, tie_word_embeddings=True))
    theirs.model.save_pretrained(tmp_path / "body")
    ours = load_causal(tmp_path / "body", TOKENS, ONE_THREAD)
    assert score(ours, windows(), 100).nats == pytest.approx(nats_alone(theirs, windows()), rel=1e-5, abs=1e-5)
