"""Inputs and parameters of the rules in data.smk, from the dump to examples.

A file that may be large is `ancient` for Snakemake; its sidecar, which has its hash, is an ordinary input instead.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snakemake.io import ancient

from relm.artifact import canonical_json
from relm.errors import RelmError
from relm.graph.asking import PROJECT, report_faults, sidecars, strings
from relm.recipes import identity
from relm.recipes.identity import work_folder
from relm.recipes.jobs import DocumentsJob, ExamplesJob, TokenizerJob
from relm.recipes.plan import SPLITS
from relm.recipes.remote_files import RemoteFile


@report_faults
def download_sha256(wildcards: Any) -> str:
    """Return the sha256 that a file of a model, a published test or a dataset must have."""
    if hasattr(wildcards, "model"):
        return _model_file_sha256(wildcards)
    if hasattr(wildcards, "test"):
        return _sha256_of_key(PROJECT.test_path(wildcards.test), PROJECT.test(wildcards.test).files, wildcards)
    return _sha256_of_key(PROJECT.dataset_path(wildcards.dataset), PROJECT.dataset(wildcards.dataset).files, wildcards)


def _sha256_of_key(spec: Path, files: Mapping[str, RemoteFile], wildcards: Any) -> str:
    """Return the sha256 of the file that a download's path names.

    Raises:
        RelmError: the recipe has no such file, or its sha256 differs from the path's.
    """
    if wildcards.shard not in files:
        raise RelmError(f"{spec}: has no file {wildcards.shard}; it has {', '.join(files)}")
    sha256 = files[wildcards.shard].sha256
    if sha256[:12] != wildcards.key:
        raise RelmError(
            f"{spec}: {wildcards.shard} has sha256 {sha256[:12]}..., requested was {wildcards.key}...: was it edited during "
            "the run? Give the same command again"
        )
    return sha256


def _model_file_sha256(wildcards: Any) -> str:
    """Return the sha256 of a model's file, as published or from a local folder."""
    model = PROJECT.model(wildcards.model)
    content = identity.model_content(wildcards.model, model, work_folder() / "folders")
    parts = [identity.part_of(content, files) for files in (model.weights_files, model.tokenizer_files)]
    for part in parts:
        if identity.digest(part) == wildcards.key and wildcards.file in part:
            return part[wildcards.file]
    source = f"folder {model.folder}" if model.folder else "its files"
    raise RelmError(
        f"{PROJECT.model_path(wildcards.model)}: no {wildcards.file} with key {wildcards.key} is in {source}: was it edited "
        "during the run? Give the same command again"
    )


def list_inputs(**files: list[Path]) -> dict[str, list[Any]]:
    """Return a job's inputs for `unpack`: files by name, which are `ancient`, and their `sidecars`, which have their hashes."""
    every = [path for paths in files.values() for path in paths]
    return {"sidecars": sidecars(every), **{name: ancient(strings(paths)) for name, paths in files.items()}}


def _documents_job(wildcards: Any) -> DocumentsJob:
    return PROJECT.find_job(DocumentsJob, wildcards.key, wildcards.dataset)


@report_faults
def documents_inputs(wildcards: Any) -> dict[str, list[Any]]:
    """Return the downloaded file of a shard; no inputs for a folder, because the key of its content is in the path."""
    job = _documents_job(wildcards)
    return list_inputs(source=[job.download(wildcards.shard)] if job.dataset.files else [])


@report_faults
def documents_job(wildcards: Any, resources: Any) -> str:
    """Return `--job JSON --source SOURCE` of one shard of documents.

    Snakemake does not compare parameters that depend on resources with its records; the key in the path identifies the job.
    """
    job, shard = _documents_job(wildcards), wildcards.shard
    dataset = job.dataset
    if dataset.hub is not None:
        source = f"{dataset.hub.name}@{dataset.hub.revision}"
    else:
        source = str(job.download(shard) if dataset.folder is None else Path(dataset.folder).expanduser())
    pattern = f" --pattern {shlex.quote(dataset.pattern)}" if dataset.pattern is not None else ""
    return f"{_job_option(job.passed_document(shard))} --source {shlex.quote(source)}{pattern}"


def _job_option(document: Mapping[str, Any]) -> str:
    return f"--job {shlex.quote(canonical_json(document))}"


def _tokenizer_job(wildcards: Any) -> TokenizerJob:
    return PROJECT.find_job(TokenizerJob, wildcards.key)


@report_faults
def tokenizer_inputs(wildcards: Any) -> dict[str, list[Any]]:
    """Return the documents that a tokenizer is trained on, or the published files that it is imported from."""
    return list_inputs(files=list(_tokenizer_job(wildcards).inputs))


@report_faults
def tokenizer_job(wildcards: Any, resources: Any) -> str:
    """Return `--job JSON` of a tokenizer."""
    return _job_option(_tokenizer_job(wildcards).document)


def _examples_job(wildcards: Any) -> ExamplesJob:
    return PROJECT.find_job(ExamplesJob, wildcards.key, wildcards.dataset)


@report_faults
def examples_inputs(wildcards: Any) -> dict[str, list[Any]]:
    """Return the documents of a shard, both splits, and the tokenizer."""
    job = _examples_job(wildcards)
    documents = [job.documents.documents(wildcards.shard, split) for split in SPLITS]
    return list_inputs(documents=documents, tokenizer=[job.tokenizer.tokenizer])


@report_faults
def examples_job(wildcards: Any, resources: Any) -> str:
    """Return `--job JSON` of examples."""
    return _job_option(_examples_job(wildcards).document)


@report_faults
def shard_sidecars(wildcards: Any) -> list[str]:
    """Return the sidecars of all shards of examples, training first."""
    job = _examples_job(wildcards)
    return sidecars([job.examples(shard, split) for split in SPLITS for shard in job.documents.shards])


@report_faults
def dataset_description(wildcards: Any) -> dict[str, Any]:
    """Return the dataset's descriptive keys in Croissant's file, so that it is written again when they are edited."""
    dataset = PROJECT.dataset(wildcards.dataset)
    return dataset.model_dump(mode="json", include={"title", "licence", "homepage", "language"})
