"""The smoke twins of shipped recipes on the CPU client, with small tokenizers and made-up documents."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xla_runs import XlaRun

from relm.examples.builders import pregenerate
from relm.examples.manifest import write_manifest
from relm.examples.tokenization.tokenizer_files import train_tokenizer
from relm.recipes.phase import Phase
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe
from small_project import CHECKOUT
from tiny_runs import byte_tokenizer, write_documents

# Architecture -> special tokens of its published tokenizer, beside <|endoftext|>; BERT's WordPiece is trained.
SPECIAL = {"roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"), "mt5": ("<pad>", "</s>", "<unk>")}

# Recipe -> count of devices: a share of the loss is four of a twin's eight sequences, and each device needs some of them.
TWINS = {
    "roberta_base_v3-8": 8,
    "roberta_base_v3-8_as_published": 4,
    "bert_large_wikitext103_v3-8_fp32": 8,
    "bert_large_wikitext103_v3-8_bf16": 8,
    "mt5_base_romanian_diacritics_v3-8": 8,
}


def twin_of(name: str) -> Recipe:
    """Return the smoke twin of a shipped recipe."""
    return Project(CHECKOUT).plan(f"smoke/{name}").recipe


def twin_examples(folder: Path, architecture: str, phase: Phase) -> Path:
    """Build manifest, shards and tokenizer of a phase by the project's own steps."""
    folder.mkdir(parents=True)
    tokenizer = folder / "tokenizer.json"
    shards: dict[str, list[Path]] = {}
    for seed, split in enumerate(("train", "held_out")):
        documents = folder / f"{split}.jsonl"
        write_documents(documents, seed)
        if split == "train" and architecture in SPECIAL:
            byte_tokenizer(*SPECIAL[architecture]).save(str(tokenizer))
        elif split == "train":
            train_tokenizer("wordpiece", [documents], 80, 10**6, tokenizer)
        shards[split] = [folder / f"shard.{split}{phase.suffix}"]
        pregenerate(documents, tokenizer, shards[split][0], phase, "ro", workers=1)
    write_manifest(shards, folder / "manifest.json")
    return folder


@dataclass
class TwinRun(XlaRun):
    """A smoke twin, unchanged except for its device."""

    name: str = ""

    @property
    def recipe(self) -> Recipe:
        twin: dict[str, Any] = twin_of(self.name).model_dump()
        twin["run"] |= {"device": "tpu" if self.devices else "cpu", "threads": 1}
        return Recipe.model_validate(twin)

    def pretrained(self) -> str:
        """Train with a higher level of XLA's optimization, since steps are larger than those of other tests here."""
        os.environ["XLA_FLAGS"] = os.environ["XLA_FLAGS"].replace("level=0", "level=1")
        return super().pretrained()
