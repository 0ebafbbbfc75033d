"""The jobs that prepare data: the identity document of each product, whose digest is the key in its path, and its paths.

A step gets a job's document and reads nothing else about the recipe; `job_documents` converts it back to sections.
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from relm.errors import RelmError
from relm.recipes.datasets import FORMATS, Dataset
from relm.recipes.evaluation.published_tests import PublishedTest
from relm.recipes.identity import digest

# With more files than this, a command lists only the file that it reads, so that a person can read the command.
LISTED_FILES = 20
# The held-out documents are never trained on.
SPLITS = ("train", "held_out")
# Folder of imported tokens, in that of the manifest that lists them.
IMPORTED = "imported"


@dataclass(frozen=True, eq=False)
class KeyedJob:
    """A job whose product has a key in its path."""

    document: Mapping[str, Any]
    """Identity: everything that determines the product."""

    @functools.cached_property
    def key(self) -> str:
        """The key in the path."""
        return digest(self.document)


@dataclass(frozen=True, eq=False)
class DocumentsJob(KeyedJob):
    """Extraction of documents from a dataset, split into training and held-out documents."""

    product: ClassVar[str] = "documents"
    dataset_name: str
    """Name of the dataset in the path."""
    dataset: Dataset
    work: Path

    @functools.cached_property
    def folder(self) -> Path:
        """The folder of all shards."""
        return self.work / self.product / f"{self.dataset_name}-{self.key}"

    @property
    def shards(self) -> list[str]:
        """Names of the shards: one for each file of the dataset, or one for a folder."""
        return list(self.dataset.files) or ["folder"]

    def splits(self, shard: str) -> tuple[str, ...]:
        """Return the splits of a shard: both, or one for a file of tokens."""
        if not self.dataset.is_tokenized:
            return SPLITS
        return (SPLITS[1],) if shard in self.dataset.held_out_files else (SPLITS[0],)

    def documents(self, shard: str, split: str) -> Path:
        """Return the path of the documents of one shard and split, JSON lines."""
        return self.folder / f"{shard}.{split}.jsonl"

    def download(self, shard: str) -> Path:
        """Return the path of a source file, under its sha256, so that checkouts can share a work folder."""
        if shard not in self.dataset.files:
            known = ", ".join(self.dataset.files)
            raise RelmError(f"recipes/data/{self.dataset_name}.yaml: has no file {shard}; it has {known or 'none'}")
        return self.work / "downloads" / "data" / self.dataset_name / self.dataset.files[shard].key / shard

    def source(self, shard: str) -> list[Path]:
        """Return the downloaded file of a shard; none for a folder, because the key of its content is in the path."""
        return [self.download(shard)] if self.dataset.files else []

    def passed_document(self, shard: str) -> dict[str, Any]:
        """Return the document for the command of one shard, short enough to read and for the kernel.

        Of many files it lists the shard's, unless their names determine the split; of a folder it has a digest.
        """
        document = document_without_folder(self.document, self.dataset)
        cut = len(self.dataset.files) > LISTED_FILES and not FORMATS[self.dataset.format].one_document_a_file
        return {**document, "content": [[shard, self.dataset.files[shard].identity]]} if cut else document


@dataclass(frozen=True)
class SoughtTest:
    """A test whose items must not share words with documents."""

    test: PublishedTest
    file: Path
    """Its downloaded file."""

    @property
    def identity(self) -> list[str]:
        """The format of its items, the key of a passage, and the identity of its file, usually the sha256."""
        return [str(self.test.item_format), self.text_key, self.test.files[self.test.file].identity]

    @property
    def text_key(self) -> str:
        """The key of a passage, for lambada; empty for other formats."""
        return self.test.lambada.text_key if self.test.item_format == "lambada" else ""


@dataclass(frozen=True, eq=False)
class KeptDocumentsJob(DocumentsJob):
    """Removal of duplicates, and of passages of tests, from the extracted documents."""

    product: ClassVar[str] = "kept"
    extracted: DocumentsJob
    """The job of the documents before."""
    tests: Mapping[str, SoughtTest]

    @property
    def removed(self) -> Path:
        """The list of removed documents, of all shards."""
        return self.folder / "removed.jsonl"


@dataclass(frozen=True, eq=False)
class TokenizerJob(KeyedJob):
    """Training of a tokenizer on documents, or its import from published files."""

    product: ClassVar[str] = "tokenizer"
    dataset_name: ClassVar[None] = None
    files: tuple[Path, ...]
    """Documents that it is trained on, or published files."""
    work: Path

    @functools.cached_property
    def folder(self) -> Path:
        """Folder of the tokenizer."""
        origin = "trained" if "train" in self.document else "imported"
        return self.work / "tokenizers" / f"{origin}-{self.key}"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer, in the format of the `tokenizers` library."""
        return self.folder / "tokenizer.json"


@dataclass(frozen=True, eq=False)
class ExamplesJob(KeyedJob):
    """Pregeneration of examples from documents with a tokenizer."""

    product: ClassVar[str] = "examples"
    documents: DocumentsJob
    tokenizer: TokenizerJob
    suffix: str
    """Suffix of a shard: .bin for a stream of tokens, .arrow for a table."""

    @property
    def dataset_name(self) -> str:
        """Name of the dataset in the path."""
        return self.documents.dataset_name

    @functools.cached_property
    def folder(self) -> Path:
        """The folder of all shards, their sidecars and the manifest."""
        return self.documents.work / "examples" / f"{self.dataset_name}-{self.key}"

    @property
    def manifest(self) -> Path:
        """The manifest, which lists all shards with their hashes."""
        return self.folder / "manifest.json"

    def examples(self, shard: str, split: str) -> Path:
        """Return the path of the examples of one shard and split; imported tokens are in a separate folder."""
        folder = self.folder / IMPORTED if self.documents.dataset.is_tokenized else self.folder
        return folder / f"{shard}.{split}{self.suffix}"

    def files(self, *splits: str) -> list[Path]:
        """Return the paths of the examples of all shards, one split after the other; without an argument, of both."""
        jobs = ((shard, split) for split in splits or SPLITS for shard in self.documents.shards)
        return [self.examples(shard, split) for shard, split in jobs if split in self.documents.splits(shard)]


DataJob = DocumentsJob | TokenizerJob | ExamplesJob


def document_without_folder(document: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Return the document of a dataset's documents, in which the content of a local folder is replaced by its digest."""
    return {**document, "content": digest(document["content"])} if dataset.folder is not None else dict(document)


def with_indexes(shards: Iterable[Path]) -> list[Path]:
    """Return shards of examples, each stream of tokens with the index of its documents."""
    return [path for shard in shards for path in ((shard, shard.with_suffix(".idx")) if shard.suffix == ".bin" else (shard,))]
