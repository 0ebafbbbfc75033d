"""What the rules of data.smk ask: from the dump to examples."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relm.artifact import canonical_json
from relm.errors import RelmError
from relm.graph.asking import PROJECT, in_words, sha256_option, sidecars, strings
from relm.recipes import identity
from relm.recipes.plan import SPLITS, Plan
from relm.recipes.remote_files import RemoteFile


@in_words
def dataset_file_sha256(wildcards: Any) -> str:
    """Return the sha256 that a dataset's file must have."""
    return sha256_of_key(PROJECT.dataset_path(wildcards.dataset), PROJECT.dataset(wildcards.dataset).files, wildcards)


def sha256_of_key(spec: Path, files: Mapping[str, RemoteFile], wildcards: Any) -> str:
    """Return the sha256 of the file that a download's path names.

    Raises:
        RelmError: the recipe has no such file, or it has other content than the path asks for.
    """
    if wildcards.shard not in files:
        raise RelmError(f"{spec}: has no file {wildcards.shard}; it has {', '.join(files)}")
    sha256 = files[wildcards.shard].sha256
    if sha256[:12] != wildcards.key:
        raise RelmError(
            f"{spec}: {wildcards.shard} has sha256 {sha256[:12]}..., asked for {wildcards.key}...: was it edited while this "
            "ran? Give the same command again"
        )
    return sha256


@in_words
def model_file_sha256(wildcards: Any) -> str:
    """Return the sha256 that a model's file must have: as published, or as a folder of one's own has it."""
    model = PROJECT.model(wildcards.model)
    content = identity.model_content(wildcards.model, model, identity.work_folder() / "folders")
    parts = [identity.part_of(content, files) for files in (model.weights_files, model.tokenizer_files)]
    for part in parts:
        if identity.digest(part) == wildcards.key and wildcards.file in part:
            return part[wildcards.file]
    place = f"folder {model.folder}" if model.folder else "its files"
    raise RelmError(
        f"{PROJECT.model_path(wildcards.model)}: no {wildcards.file} with key {wildcards.key} is in {place}: was it edited "
        "while this ran? Give the same command again"
    )


def _plan_of_documents(wildcards: Any) -> Plan:
    return PROJECT.plan_where(wildcards.dataset, documents_key=wildcards.key)


@in_words
def source_sidecar(wildcards: Any) -> list[str]:
    """What stands for the source of a shard; a folder's content is in the path already."""
    plan = _plan_of_documents(wildcards)
    return sidecars([plan.download(wildcards.shard)]) if plan.dataset.files else []


@in_words
def source(wildcards: Any) -> list[str]:
    """The downloaded file of a shard; nothing for a folder, which is no rule's business."""
    plan = _plan_of_documents(wildcards)
    return strings([plan.download(wildcards.shard)]) if plan.dataset.files else []


@in_words
def source_path(wildcards: Any) -> str:
    """The downloaded file, the folder, or what a dataset of the hub is called, quoted for the shell."""
    plan = _plan_of_documents(wildcards)
    if plan.dataset.hub is not None:
        return shlex.quote(f"{plan.dataset.hub.name}@{plan.dataset.hub.revision}")
    path = plan.dataset.folder if plan.dataset.folder is not None else str(plan.download(wildcards.shard))
    return shlex.quote(str(Path(path).expanduser()))


@in_words
def documents_limit(wildcards: Any) -> str:
    """`--documents N` where the recipe reads only so many."""
    limit = _plan_of_documents(wildcards).recipe.data.documents
    return f"--documents {limit}" if limit else ""


def _plan_of_tokenizer(wildcards: Any) -> Plan:
    return PROJECT.plan_where(tokenizer_key=wildcards.key)


def _training_documents(plan: Plan) -> list[Path]:
    return [plan.documents(shard, "train") for shard in plan.shards]


@in_words
def tokenizer_training_sidecars(wildcards: Any) -> list[str]:
    """What stands for the documents a tokenizer is trained on."""
    return sidecars(_training_documents(_plan_of_tokenizer(wildcards)))


@in_words
def tokenizer_training_documents(wildcards: Any) -> list[str]:
    """The documents a tokenizer is trained on."""
    return strings(_training_documents(_plan_of_tokenizer(wildcards)))


@in_words
def tokenizer_training_options(wildcards: Any) -> str:
    """How it is trained."""
    choice = _plan_of_tokenizer(wildcards).recipe.tokenizer
    kind = [] if choice.train == "byte_level_bpe" else [f"--kind {choice.train}"]
    size = [f"--vocabulary-size {choice.vocabulary_size}"] if choice.vocabulary_size else []
    case = ["--lower-case"] if choice.lower_case else []
    special = [] if choice.special_tokens else ["--no-special-tokens"]
    return " ".join([*kind, *size, *case, *special, f"--training-bytes {choice.training_bytes}"])


@in_words
def imported_tokenizer_sidecars(wildcards: Any) -> list[str]:
    """What stands for the files of a published tokenizer."""
    return sidecars(_plan_of_tokenizer(wildcards).tokenizer_files)


@in_words
def imported_tokenizer_files(wildcards: Any) -> list[str]:
    """The files of a published tokenizer."""
    return strings(_plan_of_tokenizer(wildcards).tokenizer_files)


@in_words
def imported_tokenizer_sha256(wildcards: Any) -> str:
    """Return `--sha256 NAME=HASH ...` of the files of a published tokenizer."""
    return sha256_option(_plan_of_tokenizer(wildcards).tokenizer_sha256)


@in_words
def imported_tokenizer_kind(wildcards: Any) -> str:
    """Its format."""
    model = _plan_of_tokenizer(wildcards).tokenizer_model
    assert model is not None
    return str(model.tokenizer)


def _plan_of_examples(wildcards: Any) -> Plan:
    return PROJECT.plan_where(wildcards.dataset, examples_keys=wildcards.key)


def _phase_of_examples(wildcards: Any) -> tuple[Plan, str]:
    plan = _plan_of_examples(wildcards)
    return plan, plan.examples_keys[wildcards.key]


@in_words
def example_documents_sidecars(wildcards: Any) -> list[str]:
    """What stands for the documents of a shard, both splits, and for the tokenizer."""
    plan = _plan_of_examples(wildcards)
    return sidecars([*(plan.documents(wildcards.shard, split) for split in SPLITS), plan.tokenizer])


@in_words
def example_documents(wildcards: Any) -> list[str]:
    """The documents of a shard, both splits."""
    plan = _plan_of_examples(wildcards)
    return strings([plan.documents(wildcards.shard, split) for split in SPLITS])


@in_words
def example_tokenizer(wildcards: Any) -> str:
    """The tokenizer they are encoded with."""
    return str(_plan_of_examples(wildcards).tokenizer)


@in_words
def shard_sidecars(wildcards: Any) -> list[str]:
    """The sidecars of all shards of examples, training first."""
    plan, phase = _phase_of_examples(wildcards)
    return sidecars([plan.examples(phase, shard, split) for split in SPLITS for shard in plan.shards])


@in_words
def table_settings(wildcards: Any) -> str:
    """`--settings JSON` with the keys of the objective that decide what is stored: the same for all recipes that share it."""
    plan, phase = _phase_of_examples(wildcards)
    return f"--settings {shlex.quote(canonical_json(plan.recipe.pretrain[phase].what_is_stored()))}"


@in_words
def language(wildcards: Any) -> str:
    """The language of the text, for the sentence splitter."""
    return shlex.quote(_plan_of_examples(wildcards).dataset.language)


@in_words
def dataset_in_words(wildcards: Any) -> dict[str, Any]:
    """What Croissant says of a dataset beside its content: edited words are written again."""
    dataset = PROJECT.dataset(wildcards.dataset)
    return dataset.model_dump(mode="json", include={"title", "licence", "homepage", "language"})
