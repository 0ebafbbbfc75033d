"""The jobs that prepare data: the identity document of each product, whose digest is the key in its path, and its paths.

A plan decides its jobs once. The graph passes a job's document to the step that runs it, and the step reads nothing else about
the recipe: `dataset_of_documents`, `choice_of_tokenizer` and `objective_of_examples` convert a document back to sections.
"""

import functools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from relm.artifact import canonical_json
from relm.errors import RelmError
from relm.recipes.datasets import FORMATS, Dataset
from relm.recipes.identity import KEY, REVISIONS, digest
from relm.recipes.objectives import Objective
from relm.recipes.recipe import TokenizerChoice
from relm.recipes.remote_files import RemoteFile
from relm.recipes.section import validate

# With more files than this, a command lists only the file that it reads, so that a person can read the command.
LISTED_FILES = 20
# The held-out documents are never trained on.
SPLITS = ("train", "held_out")
# Errors about a document name the option that passes it.
IN_JOB = Path("--job")
# Descriptive keys that a dataset requires; a document has none of them, and `extract` does not need them.
_NO_WORDS = {"title": "", "licence": "", "language": "en"}
# Keys of documents that are not options of the dataset, tokenizer or objective.
_OF_DOCUMENTS = frozenset({"revision", "content", "documents"})
_OF_TOKENIZER = frozenset({"revision", "documents"})
_OF_EXAMPLES = frozenset({"revision", "documents", "tokenizer", "objectives", "language"})
# Options that no identity of documents or examples has: the command or another key of the document decides them.
_IN_NO_DOCUMENTS = frozenset({"title", "licence", "homepage", "language", "folder", "pattern", "hub", "files", "smoke"})
_IN_NO_EXAMPLES = frozenset({"objective"})


@dataclass(frozen=True, eq=False)
class DocumentsJob:
    """Extraction of documents from a dataset, split into training and held-out documents."""

    product: ClassVar[str] = "documents"
    document: Mapping[str, Any]
    """Identity: the dataset's content and the keys that determine how it is read."""
    dataset_name: str
    """Name of the dataset in the path."""
    dataset: Dataset
    work: Path

    @functools.cached_property
    def key(self) -> str:
        """The key in the path."""
        return digest(self.document)

    @property
    def folder(self) -> Path:
        """The folder of all shards."""
        return self.work / "documents" / f"{self.dataset_name}-{self.key}"

    @property
    def shards(self) -> list[str]:
        """Names of the shards: one for each of the dataset's files, or one for a folder."""
        return list(self.dataset.files) or ["folder"]

    def documents(self, shard: str, split: str) -> Path:
        """Return the path of the documents of one shard and split, JSON lines."""
        return self.folder / f"{shard}.{split}.jsonl"

    def download(self, shard: str) -> Path:
        """Return the path of a source file of the dataset, in a folder named after its sha256.

        Therefore an edited sha256 causes a new download, and checkouts with different recipes can share a work folder.

        Raises:
            RelmError: the dataset has no such file.
        """
        if shard not in self.dataset.files:
            known = ", ".join(self.dataset.files)
            raise RelmError(f"recipes/data/{self.dataset_name}.yaml: has no file {shard}; it has {known or 'none'}")
        return self.work / "downloads" / "data" / self.dataset_name / self.dataset.files[shard].sha256[:12] / shard

    def inputs(self, shard: str) -> dict[str, list[Path]]:
        """Return the downloaded file of a shard; none for a folder, because the key of its content is in the path."""
        return {"source": [self.download(shard)] if self.dataset.files else []}

    def options(self, shard: str) -> str:
        """Return `--job JSON --source SOURCE` for the command of one shard, and `--pattern GLOB` for a folder with one."""
        dataset = self.dataset
        if dataset.hub is not None:
            source = f"{dataset.hub.name}@{dataset.hub.revision}"
        else:
            source = str(self.download(shard) if dataset.folder is None else Path(dataset.folder).expanduser())
        pattern = [] if dataset.pattern is None else ["--pattern", dataset.pattern]
        return shlex.join([*_job_option(self.passed_document(shard)), "--source", source, *pattern])

    def passed_document(self, shard: str) -> dict[str, Any]:
        """Return the document for the command of one shard: short enough to read, and for the kernel's limit.

        A long list of files is cut to the shard's, except where each file is one document, because the names of all files
        determine the split. A folder, which may have thousands of files, is represented by a digest of its content.
        """
        document = document_without_folder(self.document, self.dataset)
        cut = len(self.dataset.files) > LISTED_FILES and not FORMATS[self.dataset.format].one_document_a_file
        return {**document, "content": [[shard, self.dataset.files[shard].sha256]]} if cut else document


@dataclass(frozen=True, eq=False)
class TokenizerJob:
    """Training of a tokenizer on documents, or its import from published files."""

    product: ClassVar[str] = "tokenizer"
    dataset_name: ClassVar[None] = None
    document: Mapping[str, Any]
    """Identity: the documents and options of its training, or its kind and its files' sha256."""
    files: tuple[Path, ...]
    """Documents that it is trained on, or published files."""
    work: Path

    @functools.cached_property
    def key(self) -> str:
        """The key in the path."""
        return digest(self.document)

    @property
    def folder(self) -> Path:
        """The tokenizer's own folder."""
        origin = "trained" if "train" in self.document else "imported"
        return self.work / "tokenizers" / f"{origin}-{self.key}"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer, in the format of the `tokenizers` library."""
        return self.folder / "tokenizer.json"

    def inputs(self, shard: None = None) -> dict[str, list[Path]]:
        """Return the documents or the published files; a tokenizer has no shards."""
        return {"files": list(self.files)}

    def options(self, shard: None = None) -> str:
        """Return `--job JSON` for the command."""
        return shlex.join(_job_option(self.document))


@dataclass(frozen=True, eq=False)
class ExamplesJob:
    """Pregeneration of examples from documents with a tokenizer."""

    product: ClassVar[str] = "examples"
    document: Mapping[str, Any]
    """Identity: documents, tokenizer, and the keys of the objective that determine the stored examples."""
    documents: DocumentsJob
    tokenizer: TokenizerJob
    suffix: str
    """Suffix of a shard: .bin for a stream of tokens, .arrow for a table."""

    @property
    def dataset_name(self) -> str:
        """Name of the dataset in the path."""
        return self.documents.dataset_name

    @functools.cached_property
    def key(self) -> str:
        """The key in the path."""
        return digest(self.document)

    @property
    def folder(self) -> Path:
        """The folder of all shards, their sidecars and the manifest."""
        return self.documents.work / "examples" / f"{self.dataset_name}-{self.key}"

    def examples(self, shard: str, split: str) -> Path:
        """Return the path of the examples of one shard and split."""
        return self.folder / f"{shard}.{split}{self.suffix}"

    def inputs(self, shard: str) -> dict[str, list[Path]]:
        """Return the documents of a shard, both splits, and the tokenizer."""
        documents = [self.documents.documents(shard, split) for split in SPLITS]
        return {"documents": documents, "tokenizer": [self.tokenizer.tokenizer]}

    def options(self, shard: str) -> str:
        """Return `--job JSON` for the command."""
        return shlex.join(_job_option(self.document))


DataJob = DocumentsJob | TokenizerJob | ExamplesJob


def _job_option(document: Mapping[str, Any]) -> list[str]:
    return ["--job", canonical_json(document)]


# --- from documents to sections ---------------------------------------------------------------------------------------------


def document_without_folder(document: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Return the document of a dataset's documents, in which the content of a local folder is replaced by its digest."""
    return {**document, "content": digest(document["content"])} if dataset.folder is not None else dict(document)


def dataset_of_documents(document: Mapping[str, Any], source: Path, pattern: str | None = None) -> Dataset:
    """Return the dataset that a documents job describes, with the keys that its documents depend on.

    Args:
        document: identity of documents; its content is [[file, sha256], ...], a dataset of the hub, or a folder's digest.
        source: the folder, if the content is one.
        pattern: glob of the folder's files that are documents.

    Raises:
        RelmError: the document does not describe documents; names the faulty key.
    """
    require_revision(document, "documents")
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


def require_revision(document: Mapping[str, Any], product: str) -> None:
    """Raise an error if a document has another revision of a product than this code makes.

    Raises:
        RelmError: the revision differs, so the document comes from another version of the code.
    """
    revision = document.get("revision")
    if type(revision) is not int or revision != REVISIONS[product]:
        raise RelmError(
            f"--job: revision: found {revision!r:.99}, this code computes revision {REVISIONS[product]} of the {product}; "
            "give the snakemake command again"
        )


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
    """Return the options of a document.

    Raises:
        RelmError: it has a key that no document of its product has.
    """
    if found := sorted(unknown & document.keys()):
        raise RelmError(f"--job: {found[0]}: unknown key; this product does not depend on it, leave it out")
    return {key: value for key, value in document.items() if key not in others}
