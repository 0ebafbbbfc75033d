"""Masked examples, all tiny, and folders of random models that read them."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from relm.evaluation.execution import Execution
from relm.examples.manifest import write_manifest
from relm.examples.masked import pregenerate_masked
from relm.models.bert import Bert, BertConfig
from relm.recipes.objectives import Objective
from small_documents import write_texts

LETTERS = "abcdefghijklm"
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
PAD, CLS, SEP, MASK = 0, 2, 3, 4
LENGTH = 24
TINY = BertConfig(
    layers=2, heads=2, hidden_size=8, intermediate_size=12, positions=LENGTH, vocabulary_size=len(TOKENS) + 3,
)  # fmt: skip
ALONE = Execution(threads=1)


class Case(NamedTuple):
    """Examples, and a model with both heads."""

    manifest: Path
    model: Path


def phase(**masked: Any) -> Objective:
    settings = {"sentences": "lines", "packing": "sentence_pairs", "short_sequence_probability": 0.3, **masked}
    return Objective.model_validate({"objective": "masked", "sequence_length": LENGTH, "masked": settings})


def examples(folder: Path, documents: int = 40, **masked: Any) -> Path:
    """Write examples of invented documents, lines of short words with a token for each letter; return their manifest."""
    folder.mkdir(exist_ok=True)
    tokenizer = Tokenizer(models.WordPiece({token: number for number, token in enumerate(TOKENS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(TOKENS[:5])
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    shards = {}
    for seed, split in enumerate(("train", "held_out")):
        path, shard = folder / f"{split}.jsonl", folder / f"{split}.arrow"
        write_documents(path, np.random.default_rng(seed), documents)
        pregenerate_masked(path, folder / "tokenizer.json", shard, phase(**masked), "en", 1)
        shards[split] = [shard]
    write_manifest(shards, folder / "manifest.json")
    return folder / "manifest.json"


def write_documents(path: Path, generator: np.random.Generator, count: int) -> None:
    def sentence() -> str:
        sizes = generator.integers(1, 5, generator.integers(1, 6))
        return " ".join("".join(generator.choice(list(LETTERS), size)) for size in sizes) + " ."

    texts = ["\n".join(sentence() for _ in range(generator.integers(2, 9))) for _ in range(count)]
    write_texts(path, texts)


def bert(folder: Path, seed: int = 1, spread: float = 0.4, **changes: Any) -> Path:
    """Write a folder of relm's own BERT, every parameter random, with a head for sentence pairs by default."""
    model = Bert(replace(TINY, **{"next_sentence": True, **changes}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, spread, generator=generator)
    folder.mkdir(parents=True)
    model.save_folder(folder, {})
    return folder
