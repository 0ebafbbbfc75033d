"""Compare relm with a golden: train a shipped recipe at twin size by the real loop from the golden's initial weights."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from golden_files import STEPS, Weights, draw_tokens, hash_batch
from safetensors.torch import load_file

from relm.artifact import sha256_of, write_json, write_sidecar
from relm.devices.contract import open_device
from relm.examples.builders import pregenerate
from relm.examples.manifest import write_manifest
from relm.examples.storage import shard_writer
from relm.models.contract import LanguageModel
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe
from relm.recipes.run_folder import checkpoint_folder
from relm.recipes.section import merge
from relm.training import loop
from relm.training.architecture import configuration, unset_model
from relm.training.phase_run import open_reader

CHECKOUT = Path(__file__).resolve().parents[2]
# Some oracles read texts and tokenizers of the other tests, which pytest finds by itself.
sys.path.append(str(CHECKOUT / "tests"))


@dataclass(frozen=True)
class Bounds:
    """The largest differences that count as rounding: a few times those that were measured."""

    loss: float = 1e-6
    """Relative to the loss of the step."""
    gradient_norm: float = 2e-6
    """Relative to the norm of the step."""
    weights: float = 2e-6
    """Absolute, of any weight after the last step, except the biases of attention's keys."""
    learning_rate: float = 1e-12
    """Relative. Both sides compute in double precision, and round a few operations otherwise."""


@dataclass(frozen=True)
class Oracle:
    """An original whose program runs on a CPU, and the run of relm that must equal it step for step."""

    name: str
    """Name of the golden."""
    original: str
    """The original's program, as docs/trust.md names it."""
    recipes: Sequence[str]
    """The shipped recipes that it stands for; each becomes the same run at twin size."""
    twin: Mapping[str, Any]
    """Keys of a recipe that twin size changes, as in YAML."""
    run: Mapping[str, Any]
    """The section `run` of the twin, which replaces the recipe's: threads, micro-batch and the like."""
    write_examples: Callable[[Path], Path]
    """Function (empty folder) -> the manifest of the examples that it wrote; `tokenizer.json` lies next to it."""
    convert: Callable[[Weights], Mapping[str, npt.NDArray[np.float32]]]
    """Function: weights under the original's names -> under relm's, in relm's layout."""
    arrays: Sequence[str] = ("input_ids", "labels")
    """The arrays of a batch whose hash the golden has, in this order."""
    phase: str = "main"
    bounds: Bounds = Bounds()
    surroundings: Callable[[], AbstractContextManager[Any]] = nullcontext
    """The context in which relm trains the twin."""
    also_changes: Sequence[str] = ()
    """Other keys that the twin changes, because the original's program has no such option; `note` says so."""
    note: str = ""
    """A sentence on what the comparison leaves out or replaces; empty: nothing."""


@dataclass(frozen=True)
class OurRun:
    """The same steps, taken by relm."""

    batches_sha256: Sequence[str]
    losses: Sequence[float]
    gradient_norms: Sequence[float]
    learning_rates: Sequence[float]
    final: Mapping[str, torch.Tensor] = field(repr=False)
    """The weights after the last step."""

    @property
    def steps(self) -> int:
        """Return the count of steps that were taken."""
        return len(self.losses)


def twin_of(oracle: Oracle, name: str | None = None) -> Recipe:
    """Return a recipe at twin size.

    Args:
        name: a recipe for which the oracle stands; None: the first.
    """
    shipped = Project(CHECKOUT).plan(name or oracle.recipes[0]).recipe.model_dump()
    changed = merge(shipped, oracle.twin)
    return Recipe.model_validate({**changed, "on": {}, "run": {"threads": 1, "log_interval": 1, **oracle.run}})


def train(oracle: Oracle, initial: Weights, folder: Path, steps: int = STEPS) -> OurRun:
    """Train the twin's first steps in an empty folder.

    Args:
        initial: the initial weights under the original's names.
    """
    recipe = twin_of(oracle)
    examples = folder / "examples"
    examples.mkdir(parents=True)
    manifest = oracle.write_examples(examples)
    tokenizer = manifest.parent / "tokenizer.json"
    start = unset_model(configuration(recipe, loop.tokenizer_facts(manifest, tokenizer)))
    load_weights(start, oracle.convert(initial))
    (folder / "start").mkdir()
    start.save_folder(folder / "start", {})
    hashes = hash_batches(oracle, recipe, manifest, steps)
    run = folder / oracle.phase
    with oracle.surroundings():
        loop.pretrain(recipe, oracle.phase, manifest, tokenizer, folder / "start", run / "model", "0" * 12, until=steps)
    lines = [json.loads(line) for line in (run / "train.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    columns = ([line[key] for line in lines] for key in ("loss", "gradient_norm", "learning_rate"))
    return OurRun(hashes, *columns, load_file(checkpoint_folder(run / "checkpoints", steps) / "model.safetensors"))


def load_weights(model: LanguageModel, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Load weights under relm's names."""
    model.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(weight)) for name, weight in weights.items()})


def hash_batches(oracle: Oracle, recipe: Recipe, manifest: Path, steps: int) -> list[str]:
    """Return the hash of each step's global batch, as the loop's reader gives it."""
    reader = open_reader(recipe, oracle.phase, manifest, "train", open_device(recipe.run))
    batches = [reader.batch(step) for step in range(1, steps + 1)]
    return [hash_batch(batch[name] for name in oracle.arrays) for batch in batches]


def write_stream(
    folder: Path, tokens: npt.NDArray[np.integer], sizes: Sequence[int], vocabulary_size: int, **facts: Any
) -> Path:
    """Write documents of tokens as a shard of both splits, with a stand-in for the tokenizer, and return the manifest.

    Args:
        tokens: the concatenated documents.
        sizes: tokens of each document.
        facts: other facts of the shard's sidecar, such as `end_of_text_id`.
    """
    shard = write_shard(folder, "stream.bin", tokens, sizes, vocabulary_size, **facts)
    write_manifest({"train": [shard], "held_out": [shard]}, folder / "manifest.json")
    return folder / "manifest.json"


def write_shards(folder: Path, shards: Sequence[npt.NDArray[np.integer]], vocabulary_size: int, **facts: Any) -> Path:
    """Write shards of one document each for training, the first of which is held out too, and return the manifest."""
    names = [f"shard_{number}.tokens.bin" for number in range(len(shards))]
    paths = [
        write_shard(folder, name, tokens, [len(tokens)], vocabulary_size, **facts)
        for name, tokens in zip(names, shards, strict=True)
    ]
    write_manifest({"train": paths, "held_out": paths[:1]}, folder / "manifest.json")
    return folder / "manifest.json"


def write_shard(
    folder: Path,
    name: str,
    tokens: npt.NDArray[np.integer],
    sizes: Sequence[int],
    vocabulary_size: int,
    **facts: Any,
) -> Path:
    """Write a shard, its sidecar and `tokenizer.json` into its folder, and return its path."""
    tokenizer, shard = folder / "tokenizer.json", folder / name
    write_json(tokenizer, {"vocabulary_size": vocabulary_size})
    with shard_writer(shard, vocabulary_size) as writer:
        writer.append(tokens.astype(np.int32), np.array(sizes, dtype=np.int32))
    counts = {"tokens": len(tokens), "documents": len(sizes), "words": len(tokens), "bytes": len(tokens)}
    agreed = {"objective": "causal", "dtype": writer.dtype, "tokenizer_sha256": sha256_of(tokenizer)}
    write_sidecar(shard, **agreed, **counts, vocabulary_size=vocabulary_size, **{"end_of_text_id": None, **facts})
    return shard


def write_walk(tokens: int, vocabulary_size: int) -> Callable[[Path], Path]:
    """Return a writer of one document, `draw_tokens`, without an end of text."""
    return lambda folder: write_stream(folder, draw_tokens(tokens, vocabulary_size), [tokens], vocabulary_size)


def write_table(oracle: Oracle, folder: Path, texts: Sequence[str], tokenizer: Path, language: str = "en") -> Path:
    """Build the examples of texts as the twin's recipe does, and return the manifest, in which both splits are the same.

    Args:
        tokenizer: `tokenizer.json` in the same folder.
    """
    documents, shard = folder / "documents.jsonl", folder / "shard.table"
    rows = [json.dumps({"id": str(number), "title": "", "text": text}) for number, text in enumerate(texts)]
    documents.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    write_sidecar(documents, documents=len(texts))
    pregenerate(documents, tokenizer, shard, twin_of(oracle).pretrain[oracle.phase], language, 1)
    write_manifest({"train": [shard], "held_out": [shard]}, folder / "manifest.json")
    return folder / "manifest.json"
