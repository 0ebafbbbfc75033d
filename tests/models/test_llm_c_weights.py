"""The initial weights of llm.c's model are those that its train_gpt2.py draws, bit for bit."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from relm.models.gpt2 import Gpt2
from relm.models.gpt2_configuration import Gpt2Config

GOLDENS = json.loads(Path(__file__).with_name("llm_c_weights.json").read_text())
KINDS = {"llm_c": "float32", "llm_c_bfloat16": "bfloat16"}


def own_weights(model: str, initialisation: str, seed: int = 42) -> dict[str, torch.Tensor]:
    sizes = GOLDENS["models"][model]["sizes"]
    config = Gpt2Config(
        layers=sizes["n_layer"],
        heads=sizes["n_head"],
        hidden_size=sizes["n_embd"],
        positions=sizes["block_size"],
        vocabulary_size=sizes["vocab_size"],
        initialisation=initialisation,
    )
    built = Gpt2(config)
    built.initialise(torch.Generator().manual_seed(seed))
    return {name: parameter.detach() for name, parameter in built.named_parameters()}


def hash_matrices(weights: dict[str, torch.Tensor]) -> dict[str, str]:
    matrices = {name: value for name, value in weights.items() if value.dim() == 2}
    return {name: hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest() for name, value in matrices.items()}


def golden(model: str, initialisation: str) -> list[dict[str, str]]:
    """Return the hashes of torch's two ways to draw, of which a CPU has one."""
    return [GOLDENS["models"][model][capability][KINDS[initialisation]] for capability in ("avx2", "default")]


@pytest.mark.parametrize("initialisation", KINDS)
def test_a_small_models_weights_are_those_of_the_original(initialisation: str) -> None:
    weights = own_weights("small", initialisation)
    assert hash_matrices(weights) in golden("small", initialisation)
    assert weights["transformer.h.0.ln_1.weight"].eq(1).all()
    assert weights["transformer.h.2.attn.c_attn.bias"].eq(0).all()


@pytest.mark.full
@pytest.mark.parametrize("initialisation", KINDS)
def test_the_weights_of_d12_are_those_of_the_original(initialisation: str) -> None:
    assert hash_matrices(own_weights("d12", initialisation)) in golden("d12", initialisation)


@pytest.mark.full
@pytest.mark.parametrize("capability", ["avx2", "default"])
def test_each_way_of_drawing_has_its_own_hashes(capability: str) -> None:
    code = (
        "import json, test_llm_c_weights as t; "
        "print(json.dumps(t.hash_matrices(t.own_weights('small', 'llm_c'))))"
    )  # fmt: skip
    surroundings = {**os.environ, "ATEN_CPU_CAPABILITY": capability, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", code], env=surroundings, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == GOLDENS["models"]["small"][capability]["float32"]


def test_another_seed_and_the_default_draw_other_weights() -> None:
    one, other = own_weights("small", "llm_c"), own_weights("small", "llm_c", seed=43)
    default = own_weights("small", "normal")
    name = "transformer.h.0.attn.c_attn.weight"
    assert not one[name].equal(other[name])
    assert not one[name].equal(default[name])
    assert one["transformer.wte.weight"].equal(default["transformer.wte.weight"])  # the first draws are the same
