"""Tiny runs of every objective: two layers, steps of milliseconds, in this process or in a separate real one."""

import json
import multiprocessing
import os
import resource
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from relm.artifact import sha256_of, write_json, write_sidecar
from relm.errors import RelmError
from relm.examples.builders import pregenerate
from relm.examples.manifest import write_manifest
from relm.examples.tokenization.tokenizer_files import train_tokenizer
from relm.recipes.recipe import Recipe
from relm.recipes.section import merge
from relm.training.kill_points import KILL_AT

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
BERT = {"architecture": "bert", "layers": 2, "heads": 2, "hidden_size": 16, "positions": 24}
T5 = {"architecture": "t5", "layers": 2, "heads": 2, "head_size": 8, "hidden_size": 16, "intermediate_size": 32}
# Objective -> the model, and what its phase has beside or instead of RECIPE's keys.
OBJECTIVES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "causal": (RECIPE["model"], {}),
    "masked": (
        BERT,
        {
            "sequence_length": 24,
            "masked": {"packing": "sentence_pairs"},
            "optimizer": {"name": "lamb"},
            "precision": "bfloat16",
        },
    ),
    "seq2seq": (
        T5,
        {
            "sequence_length": 32,
            "optimizer": {"name": "adafactor", "adafactor": {"beta1": 0.9}},
            "precision": "float16",
            "loss_scaling": {"name": "automatic", "scale": 2.0**22, "growth_interval": 3},
        },
    ),
}
# What the command does, without what surrounds it.
TRAINER = """
import sys
from pathlib import Path
from relm.errors import RelmError
from relm.recipes.recipe import Recipe
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
# Processes that begin with everything imported: a hundred times faster than new ones, and as real.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "relm.training.loop",
        "relm.devices.torch",
        "relm.examples.masked",
        "relm.examples.seq2seq",
        "relm.devices.ipu.inference",
        "relm.devices.ipu.simulator",
    ]
)


def byte_tokenizer(*special_tokens: str) -> Tokenizer:
    """One token a byte, and the end of text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", *special_tokens])
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
    entry = {key: sidecar[key] for key in ("file", "sha256", "size", "dtype", "tokens", "documents", "idx_sha256")}
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


def write_documents(path: Path, seed: int) -> None:
    """80 documents of a few lines with sentences of made-up words, some with diacritics."""
    generator = np.random.default_rng(seed)
    words = np.array(["ana", "are", "mere", "și", "pere", "în", "coș", "iar", "vântul", "bate", "tare", "peste", "câmp"])

    def sentence() -> str:
        return " ".join(words[generator.zipf(1.5, generator.integers(3, 9)) % len(words)]).capitalize() + "."

    with open(path, "w", encoding="utf-8") as file:
        for number in range(80):
            text = "\n".join(" ".join(sentence() for _ in range(3)) for _ in range(generator.integers(1, 4)))
            file.write(json.dumps({"id": str(number), "title": f"T{number}", "text": text}, ensure_ascii=False) + "\n")
    write_sidecar(path, documents=80)


def pregenerate_examples(folder: Path, objective: str) -> Path:
    """Manifest, shard and tokenizer for a run of an objective, made of documents by the steps that make them."""
    folder.mkdir(parents=True)
    tokenizer, phase = folder / "tokenizer.json", recipe_of(objective).pretrain["main"]
    shards: dict[str, list[Path]] = {}
    for seed, split in enumerate(("train", "held_out")):
        documents = folder / f"{split}.jsonl"
        write_documents(documents, seed)
        if split == "train" and objective == "masked":
            train_tokenizer("wordpiece", [documents], 80, 10**6, tokenizer)
        elif split == "train":
            byte_tokenizer("<pad>", *(f"<extra_id_{number}>" for number in reversed(range(100)))).save(str(tokenizer))
        shards[split] = [folder / f"shard.{split}{phase.suffix}"]
        pregenerate(documents, tokenizer, shards[split][0], phase, "ro", workers=1)
    write_manifest(shards, folder / "manifest.json")
    return folder


def recipe_of(objective: str, changes: dict[str, Any] | None = None) -> Recipe:
    """The tiny recipe of an objective."""
    model, phase = OBJECTIVES[objective]
    recipe = merge({**RECIPE, "model": model}, {"pretrain": {"main": {"objective": objective, **phase}}})
    return Recipe.model_validate(merge(recipe, changes or {}))


@dataclass
class TinyRun:
    """A run folder and the ways to train in it."""

    folder: Path
    examples: Path
    changes: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = "0123456789ab"
    init_from: Path | None = None
    objective: str = "causal"

    @property
    def recipe(self) -> Recipe:
        return recipe_of(self.objective, self.changes)

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
        """Start the run in a separate process."""
        return subprocess.Popen(
            self.command(),
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def attempt(self, kill_at: str = "", largest_file: int | None = None, seconds: float = 200) -> tuple[int | None, str]:
        """Run in a separate process that is forked from one with everything imported.

        Args:
            kill_at: where it kills itself.
            largest_file: in bytes; writing more fails, as on a full disk.
            seconds: after which it is killed.

        Returns:
            The exit code, negative for a signal, and its message.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        message_file = self.folder / "message.txt"
        message_file.unlink(missing_ok=True)
        process = FORKS.Process(target=_attempt, args=(self, kill_at, largest_file))
        process.start()
        process.join(seconds)
        process.kill()
        process.join()
        return process.exitcode, message_file.read_text() if message_file.exists() else ""

    def lines(self) -> list[dict[str, Any]]:
        """train.jsonl without its times."""
        text = (self.folder / "main" / "train.jsonl").read_text()
        times = {"seconds", "tokens_per_second", "samples_per_second", "memory_bytes", "mfu", "resumed_after", "machines"}
        return [{k: v for k, v in json.loads(line).items() if k not in times} for line in text.splitlines()]

    def sha256(self) -> str:
        """Return the sha256 of the trained weights."""
        return sha256_of(self.model_folder / "model.safetensors")

    def last_optimizer(self) -> str:
        """sha256 of what the optimizer remembers in the end."""
        return sha256_of(self.folder / "main" / "checkpoints" / self.checkpoints[-1] / "optimizer.safetensors")

    def listed(self) -> str:
        """checkpoints.jsonl."""
        return (self.folder / "main" / "checkpoints.jsonl").read_text()


def _attempt(run: TinyRun, kill_at: str, largest_file: int | None) -> None:
    os.environ[KILL_AT] = kill_at
    message, code = "", 0
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if largest_file is None else largest_file, hard))
    try:
        message = run.train()
    except RelmError as error:
        message, code = str(error), error.exit_code
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    (run.folder / "message.txt").write_text(message)
    sys.exit(code)
