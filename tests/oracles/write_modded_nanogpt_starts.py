"""Write `recipes/starts/` of modded-nanogpt: `python tests/oracles/write_modded_nanogpt_starts.py FOLDER`, a checkout.

Classes and functions of each program are loaded as they are. Its loop of initial weights runs on the CPU, with a seed that the
original lacks, and with the embedding in float32 until its weights are drawn, as on a GPU. Torch draws with one code on x86
CPUs with AVX2, and with another on all other CPUs.
"""

import ast
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import modded_nanogpt as twin
import numpy as np
import torch
import yaml

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
SEED, DECIMALS, RANKS, ROWS, SHARD = 42, 10, 8, 64, 100_000_000
COMMAND = "python tests/oracles/write_modded_nanogpt_starts.py FOLDER"
SOURCE = "github.com/KellerJordan/modded-nanogpt at f411b3d3: {}"
# Program, peak rate of its matrices, steps, and other facts of their group.
PROGRAMS: dict[str, tuple[Path, float, int, dict[str, Any]]] = {
    "modded_nanogpt_muon": (twin.MUON_PROGRAM, 0.025, 3250, {}),
    "modded_nanogpt_adamw": (twin.ADAMW_PROGRAM, 0.0015, 5625, {"warmup_steps": 250}),
}
OPTIONS = {
    "modded_nanogpt_muon": {
        "name": "muon",
        "weight_decay": 0.05,
        "muon.momentum": 0.95,
        "betas": [0.8, 0.95],
        "groups.embeddings": {"learning_rate": 0.7, "weight_decay": 0.001, "betas": None},
        "groups.head": {"learning_rate": 0.004, "weight_decay": 0.001, "betas": None},
        "groups.vectors": {"learning_rate": 0.015, "weight_decay": 0.001, "betas": None},
    },
    "modded_nanogpt_adamw": {
        "name": "adamw",
        "weight_decay": 0.1,
        "betas": [0.9, 0.95],
        "groups.embeddings": {"learning_rate": 0.3, "weight_decay": 0.0, "betas": [0.8, 0.95]},
        "groups.head": {"learning_rate": 1 / 320, "weight_decay": 0.0, "betas": [0.8, 0.95]},
        "groups.vectors": {"learning_rate": 0.01, "weight_decay": 0.0, "betas": [0.8, 0.95]},
    },
}


def load_program(original: Path, path: Path) -> tuple[dict[str, Any], ast.For]:
    """Return a program's classes and functions, of which nothing has run, and its loop of initial weights."""
    text = (original / path).read_text().split("=" * 100 + "\n")[0].replace('device="cuda"', 'device="cpu"')
    wanted, loops = [], []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and (isinstance(node, ast.ClassDef) or not node.decorator_list):
            wanted.append(node)
        if isinstance(node, ast.For) and "named_parameters" in ast.unparse(node.iter) and "zero_" in ast.unparse(node):
            loops.append(node)
    outer = [node for node in wanted if getattr(node, "col_offset", 1) == 0 or node.name == "set_hparams"]
    imports = "import torch\nfrom torch import Tensor, nn\nimport torch.nn.functional as F\nfrom pathlib import Path\n"
    names: dict[str, Any] = {"dist": SimpleNamespace(broadcast=lambda tensor, rank: None)}
    exec(imports + "\n".join(ast.unparse(node) for node in outer), names)
    (loop,) = loops
    return names, loop


def hash_weights(original: Path, name: str) -> dict[str, str]:
    """Return name -> sha256 of each matrix, under relm's names, as this process draws them."""
    names, loop = load_program(original, PROGRAMS[name][0])
    with patch.object(torch.nn.Module, "bfloat16", lambda module: module):
        torch.manual_seed(SEED)
        model = names["GPT"](vocab_size=50304, num_layers=12, model_dim=768)
    if name == "modded_nanogpt_muon":  # which draws all weights after it has built the model
        torch.manual_seed(SEED)
    exec(ast.unparse(loop), {**names, "model": model})
    model.embed.bfloat16().float()
    found = twin.convert({key: weight.detach().numpy() for key, weight in model.named_parameters()})
    matrices = {key: np.ascontiguousarray(weight, dtype="<f4") for key, weight in found.items() if weight.ndim == 2}
    return {key: hashlib.sha256(weight.tobytes()).hexdigest() for key, weight in matrices.items()}


def list_rates(original: Path, name: str) -> Iterator[float]:
    """Yield the rate of the matrices in each update, as the program's set_hparams sets it."""
    path, peak, steps, facts = PROGRAMS[name]
    names, _ = load_program(original, path)
    group = {"initial_lr": peak, **facts}
    names |= {"train_steps": steps, "optimizers": [SimpleNamespace(param_groups=[group])]}
    for step in range(steps):
        names["set_hparams"](step)
        yield group["lr"]


def hash_order(original: Path, name: str) -> str:
    """Return the hash of the shard and the token with which each process begins in each update, by the program's loader."""
    path, _, steps, _ = PROGRAMS[name]
    names, _ = load_program(original, path)
    tokens, positions = torch.arange(SHARD, dtype=torch.int32), np.empty((steps, RANKS, 2), dtype="<i8")
    files = [Path(f"{number:06}.bin") for number in range(steps)]
    for rank in range(RANKS):
        read: list[int] = []
        names["_load_data_shard"] = lambda file, read=read: read.append(int(file.stem)) or tokens
        names["Path"] = SimpleNamespace(cwd=lambda: SimpleNamespace(glob=lambda pattern: files))
        names["dist"] = SimpleNamespace(get_world_size=lambda: RANKS, get_rank=lambda rank=rank: rank)
        batches = names["distributed_data_generator"]("*", RANKS * ROWS * 1024)
        for step in range(steps):
            positions[step, rank] = [int(next(batches)[0][0, 0]), 0][::-1]
            positions[step, rank, 0] = read[-1]
    return hashlib.sha256(positions.tobytes()).hexdigest()


def describe(original: Path, name: str) -> dict[str, Any]:
    """Return the content of a file of `recipes/starts/`."""
    path, _, steps, _ = PROGRAMS[name]
    source, hashes = SOURCE.format(path), {}
    for capability in ("avx2", "default"):
        surroundings = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
        command = [sys.executable, __file__, str(original), name]
        printed = subprocess.run(command, check=True, capture_output=True, text=True, env=surroundings).stdout
        hashes[capability] = json.loads(printed)
    rates = [f"{rate:.{DECIMALS}f}" for rate in list_rates(original, name)]
    milestones = {step: float(rates[step - 1]) for step in (1, 250, 251, steps // 4, steps // 2, steps)}
    values = {f"pretrain.main.optimizer.{key}": value for key, value in OPTIONS[name].items()}
    return {
        "weights": {
            "source": f"{source}, class GPT and initial weights on the CPU, seed {SEED}, torch {torch.__version__}",
            "command": COMMAND,
            "sha256": hashes,
        },
        "order": {
            "source": f"{source}, its distributed_data_generator, {RANKS} processes with {ROWS} sequences, {steps:,} updates",
            "command": COMMAND,
            "shards": [[102, SHARD], [1, 55324043]],
            "sha256": hash_order(original, name),
        },
        "rates": {
            "source": f"{source}, its set_hparams",
            "command": COMMAND,
            "decimals": DECIMALS,
            "sha256": hashlib.sha256("".join(f"{rate}\n" for rate in rates).encode()).hexdigest(),
            "milestones": milestones,
        },
        "options": {
            "source": source,
            "values": {
                "model.layers": 12,
                "model.heads": 6,
                "model.hidden_size": 768,
                "model.vocabulary_size": 50304,
                "model.rotary_base": 1024.0,
                "model.attention_scale": 0.12,
                "model.logit_softcap": 15.0,
                "pretrain.main.sequence_length": 1024,
                "pretrain.main.global_batch_size": 512,
                "pretrain.main.steps": steps,
                **values,
                "pretrain.main.optimizer.gradient_clipping": None,
            },
        },
        "first_loss": {"source": f"{source}: its log, step 0; all logits are 0", "nats_per_token": 10.82584, "tolerance": 1e-4},
    }


def main() -> None:
    original = Path(sys.argv[1]).resolve()
    if len(sys.argv) > 2:
        print(json.dumps(hash_weights(original, sys.argv[2])))
        return
    for name in PROGRAMS:
        head = f"# Figures of the original's own code for {name}, which `relm verify-start` compares with the recipe.\n"
        content = yaml.safe_dump(describe(original, name), sort_keys=False, width=1000)
        (RECIPES / "starts" / f"{name}.yaml").write_text(head + content)


if __name__ == "__main__":
    main()
