"""The smoke twins that `relm accept` trains: their recipes on a device, and examples made of generated text.

Generated text needs no download, so a machine can be accepted before anything is fetched.
"""

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from relm.artifact import write_sidecar
from relm.examples.builders import pregenerate
from relm.examples.manifest import write_manifest
from relm.examples.tokenization.tokenizer_files import train_tokenizer
from relm.recipes.devices import DEVICES
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe
from relm.recipes.run_name import RunName

Form = Literal["exact", "formats", "own"]
"""exact: float32 without dropout or random rounding; formats: the recipe's number formats, without dropout; own: unchanged."""
DOCUMENTS, WORDS, VOCABULARY_SIZE = 120, 400, 400
SYLLABLES = ("ba", "ce", "di", "fo", "gu", "la", "me", "ni", "po", "ru", "să", "ta", "ți", "vo", "și")
EXACT_PIPELINE: dict[str, Any] = {
    "precision": "float32",
    "accumulation_precision": "float32",
    "first_moment_precision": "float32",
    "half_partials": False,
    "stochastic_rounding": False,
}


def list_recipes(project: Project, device: str) -> list[str]:
    """Return the recipes that train on a device or on the one that it simulates; the first of each kind come first."""
    kinds, first, others = set(), list[str](), list[str]()
    for name in project.names():
        recipe = project.plan(name).recipe
        if device not in (recipe.run.device, DEVICES[recipe.run.device].simulator):
            continue
        phase = recipe.pretrain[name_phase(recipe)]
        kind = (recipe.model.architecture, phase.objective, phase.optimizer.name, str(phase.original))
        (others if kind in kinds else first).append(name)
        kinds.add(kind)
    return first + others


def twin_of(project: Project, name: str) -> Recipe:
    """Return the twin of a recipe's first phase, with as many sequences in each share of its loss as in its global batch.

    So the devices of a TPU host divide each share.
    """
    twin = project.plan(str(RunName.parse(name)._replace(is_twin=True, machine=None))).recipe
    content = twin.model_dump()
    phase = content["pretrain"][name_phase(twin)]
    if twin.run.pipeline is None and (shares := phase["loss_shares"]) > 1:
        phase["global_batch_size"] *= shares
        if phase["as_published"] and phase["as_published"]["ranks"]:
            phase["as_published"]["batch"] *= shares
    return Recipe.model_validate({**content, "on": {}})


def name_phase(recipe: Recipe) -> str:
    """Return the name of a recipe's first phase, the one that is trained."""
    return next(iter(recipe.pretrain))


def place_twin(twin: Recipe, device: str, form: Form) -> Recipe:
    """Return a twin on a device, in one of the forms, with a line and the losses of every step."""
    content, pipelined = twin.model_dump(), DEVICES[device].pipelined
    phase = content["pretrain"][name_phase(twin)]
    run = content["run"] | {"device": device, "log_interval": 1, "validation_interval": phase["steps"]}
    if form != "own":
        content["model"] |= {key: 0.0 for key in content["model"] if key.endswith("dropout")}
    if form == "exact":
        phase |= {"precision": "float32", "loss_scaling": {}}
        phase["optimizer"]["state_precision"] = "float32"
        run |= {"compile": False} if DEVICES[device].runs_torch else {}
        run |= {} if pipelined else {"float32_matmul_precision": "highest"}
        if pipelined:
            run["pipeline"] |= {**EXACT_PIPELINE, "loss_scaling": {}}
    if not pipelined:
        run["pipeline"] = None
    return Recipe.model_validate(content | {"run": run})


def write_examples(twin: Recipe, language: str, folder: Path) -> Path:
    """Write tokenizer, shards and manifest for a twin's phase from generated text; return the folder."""
    folder.mkdir(parents=True)
    phase = twin.pretrain[name_phase(twin)]
    tokenizer, shards = folder / "tokenizer.json", dict[str, list[Path]]()
    for seed, split in enumerate(("train", "held_out")):
        documents = folder / f"{split}.jsonl"
        with open(documents, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(document) + "\n" for document in _generate_documents(seed))
        write_sidecar(documents, documents=DOCUMENTS)
        if not tokenizer.exists():
            kind = _choose_tokenizer(twin)
            size = None if kind == "characters" else VOCABULARY_SIZE
            train_tokenizer(kind, [documents], size, 10**6, tokenizer)
        shards[split] = [folder / f"shard.{split}{phase.suffix}"]
        pregenerate(documents, tokenizer, shards[split][0], phase, language, workers=1)
    write_manifest(shards, folder / "manifest.json")
    return folder


def write_text(path: Path) -> None:
    """Write the text of the first held-out documents, which an evaluation scores."""
    texts = [document["text"] for document in _generate_documents(seed=1)]
    path.write_text("\n".join(texts[:10]) + "\n", encoding="utf-8")


def _choose_tokenizer(twin: Recipe) -> str:
    """Return a kind of tokenizer that can be trained here, with the special tokens that the objective needs."""
    phase = twin.pretrain[name_phase(twin)]
    if twin.tokenizer.train is not None:
        return twin.tokenizer.train
    if twin.model.architecture == "bert":
        return "wordpiece"
    return "byte_level_bpe" if phase.objective == "causal" else "roberta_byte_level_bpe"


def _generate_documents(seed: int) -> Iterator[Mapping[str, str]]:
    """Yield documents of sentences of made-up words, of which a few are frequent."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(WORDS)]
    weights = [1 / rank for rank in range(1, WORDS + 1)]
    for number in range(DOCUMENTS):
        lines = [
            " ".join(f"{' '.join(draw.choices(words, weights, k=8)).capitalize()}." for _ in range(draw.randint(2, 4)))
            for _ in range(draw.randint(2, 6))
        ]
        yield {"id": f"{seed}-{number}", "title": f"T{seed}-{number}", "text": "\n".join(lines)}
