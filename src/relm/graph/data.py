"""Inputs and parameters of the rules in data.smk, from the dump to examples.

A file that may be large is `ancient` for Snakemake; its sidecar, which has its hash, is an ordinary input instead.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from snakemake.io import ancient

from relm.errors import RelmError
from relm.graph.asking import PROJECT, report_faults, sidecars, strings
from relm.recipes import identity
from relm.recipes.identity import work_folder
from relm.recipes.jobs import SPLITS, DataJob, DocumentsJob, ExamplesJob, KeptDocumentsJob, TokenizerJob
from relm.recipes.remote_files import RemoteFile

JOBS: dict[str, type[DataJob]] = {kind.product: kind for kind in (DocumentsJob, KeptDocumentsJob, TokenizerJob, ExamplesJob)}


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
    file = files[wildcards.shard]
    if file.key != wildcards.key:
        raise RelmError(
            f"{spec}: {wildcards.shard} has sha256 {file.key}..., requested was {wildcards.key}...: was it edited during "
            "the run? Give the same command again"
        )
    return file.sha256


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


def data_inputs(product: str) -> Callable[[Any], dict[str, list[Any]]]:
    """Return the input function, for `unpack`, of the rules that make documents, a tokenizer or examples.

    It returns the job's files by name, which are `ancient`, and their `sidecars`, which have their hashes.
    """

    @report_faults
    def inputs(wildcards: Any) -> dict[str, list[Any]]:
        files = find_data_job(product, wildcards).inputs(wildcards.get("shard"))
        every = [path for paths in files.values() for path in paths]
        return {"sidecars": sidecars(every), **{name: ancient(strings(paths)) for name, paths in files.items()}}

    return inputs


def data_job(product: str) -> Callable[[Any, Any], str]:
    """Return the function of the same rules' parameter: `--job JSON`, and the source of documents.

    Snakemake does not compare parameters that depend on resources with its records; the key in the path identifies the job.
    """

    @report_faults
    def options(wildcards: Any, resources: Any) -> str:
        return find_data_job(product, wildcards).options(wildcards.get("shard"))

    return options


@report_faults
def documents_command(wildcards: Any, threads: int, resources: Any) -> str:
    """Return the command that makes the documents of a shard, from its source or its ranges."""
    return _documents_job(wildcards).command(wildcards.shard, threads)


@report_faults
def range_source(wildcards: Any) -> dict[str, Any]:
    """Return the source of a range, for `unpack`, which is `ancient`, and its sidecar."""
    source = _documents_job(wildcards).source(wildcards.shard)
    return {"sidecars": sidecars(source), "source": ancient(strings(source))}


def _documents_job(wildcards: Any) -> DocumentsJob:
    job = find_data_job("documents", wildcards)
    assert isinstance(job, DocumentsJob)
    return job


def find_data_job(product: str, wildcards: Any) -> DataJob:
    """Return the job that makes a product with the key, and of the dataset, that a path names."""
    return PROJECT.find_job(JOBS[product], wildcards.key, wildcards.get("dataset"))


@report_faults
def list_inputs(wildcards: Any) -> dict[str, list[Any]]:
    """Return the files that the list of removed documents is made from, which are `ancient`, and their sidecars."""
    files = PROJECT.find_job(KeptDocumentsJob, wildcards.key, wildcards.dataset).list_inputs()
    every = [path for paths in files.values() for path in paths]
    return {"sidecars": sidecars(every), **{name: ancient(strings(paths)) for name, paths in files.items()}}


@report_faults
def kept_inputs(wildcards: Any) -> dict[str, Any]:
    """Return the documents of a shard and split, and the list of removed ones, which are `ancient`, and their sidecars."""
    files = PROJECT.find_job(KeptDocumentsJob, wildcards.key, wildcards.dataset).inputs(wildcards.shard)
    documents, removed = files["documents"][SPLITS.index(wildcards.split)], files["removed"][0]
    return {
        "sidecars": sidecars([documents, removed]),
        "documents": ancient(str(documents)),
        "removed": ancient(str(removed)),
    }


@report_faults
def shard_sidecars(wildcards: Any) -> list[str]:
    """Return the sidecars of all shards of examples, training first."""
    job = PROJECT.find_job(ExamplesJob, wildcards.key, wildcards.dataset)
    return sidecars(job.files())


# --- outputs, for jobs whose sources may be deleted --------------------------------------------------------------------------


def data_outputs(product: str) -> Callable[[Any], list[Path]]:
    """Return the function of the main outputs of the rules whose inputs `data_inputs` returns."""

    @report_faults
    def outputs(wildcards: Any) -> list[Path]:
        job = find_data_job(product, wildcards)
        if isinstance(job, TokenizerJob):
            return [job.tokenizer]
        find = job.examples if isinstance(job, ExamplesJob) else job.documents
        splits = [wildcards.split] if hasattr(wildcards, "split") else SPLITS
        return [find(wildcards.shard, split) for split in splits]

    return outputs


@report_faults
def range_outputs(wildcards: Any) -> list[Path]:
    """Return the documents of a range."""
    job = _documents_job(wildcards)
    return [job.range_documents(wildcards.shard, wildcards.part, split) for split in SPLITS]


@report_faults
def list_outputs(wildcards: Any) -> list[Path]:
    """Return the list of removed documents."""
    return [PROJECT.find_job(KeptDocumentsJob, wildcards.key, wildcards.dataset).removed]
