"""A tokenizer, examples and a random model, all tiny."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from masked_cases import Case, bert, examples
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from relm.artifact import sha256_of, write_sidecar
from relm.examples.manifest import write_manifest
from relm.examples.storage import shard_writer
from relm.models.gpt2 import Gpt2, Gpt2Config

VOCABULARY_SIZE = 257
POSITIONS = 16


@dataclass(frozen=True)
class Evaluated:
    """A model, with the data and the tokenizer of its evaluation."""

    model: Path
    manifest: Path
    tokenizer: Path
    held_out: np.ndarray
    """The held-out tokens."""


def byte_tokenizer(path: Path) -> Path:
    """Write a tokenizer in which the end of text is 0 and each byte a token."""
    vocabulary = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(vocabulary)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(path))
    return path


def write_split(path: Path, tokens: np.ndarray, tokenizer: Path) -> Path:
    """Write one document as a shard; its sidecar counts a word for every five tokens and a byte for every one."""
    with shard_writer(path, VOCABULARY_SIZE) as writer:
        writer.append(tokens.astype(np.int32), np.array([len(tokens)], dtype=np.int32))
    write_sidecar(
        path,
        objective="causal",
        dtype=writer.dtype,
        tokens=len(tokens),
        documents=1,
        words=len(tokens) // 5,
        bytes=len(tokens),
        tokenizer_sha256=sha256_of(tokenizer),
        vocabulary_size=VOCABULARY_SIZE,
        end_of_text_id=0,
    )
    return path


@pytest.fixture(scope="session")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    """Return a random model with weights large enough that its losses differ from token to token."""
    folder = tmp_path_factory.mktemp("evaluated")
    tokenizer = byte_tokenizer(folder / "tokenizer.json")
    generator = np.random.default_rng(3)
    train = np.cumsum(generator.integers(1, 4, 4000)) % VOCABULARY_SIZE
    held_out = np.cumsum(generator.integers(1, 4, 16 * 7 + 6)) % VOCABULARY_SIZE
    shards = {
        "train": [write_split(folder / "a.train.bin", train, tokenizer)],
        "held_out": [
            write_split(folder / "a.held_out.bin", held_out[:50], tokenizer),
            write_split(folder / "b.held_out.bin", held_out[50:], tokenizer),
        ],
    }
    write_manifest(shards, folder / "manifest.json")
    config = Gpt2Config(
        layers=2, heads=2, hidden_size=32, positions=POSITIONS, vocabulary_size=VOCABULARY_SIZE, initializer_range=0.3
    )
    model = Gpt2(config)
    model.initialise(torch.Generator().manual_seed(0))
    (folder / "model").mkdir()
    model.save_folder(folder / "model", {"bos_token_id": 0, "eos_token_id": 0})
    return Evaluated(folder / "model", folder / "manifest.json", tokenizer, held_out)


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Return masked examples and a random BERT, which no test changes."""
    folder = tmp_path_factory.mktemp("masked")
    return Case(examples(folder), bert(folder / "model"))
