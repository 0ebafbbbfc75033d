"""Write `llm_c_weights.json`: hashes of the initial weights of llm.c's train_gpt2.py, for the model d12 and for a small one.

    python tests/models/write_llm_c_weights.py LLM_C_REPOSITORY [--commit COMMIT]

LLM_C_REPOSITORY is a clone of github.com/karpathy/llm.c. Its file is loaded from a temporary folder, and its class GPT built on
the CPU. Hashes are of the matrices' float32 in the layout of `GPT2LMHeadModel`, transposes of llm.c's; all else is 0, or 1 in
normalisations. Torch draws with one code on x86 CPUs with AVX2, and with another, which rounds differently, on all other CPUs.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

COMMIT = "f1e2ace651495b74ae22d45d1723443fd00ecd3a"
GOLDENS = Path(__file__).with_name("llm_c_weights.json")
CAPABILITIES = ("avx2", "default")
MODELS = {
    "d12": {"block_size": 1024, "vocab_size": 50257, "n_layer": 12, "n_head": 12, "n_embd": 768},
    "small": {"block_size": 32, "vocab_size": 101, "n_layer": 3, "n_head": 2, "n_embd": 16},
}


def load_program(repository: Path, commit: str, folder: Path) -> ModuleType:
    """Return train_gpt2.py of a commit as a module; nothing of it runs but its definitions."""
    shown = ["git", "-C", str(repository), "show", f"{commit}:train_gpt2.py"]
    (folder / "train_gpt2.py").write_bytes(subprocess.run(shown, check=True, capture_output=True).stdout)
    spec = importlib.util.spec_from_file_location("train_gpt2", folder / "train_gpt2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hash_matrices(model: torch.nn.Module, dtype: torch.dtype) -> dict[str, str]:
    """Return name -> sha256 of each matrix, rounded to a type."""
    hashes = {}
    for name, parameter in model.named_parameters():
        name = name.replace("lm_head", "transformer.wte")  # they are one parameter
        if parameter.dim() == 2:
            value = parameter.detach() if name.endswith(("wte.weight", "wpe.weight")) else parameter.detach().t()
            hashes[name] = hashlib.sha256(value.to(dtype).float().contiguous().numpy().astype("<f4").tobytes()).hexdigest()
        else:  # nothing is drawn
            assert (parameter == float(".ln_" in name and name.endswith("weight"))).all()
    return hashes


def hash_models(repository: Path, commit: str) -> dict[str, Any]:
    """Return model -> type -> name -> sha256, of the code that this process's CPU_CAPABILITY chooses."""
    with tempfile.TemporaryDirectory() as folder:
        program = load_program(repository, commit, Path(folder))
        models = {name: program.GPT(program.GPTConfig(**sizes)) for name, sizes in MODELS.items()}
        types = ("float32", "bfloat16")
        return {name: {kind: hash_matrices(model, getattr(torch, kind)) for kind in types} for name, model in models.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--commit", default=COMMIT)
    parser.add_argument("--print", action="store_true", help="print this process's hashes, and write nothing")
    arguments = parser.parse_args()
    repository = arguments.repository.resolve()
    if arguments.print:
        print(json.dumps(hash_models(repository, arguments.commit)))
        return
    printed = {}
    for capability in CAPABILITIES:
        command = [sys.executable, __file__, str(repository), "--commit", arguments.commit, "--print"]
        surroundings = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
        found = subprocess.run(command, check=True, capture_output=True, text=True, env=surroundings).stdout
        printed[capability] = json.loads(found)
    document: dict[str, Any] = {
        "source": "github.com/karpathy/llm.c: train_gpt2.py, class GPT",
        "commit": arguments.commit,
        "command": "python tests/models/write_llm_c_weights.py LLM_C_REPOSITORY",
        "torch": torch.__version__,
        "models": {name: {"sizes": sizes, **{c: printed[c][name] for c in printed}} for name, sizes in MODELS.items()},
    }
    GOLDENS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
