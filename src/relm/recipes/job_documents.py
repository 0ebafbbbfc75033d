"""Job documents of commands, converted back to sections of a recipe and checked."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from relm.errors import RelmError
from relm.recipes.datasets import Dataset
from relm.recipes.files.remote_files import RemoteFile
from relm.recipes.identity import (
    DOCUMENTS_KEYS,
    KEY,
    REVISIONS,
    digest,
    folder_content,
    revision_of_documents,
    stored_identity,
    work_folder,
)
from relm.recipes.jobs import LISTED_FILES
from relm.recipes.objectives import Objective
from relm.recipes.project import Project
from relm.recipes.recipe import TokenizerChoice
from relm.recipes.section import validate

# Errors about a document name the option that passes it.
IN_JOB = Path("--job")
# Descriptive keys that a dataset requires, but a document lacks and `extract` does not need.
_NO_WORDS = {"title": "", "licence": "", "language": "und"}


def dataset_of_documents(document: Mapping[str, Any], source: Path, pattern: str | None = None) -> Dataset:
    """Return the dataset that a documents job describes; if its content is the digest of a folder, that is `source`."""
    require_revision(document, "documents", revision_of_documents(str(document.get("format"))))
    content, limit = document.get("content"), document.get("documents", 1)
    keys = {key: value for key, value in document.items() if key not in ("revision", "content", "documents")}
    if strange := sorted(keys.keys() - DOCUMENTS_KEYS - {document.get("format")}):
        raise RelmError(f"--job: {strange[0]}: unknown key; documents do not depend on it, remove it")
    if type(limit) is not int or limit < 1:
        raise RelmError(f"--job: documents: expected a whole number from 1 on, found {limit!r:.99}; correct or remove it")
    if isinstance(content, dict):
        return validate(Dataset, {**_NO_WORDS, **keys, "hub": content}, IN_JOB)
    dataset = validate(Dataset, {**_NO_WORDS, **keys, "folder": str(source), "pattern": pattern}, IN_JOB)
    if isinstance(content, str):
        return dataset
    try:
        files = {str(file): RemoteFile.model_construct(sha256=str(sha256), sources=[]) for file, sha256 in content or ()}
    except (TypeError, ValueError):
        files = {}
    if not files:
        raise RelmError(
            f"--job: content: expected [[file, sha256], ...], a dataset of the hub or a digest, found {content!r:.99}"
        )
    return dataset.model_copy(update={"folder": None, "files": files})


def choice_of_tokenizer(document: Mapping[str, Any]) -> TokenizerChoice:
    """Return the training options of a tokenizer from its job's document."""
    require_revision(document, "tokenizer")
    options = {key: value for key, value in document.items() if key not in ("revision", "documents")}
    return validate(TokenizerChoice, options, IN_JOB)


def objective_of_examples(document: Mapping[str, Any]) -> Objective:
    """Return the objective that an examples job describes, with the options that determine the stored examples."""
    require_revision(document, "examples")
    others = ("revision", "objectives", "documents", "tokenizer", "language")
    objectives = document.get("objectives")
    if not isinstance(objectives, list) or len(objectives) != 1:
        raise RelmError(f"--job: objectives: expected a list of one objective, found {objectives!r:.99}")
    # Examples that are cut to the sequence length when they are read have no length in their identity.
    options = {"sequence_length": Objective.LONGEST, **{key: value for key, value in document.items() if key not in others}}
    objective = validate(Objective, {**options, "objective": objectives[0]}, IN_JOB)
    stored = stored_identity(objective, document.get("language", ""))
    unused = [key for key in document if key not in ("documents", "tokenizer") and document[key] != stored.get(key)]
    if unused:
        raise RelmError(
            f"--job: {unused[0]}: found {document[unused[0]]}, but these examples depend on {stored.get(unused[0])}; remove "
            "the rest"
        )
    return objective


def require_revision(document: Mapping[str, Any], product: str, expected: int | None = None) -> None:
    """Raise if a document's revision of a product is not `expected`, or else that of `REVISIONS`: other code computed it."""
    revision, expected = document.get("revision"), REVISIONS[product] if expected is None else expected
    if type(revision) is not int or revision != expected:
        raise RelmError(
            f"--job: revision: found {revision!r:.99}, this code computes revision {expected} of the {product}; rerun snakemake"
        )


def require_path_of_documents(document: Mapping[str, Any], dataset: Dataset, outputs: Iterable[Path], project: Project) -> None:
    """Raise unless the key in the name of an output's folder is that of its whole document.

    A command lists one of many files, and has a digest of a folder; the rest is read from the dataset's file or the folder.
    """
    for output in outputs:
        whole, path = document, project.path_of("data", output.parent.name.rpartition("-")[0])
        if dataset.folder is not None:
            whole = {**document, "content": folder_content(dataset, work_folder() / "folders")}
        elif len(dataset.files) == 1 and os.path.lexists(path):
            files = [[file, remote.identity] for file, remote in project.dataset(path.stem).files.items()]
            if len(files) > LISTED_FILES and document["content"][0] in files:
                whole = {**document, "content": files}
        require_path_of(whole, output)


def require_path_of(document: Mapping[str, Any], output: Path) -> None:
    """Raise if a product's folder has another document's key in its name: the step would replace that product."""
    named, key = re.search(f"-({KEY.pattern})$", output.parent.name), digest(document)
    if named and named[1] != key:
        raise RelmError(
            f"--job: has key {key}, --output {output} is in the folder of key {named[1]}: they belong to different products; "
            "rerun snakemake, or choose another output"
        )
