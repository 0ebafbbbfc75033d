"""Conversion of a job's document, as a command has it, back to sections of a recipe, and checks of it."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from relm.errors import RelmError
from relm.recipes.datasets import Dataset
from relm.recipes.files.remote_files import RemoteFile
from relm.recipes.identity import KEY, REVISIONS, digest, folder_content, revision_of_documents, work_folder
from relm.recipes.jobs import LISTED_FILES
from relm.recipes.objectives import Objective
from relm.recipes.project import Project
from relm.recipes.recipe import TokenizerChoice
from relm.recipes.section import validate

# Errors about a document name the option that passes it.
IN_JOB = Path("--job")
# Descriptive keys that a dataset requires; a document has none of them, and `extract` does not need them.
_NO_WORDS = {"title": "", "licence": "", "language": "und"}
# Keys of documents that are not options of the dataset, tokenizer or objective.
_OF_DOCUMENTS = frozenset({"revision", "content", "documents"})
_OF_TOKENIZER = frozenset({"revision", "documents"})
_OF_EXAMPLES = frozenset({"revision", "documents", "tokenizer", "objectives", "language"})
# Options that no identity of documents or examples has: the command or another key of the document decides them.
_IN_NO_DOCUMENTS = frozenset({"title", "licence", "homepage", "language", "folder", "pattern", "hub", "files", "smoke"})
_IN_NO_EXAMPLES = frozenset({"objective"})


def dataset_of_documents(document: Mapping[str, Any], source: Path, pattern: str | None = None) -> Dataset:
    """Return the dataset that a documents job describes, with the keys that its documents depend on.

    Args:
        document: identity of documents; its content is [[file, sha256], ...], a dataset of the hub, or a folder's digest.
        source: the folder, if the content is one.
        pattern: glob of the folder's files that are documents.

    Raises:
        RelmError: the document does not describe documents; names the faulty key.
    """
    require_revision(document, "documents", revision_of_documents(str(document.get("format"))))
    content, keys = document.get("content"), _options(document, _OF_DOCUMENTS, _IN_NO_DOCUMENTS)
    limit = document.get("documents", 1)
    if type(limit) is not int or limit < 1:
        raise RelmError(f"--job: documents: expected a whole number from 1 on, found {limit!r:.99}; correct it or leave it out")
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
    """Return the training options of a tokenizer from its job's document.

    Raises:
        RelmError: the document does not describe a trained tokenizer; names the faulty key.
    """
    require_revision(document, "tokenizer")
    return validate(TokenizerChoice, _options(document, _OF_TOKENIZER), IN_JOB)


def objective_of_examples(document: Mapping[str, Any]) -> Objective:
    """Return the objective that an examples job describes, with the options that determine the stored examples.

    Raises:
        RelmError: the document does not describe examples; names the faulty key.
    """
    require_revision(document, "examples")
    objectives = document.get("objectives")
    if not isinstance(objectives, list) or len(objectives) != 1:
        raise RelmError(f"--job: objectives: expected a list of one objective, found {objectives!r:.99}")
    # Examples that are cut to the sequence length when they are read have no length in their identity.
    stored = {"sequence_length": Objective.LONGEST, **_options(document, _OF_EXAMPLES, _IN_NO_EXAMPLES)}
    objective = validate(Objective, {**stored, "objective": objectives[0]}, IN_JOB)
    if unused := _unused_keys(objective, document):
        them = "it; leave it" if len(unused) == 1 else "them; leave them"
        raise RelmError(f"--job: {' and '.join(unused)}: these examples do not depend on {them} out")
    return objective


def _unused_keys(objective: Objective, document: Mapping[str, Any]) -> list[str]:
    """Return the options in a document of examples, and the language, that do not determine the stored examples."""
    stored = objective.stored_keys()
    given = objective.model_dump(mode="json", include=set(document), exclude_defaults=True)
    unused = [key for key in given if key not in stored]
    sections = {key: value for key, value in given.items() if key in stored and isinstance(value, dict)}
    unused += [f"{key}.{name}" for key, value in sections.items() for name in value if name not in stored[key]]
    return unused + (["language"] if "language" in document and not objective.depends_on_language else [])


def require_revision(document: Mapping[str, Any], product: str, expected: int | None = None) -> None:
    """Raise an error if a document has another revision of a product than this code makes.

    Args:
        document: the identity of the product.
        product: a name in `REVISIONS`.
        expected: the revision that this code makes; None: that in `REVISIONS`.

    Raises:
        RelmError: the revision differs, so the document comes from another version of the code.
    """
    revision, expected = document.get("revision"), REVISIONS[product] if expected is None else expected
    if type(revision) is not int or revision != expected:
        raise RelmError(
            f"--job: revision: found {revision!r:.99}, this code computes revision {expected} of the {product}; "
            "give the snakemake command again"
        )


def require_path_of_documents(document: Mapping[str, Any], dataset: Dataset, outputs: Iterable[Path], project: Project) -> None:
    """Raise unless documents whose folder has a key in its name have the whole document of that key.

    The command of a dataset with many files lists one of them, and that of a folder has a digest: the rest is read from the
    dataset's file, which the name of the output's folder names, and from the folder.

    Args:
        document: as the command has it.
        dataset: the dataset that it describes.
        outputs: paths of the documents.
        project: the project with the dataset's file.

    Raises:
        RelmError: the folder is that of another document.
    """
    for output in outputs:
        require_path_of(_complete(document, dataset, project, output.parent.name.rpartition("-")[0]), output)


def _complete(document: Mapping[str, Any], dataset: Dataset, project: Project, name: str) -> Mapping[str, Any]:
    """Return a document with the content of all files; unchanged if it has them, or if its files are not the dataset's."""
    if dataset.folder is not None:
        return {**document, "content": folder_content(dataset, work_folder() / "folders")}
    if len(dataset.files) != 1 or not os.path.lexists(project.dataset_path(name)):
        return document
    files = [[file, remote.identity] for file, remote in project.dataset(name).files.items()]
    return {**document, "content": files} if len(files) > LISTED_FILES and document["content"][0] in files else document


def require_path_of(document: Mapping[str, Any], output: Path) -> None:
    """Raise unless a product whose folder has a key in its name has the document of that key.

    Raises:
        RelmError: the folder is that of another document, whose product it would replace.
    """
    named, key = re.search(f"-({KEY.pattern})$", output.parent.name), digest(document)
    if named and named[1] != key:
        raise RelmError(
            f"--job: has key {key}, --output {output} is in the folder of key {named[1]}: they are of different products; "
            "give the snakemake command again, or name an output elsewhere"
        )


def _options(document: Mapping[str, Any], others: frozenset[str], unknown: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the options of a document."""
    if found := sorted(unknown & document.keys()):
        raise RelmError(f"--job: {found[0]}: unknown key; this product does not depend on it, leave it out")
    return {key: value for key, value in document.items() if key not in others}
