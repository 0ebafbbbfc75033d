"""The jobs that prepare data: the identity document of each product, whose digest is the key in its path, and its paths.

A plan decides its jobs once. The graph passes a job's document to the step that runs it, and the step reads nothing else about
the recipe; `job_documents` converts a document back to sections.
"""

import functools
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from relm.artifact import canonical_json
from relm.errors import RelmError
from relm.recipes.datasets import FORMATS, Dataset
from relm.recipes.identity import digest
from relm.recipes.own_folders import resolve_own_folder
from relm.recipes.published_tests import PublishedTest

# With more files than this, a command lists only the file that it reads, so that a person can read the command.
LISTED_FILES = 20
# The held-out documents are never trained on.
SPLITS = ("train", "held_out")
# Folder of imported tokens, beside the manifest that lists them.
IMPORTED = "imported"


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

    def splits(self, shard: str) -> tuple[str, ...]:
        """Return the splits that a shard has a file of: both, but a file of tokens is in one."""
        if not self.dataset.is_tokenized:
            return SPLITS
        return (SPLITS[1],) if shard in self.dataset.held_out_files else (SPLITS[0],)

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
        return self.work / "downloads" / "data" / self.dataset_name / self.dataset.files[shard].key / shard

    @property
    def ranges(self) -> list[str]:
        """Names of the ranges in which each file is extracted, such as 3-of-16; none if it is extracted in one job."""
        count = self.dataset.ranges
        # The first documents of a file cannot be counted across its ranges.
        return (
            [f"{number}-of-{count}" for number in range(1, count + 1)] if count > 1 and "documents" not in self.document else []
        )

    def range_documents(self, shard: str, part: str, split: str) -> Path:
        """Return the path of the documents of one range of a shard, and of one split."""
        return self.folder / "ranges" / f"{shard}.{part}.{split}.jsonl"

    def source(self, shard: str) -> list[Path]:
        """Return the downloaded file of a shard; none for a folder, because the key of its content is in the path."""
        return [self.download(shard)] if self.dataset.files else []

    def inputs(self, shard: str) -> dict[str, list[Path]]:
        """Return what the documents of a shard are made from: its downloaded file, or the documents of its ranges."""
        if not self.ranges:
            return {"source": self.source(shard)}
        return {f"{split}_ranges": [self.range_documents(shard, part, split) for part in self.ranges] for split in SPLITS}

    def command(self, shard: str, workers: int) -> str:
        """Return the command that makes the documents of a shard from its source or its ranges, but for its outputs."""
        if not self.ranges:
            return f"extract {self.options(shard)} --workers {workers}"
        options = [f"--{key.replace('_', '-')} {shlex.join(map(str, files))}" for key, files in self.inputs(shard).items()]
        return " ".join(["join-ranges", shlex.join(_job_option(self.passed_document(shard))), *options])

    def options(self, shard: str) -> str:
        """Return `--job JSON --source SOURCE` for the command of one shard, `--pattern GLOB` for a folder with one, and
        `--language CODE` if the source states its own."""
        dataset = self.dataset
        if dataset.hub is not None:
            source = f"{dataset.hub.name}@{dataset.hub.revision}"
        else:
            source = str(self.download(shard) if dataset.folder is None else resolve_own_folder(dataset.folder, "folder"))
        pattern = [] if dataset.pattern is None else ["--pattern", dataset.pattern]
        language = ["--language", dataset.language] if FORMATS[dataset.format].states_language else []
        return shlex.join([*_job_option(self.passed_document(shard)), "--source", source, *pattern, *language])

    def passed_document(self, shard: str) -> dict[str, Any]:
        """Return the document for the command of one shard: short enough to read, and for the kernel's limit.

        A long list of files is cut to the shard's, except where each file is one document, because the names of all files
        determine the split. A folder, which may have thousands of files, is represented by a digest of its content.
        """
        document = document_without_folder(self.document, self.dataset)
        cut = len(self.dataset.files) > LISTED_FILES and not FORMATS[self.dataset.format].one_document_a_file
        return {**document, "content": [[shard, self.dataset.files[shard].identity]]} if cut else document


@dataclass(frozen=True)
class SoughtTest:
    """A test whose items no document may share words with."""

    test: PublishedTest
    file: Path
    """Its downloaded file."""

    @property
    def identity(self) -> list[str]:
        """The format of its items, the key of a passage, and the identity of its file, mostly its sha256."""
        return [str(self.test.item_format), self.text_key, self.test.files[self.test.file].identity]

    @property
    def text_key(self) -> str:
        """The key of a passage, for lambada; empty for other formats."""
        return self.test.lambada.text_key if self.test.item_format == "lambada" else ""


@dataclass(frozen=True, eq=False)
class KeptDocumentsJob(DocumentsJob):
    """Removal of duplicates, and of documents that share words with tests, from the extracted documents."""

    product: ClassVar[str] = "kept"
    extracted: DocumentsJob
    """The job of the documents before."""
    tests: Mapping[str, SoughtTest]

    @property
    def folder(self) -> Path:
        """The folder of all shards, and of the list of removed documents."""
        return self.work / "kept" / f"{self.dataset_name}-{self.key}"

    @property
    def removed(self) -> Path:
        """The list of removed documents, of all shards."""
        return self.folder / "removed.jsonl"

    def inputs(self, shard: str) -> dict[str, list[Path]]:
        """Return the documents of a shard, both splits, and the list of removed ones."""
        return {"documents": [self.extracted.documents(shard, split) for split in SPLITS], "removed": [self.removed]}

    def list_inputs(self) -> dict[str, list[Path]]:
        """Return what the list is made from: the documents of all shards, held-out ones first, and the tests' files."""
        documents = [self.extracted.documents(shard, split) for split in reversed(SPLITS) for shard in self.shards]
        return {"documents": documents, "tests": [sought.file for sought in self.tests.values()]}

    def options(self, shard: str = "") -> str:
        """Return the options of the command that makes the list: `--duplicates`, `--cut-passages`, and each test."""
        tests = [["--test", name, str(each.test.item_format), str(each.file)] for name, each in self.tests.items()]
        keys = [["--text-key", name, each.text_key] for name, each in self.tests.items() if each.text_key]
        return shlex.join(
            [
                *(["--duplicates"] if self.document["duplicates"] else []),
                *(["--cut-passages"] if self.document.get("cut_passages") else []),
                *(word for words in (*tests, *keys) for word in words),
            ]
        )


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

    @property
    def manifest(self) -> Path:
        """The manifest, which lists all shards with their hashes."""
        return self.folder / "manifest.json"

    def examples(self, shard: str, split: str) -> Path:
        """Return the path of the examples of one shard and split; imported tokens have a folder of their own."""
        folder = self.folder / IMPORTED if self.documents.dataset.is_tokenized else self.folder
        return folder / f"{shard}.{split}{self.suffix}"

    def files(self, *splits: str) -> list[Path]:
        """Return the paths of the examples of all shards, one split after the other; without an argument, of both."""
        jobs = ((shard, split) for split in splits or SPLITS for shard in self.documents.shards)
        return [self.examples(shard, split) for shard, split in jobs if split in self.documents.splits(shard)]

    def inputs(self, shard: str) -> dict[str, list[Path]]:
        """Return the documents of a shard, both splits, and the tokenizer; of imported tokens, their file instead."""
        if self.documents.dataset.is_tokenized:
            return {"files": [self.documents.download(shard)], "tokenizer": [self.tokenizer.tokenizer]}
        documents = [self.documents.documents(shard, split) for split in SPLITS]
        return {"documents": documents, "tokenizer": [self.tokenizer.tokenizer]}

    def options(self, shard: str) -> str:
        """Return `--job JSON` for the command; for imported tokens, `--format FORMAT`, and how many are read."""
        dataset = self.documents.dataset
        if not dataset.is_tokenized:
            return shlex.join(_job_option(self.document))
        first = dataset.held_out_tokens if shard in dataset.held_out_files else None
        limit = [] if first is None else ["--first-tokens", str(first)]
        return shlex.join(["--format", FORMATS[dataset.format].imported_as, *limit])


DataJob = DocumentsJob | TokenizerJob | ExamplesJob


def _job_option(document: Mapping[str, Any]) -> list[str]:
    return ["--job", canonical_json(document)]


def document_without_folder(document: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Return the document of a dataset's documents, in which the content of a local folder is replaced by its digest."""
    return {**document, "content": digest(document["content"])} if dataset.folder is not None else dict(document)
