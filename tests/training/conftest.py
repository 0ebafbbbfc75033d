"""A tiny run: 257 tokens, two layers, steps of milliseconds, in this process or in a real one of its own."""

import json
import os
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from relm.artifact import sha256_of, write_json, write_sidecar
from relm.recipe import Recipe
from relm.section import merge

END_OF_TEXT = 256
RECIPE: dict[str, Any] = {
    "title": "a tiny run",
    "data": {"dataset": "tiny"},
    "tokenizer": {"train": "byte_level_bpe", "vocabulary_size": 257},
    "model": {"architecture": "gpt2", "layers": 2, "heads": 2, "hidden_size": 16, "positions": 16, "dropout": 0.1},
    "seed": 7,
    "pretrain": {
        "main": {
            "objective": "causal",
            "sequence_length": 16,
            "global_batch_size": 8,
            "steps": 30,
            "optimizer": {"learning_rate": 0.01, "weight_decay": 0.1, "gradient_clipping": 1.0},
            "schedule": {"name": "cosine", "warmup_steps": 3, "floor": 0.1},
        }
    },
    "run": {"threads": 1, "micro_batch_size": 4, "checkpoint_interval": 3, "log_interval": 2},
}
# What the command does, without what surrounds it.
TRAINER = """
import sys
from pathlib import Path
from relm.errors import RelmError
from relm.recipe import Recipe
from relm.training.loop import pretrain
folder, examples, fingerprint = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
recipe = Recipe.model_validate_json((folder / "recipe.json").read_text())
manifest, tokenizer = examples / "manifest.json", examples / "tokenizer.json"
try:
    print(pretrain(recipe, "main", manifest, tokenizer, None, folder / "main" / "model", fingerprint))
except RelmError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def byte_tokenizer() -> Tokenizer:
    """One token a byte, and the end of text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def write_examples(folder: Path, seed: int) -> Path:
    """120 documents of text with some structure, in the layout that pregeneration writes."""
    folder.mkdir(parents=True)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    generator = np.random.default_rng(seed)
    documents = [np.cumsum(generator.integers(1, 4, length)) % 256 for length in generator.integers(5, 60, 120)]
    documents = [np.append(document, END_OF_TEXT).astype("<u2") for document in documents]
    shard, index = folder / "shard.train.bin", folder / "shard.train.idx"
    np.concatenate(documents).tofile(shard)
    sizes = np.array([len(document) for document in documents], dtype="<i4")
    with open(index, "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(sizes), len(sizes) + 1))
        file.write(sizes.tobytes() + (2 * (np.cumsum(sizes) - sizes)).astype("<i8").tobytes())
        file.write(np.arange(len(sizes) + 1, dtype="<i8").tobytes())
    tokens = int(sizes.sum())
    sidecar = write_sidecar(
        shard,
        objective="causal",
        dtype="uint16",
        tokens=tokens,
        documents=len(sizes),
        words=len(sizes),
        bytes=tokens,
        tokenizer_sha256=sha256_of(folder / "tokenizer.json"),
        idx_sha256=sha256_of(index),
        source="0" * 64,
    )
    entry = {key: sidecar[key] for key in ("file", "sha256", "size", "dtype", "tokens", "documents")}
    split = {"tokens": tokens, "documents": len(sizes), "words": len(sizes), "bytes": tokens, "shards": [entry]}
    manifest = {
        "objective": "causal",
        "tokenizer": {
            "sha256": sha256_of(folder / "tokenizer.json"),
            "vocabulary_size": END_OF_TEXT + 1,
            "end_of_text_id": END_OF_TEXT,
        },
        "splits": {"train": split, "held_out": split},
    }
    write_json(folder / "manifest.json", manifest)
    return folder


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with manifest, shard and tokenizer."""
    return write_examples(tmp_path_factory.mktemp("data") / "examples", seed=0)


@pytest.fixture(scope="session")
def other_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with other documents."""
    return write_examples(tmp_path_factory.mktemp("data") / "other", seed=1)


@dataclass
class TinyRun:
    """A run folder and the ways to train in it."""

    folder: Path
    examples: Path
    changes: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = "0123456789ab"
    init_from: Path | None = None

    @property
    def recipe(self) -> Recipe:
        return Recipe.model_validate(merge(RECIPE, self.changes))

    @property
    def model_folder(self) -> Path:
        return self.folder / "main" / "model"

    @property
    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "main" / "checkpoints").iterdir())

    def train(self) -> str:
        """In this process."""
        from relm.training.loop import pretrain

        manifest, tokenizer = self.examples / "manifest.json", self.examples / "tokenizer.json"
        return pretrain(self.recipe, "main", manifest, tokenizer, self.init_from, self.model_folder, self.fingerprint)

    def command(self) -> list[str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "recipe.json").write_text(self.recipe.model_dump_json())
        return [sys.executable, "-c", TRAINER, str(self.folder), str(self.examples), self.fingerprint]

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """In a process of its own."""
        return subprocess.Popen(
            self.command(),
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def lines(self) -> list[dict[str, Any]]:
        """train.jsonl without its times."""
        text = (self.folder / "main" / "train.jsonl").read_text()
        times = {"seconds", "tokens_per_second", "samples_per_second", "memory_bytes"}
        return [{k: v for k, v in json.loads(line).items() if k not in times} for line in text.splitlines()]

    def sha256(self) -> str:
        """Of the trained weights."""
        return sha256_of(self.model_folder / "model.safetensors")


@pytest.fixture
def tiny_run(tmp_path: Path, examples: Path) -> TinyRun:
    return TinyRun(tmp_path / "run", examples)


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, examples: Path) -> TinyRun:
    """The finished run that interrupted ones are compared with."""
    run = TinyRun(tmp_path_factory.mktemp("uninterrupted"), examples)
    run.train()
    return run
