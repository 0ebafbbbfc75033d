"""Datasets: the section of `recipes/data/NAME.yaml`, and the declarations of the formats of documents."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from relm.recipes.declaration import NameIn, Registry, refuse_keys_of_others, register_with_options
from relm.recipes.files.remote_files import RemoteFile
from relm.recipes.files.web_address import WebAddress
from relm.recipes.section import Section, Slug, read_yaml, validate


@dataclass(frozen=True)
class FormatDeclaration:
    """A format of documents that a dataset may name."""

    name: str
    revision: int = 1
    """Increase it if the documents of the same source change; it is part of the fingerprint of the format's datasets only."""
    batches: str = ""
    """Reference to a function (dataset, path) that yields batches of entries for workers, in the order of the source."""
    documents: str = ""
    """Reference to a function (dataset, file's name, batch) that yields documents and skipped entries; workers call it."""
    reader: str = ""
    """Instead of these two, reference to a function (dataset, paths, workers, task) that yields (path, document or skipped
    entry) in order, and starts the workers itself."""
    ids_are_unique: bool = False
    """Leave out the second of two entries of a file with the same id, a copy."""
    entries: str = "documents"
    """Name of a source's entries in the plural, such as pages."""
    imported_as: str = ""
    """Name in `relm import --format`, for files that hold tokens instead of text; they have no `batches` and `documents`."""
    skipped: tuple[str, ...] = ("empty",)
    """Reasons to skip an entry."""
    skipping_is_usual: bool = True
    """False: the last message warns of skipped entries."""
    pattern: str = "**/*.txt"
    """Glob of the files of a folder that contain documents."""
    states_language: bool = False
    """Its files state their language, which must be the dataset's."""
    keys: tuple[str, ...] = ()
    """Keys of `Dataset` that are read with this format and with the others that list them."""
    options: type[Section] | None = None
    """Section of the format's options, under the key of its name."""
    held_out_one_in: int = 100
    """Default of the dataset's `held_out_one_in`: one document in N is held out of training."""
    one_document_a_file: bool = False
    """Each file is one document."""


class JsonArrays(Section):
    """Documents in arrays of JSON, one file or an archive of many."""

    held_out_members: list[str] = Field(default_factory=list)
    """Files of the archive, by their names without folders, that are held out of training; all others are trained on."""
    strip: bool = False
    """White space at both ends of a text is removed."""


class TextArchives(Section):
    """Text files in a tar archive, or in tar archives inside one."""

    left_out: list[str] = Field(default_factory=list)
    """Members that are not read, such as damaged ones: the path of a file or of an inner archive, or ARCHIVE/PATH for a file of
    an inner archive."""


_RECORD_KEYS = ("text_key", "id_key", "title_key", "skip_damaged_records")
FORMATS: Registry[FormatDeclaration] = Registry(
    "format",
    FormatDeclaration(
        "mediawiki_xml",
        revision=4,
        reader="relm.corpus.wikipedia.articles:read_dumps",
        ids_are_unique=True,
        entries="pages",
        skipped=("redirects", "other_namespaces", "empty", "cut"),
        pattern="**/*.xml*",
        states_language=True,
        keys=("ends_mid_page",),
    ),
    FormatDeclaration(
        "wikitext",
        batches="relm.corpus.line_documents:batch_articles",
        documents="relm.corpus.line_documents:extract_articles",
        entries="articles",
        pattern="**/wiki.[tv][ra]*",  # not WikiText's test file
    ),
    FormatDeclaration(
        "text_files",
        batches="relm.corpus.text_files:batch_text_files",
        documents="relm.corpus.text_files:extract_text_files",
        entries="files",
        skipping_is_usual=False,
        keys=("held_out_end",),
        held_out_one_in=10,
        one_document_a_file=True,
    ),
    FormatDeclaration(
        "text_archives",
        batches="relm.corpus.text_archives:batch_text_archives",
        documents="relm.corpus.text_archives:extract_text_archives",
        entries="files",
        pattern="**/*.tar*",
        options=TextArchives,
    ),
    FormatDeclaration(
        "text_sentences",
        batches="relm.corpus.line_documents:batch_sentences",
        documents="relm.corpus.line_documents:extract_sentences",
        entries="documents",
    ),
    FormatDeclaration(
        "text_lines",
        batches="relm.corpus.line_documents:batch_lines",
        documents="relm.corpus.line_documents:extract_lines",
        entries="lines",
    ),
    FormatDeclaration(
        "json_lines",
        batches="relm.corpus.line_documents:batch_lines",
        documents="relm.corpus.records:extract_json_lines",
        entries="lines",
        pattern="**/*.jsonl",
        keys=_RECORD_KEYS,
    ),
    FormatDeclaration(
        "json_arrays",
        batches="relm.corpus.json_arrays:batch_json_arrays",
        documents="relm.corpus.json_arrays:extract_json_arrays",
        entries="objects",
        pattern="**/*.json",
        keys=_RECORD_KEYS,
        options=JsonArrays,
    ),
    FormatDeclaration(
        "parquet",
        batches="relm.corpus.parquet_rows:batch_parquet",
        documents="relm.corpus.records:extract_rows",
        entries="rows",
        pattern="**/*.parquet",
        keys=_RECORD_KEYS,
    ),
    FormatDeclaration(
        "hugging_face",
        batches="relm.corpus.hugging_face:batch_hugging_face",
        documents="relm.corpus.records:extract_rows",
        entries="rows",
        keys=(*_RECORD_KEYS, "split"),
    ),
    FormatDeclaration("llm_c_tokens", imported_as="llm_c", pattern="**/*.bin", keys=("held_out_tokens",)),
    FormatDeclaration("nanogpt_tokens", imported_as="nanogpt", pattern="**/*.bin", keys=("held_out_tokens",)),
)


class Hub(Section):
    """A dataset of the Hugging Face hub, pinned by its commit; its rows are streamed and not stored."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")
    """OWNER/NAME."""
    revision: str = Field(pattern=r"^[0-9a-f]{40}$")
    """Commit in forty hexadecimal digits, because a branch or tag may move."""
    config: str | None = None
    """Configuration (subset) to read; null: the default one."""


class Dataset(Section):
    """`recipes/data/NAME.yaml`: the source of documents and their format. It has exactly one of `files`, `folder`, `hub`."""

    title: str
    """Short description of the dataset."""
    licence: str
    """SPDX identifier, or the licence's name."""
    language: str = Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")
    """BCP 47 code of the text, such as en or ro; und: not known, mul: several. A dump that states another one is an error."""
    homepage: WebAddress | None = None
    """A page about the data."""
    format: Annotated[str, NameIn(FORMATS)]
    """Format of the documents. mediawiki_xml: a Wikipedia dump, plain or bz2; wikitext: WikiText-2 and -103, one document per
    article; text_files: one document per file, UTF-8; text_archives: a tar archive of such files, or of tar archives of
    them, compressed or not; text_sentences: one sentence per line, a blank line between documents;
    text_lines: one document per line; json_lines: one JSON object per line; json_arrays: a JSON array of objects, or a tar
    archive of them; parquet: one document per row; hugging_face: rows of a `hub` dataset;
    llm_c_tokens: the shards of llm.c, a header and 16 bits a token; nanogpt_tokens: the train.bin and val.bin of nanoGPT, 16
    bits a token. Tokens are imported without extraction and tokenisation."""
    files: dict[Slug, RemoteFile] = Field(default_factory=dict)
    """File name -> file; each file becomes one shard, in this order."""
    folder: str | None = None
    """Local folder instead of `files`, relative to the checkout or with ~; one outside the checkout is read only if
    RELM_DATA_FOLDERS allows it. It is identified by its content."""
    hub: Hub | None = None
    """A dataset of the Hugging Face hub instead of `files`, read with format: hugging_face."""
    pattern: str | None = Field(default=None, pattern=r"^[^/]")
    """Glob of the files of `folder` that are read, in sorted order; null: the format's default, `**/*.txt` for plain text.
    Hidden files are not read, and `**` does not follow links to folders."""
    ends_mid_page: bool = False
    """The file is the beginning of a longer one and ends inside a page, which is dropped; if false, a truncated file is an
    error."""
    skip_damaged_records: bool = False
    """Records whose text, id or title has half of a surrogate pair or a NUL, which are not text, are skipped and counted;
    otherwise they are an error. For json_lines, json_arrays, parquet and hugging_face."""
    text_key: str = "text"
    """Key or column with a document's text; for json_lines, json_arrays, parquet and hugging_face."""
    id_key: str | None = None
    """Key or column with a document's id, a text or an integer; null: the file's name and the line or row. For json_lines,
    json_arrays, parquet and hugging_face."""
    title_key: str | None = None
    """Key or column with a document's title; null: its id. For json_lines, json_arrays, parquet and hugging_face."""
    split: str = "train"
    """Split of the dataset that is read, and then split again into training and held-out documents; for hugging_face."""
    held_out_files: list[str] = Field(default_factory=list)
    """Files of `files`, or paths inside `folder`, that are held out of training; all others are trained on."""
    json_arrays: JsonArrays = JsonArrays()
    """Options of the format json_arrays."""
    text_archives: TextArchives = TextArchives()
    """Options of the format text_archives."""
    held_out_one_in: int | None = Field(default=None, ge=2)
    """One document in N is held out of training, chosen by a hash of its title (of its text, where documents have no
    titles), whatever their order; null: 100, or 10 for text_files."""
    held_out_end: float | None = Field(default=None, gt=0, lt=1)
    """Share of each file's characters, at its end, that is held out of training instead of whole files; for text_files."""
    held_out_tokens: int | None = Field(default=None, gt=0)
    """Number of tokens at the beginning of each held-out file that are read; null: all. For llm_c_tokens and nanogpt_tokens."""
    smoke: Slug | None = None
    """Small dataset that replaces this one in `results/smoke/NAME`; it has the same format, unless this one
    reads the hub, arrays of JSON, archives of texts, or tokens, which a smoke twin makes from text."""

    @property
    def is_tokenized(self) -> bool:
        """True if the files hold tokens, which are imported, instead of text."""
        return bool(FORMATS[self.format].imported_as)

    @property
    def one_in(self) -> int:
        """`held_out_one_in`, or the format's own."""
        return self.held_out_one_in or FORMATS[self.format].held_out_one_in

    @property
    def file_pattern(self) -> str:
        """`pattern`, or the format's own."""
        return self.pattern or FORMATS[self.format].pattern

    @model_validator(mode="after")
    def one_source(self) -> Self:
        given = [name for name in ("files", "folder", "hub") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"a dataset has one of files, folder and hub; found {' and '.join(given) or 'none'}")
        if sidecars := [name for name in self.files if name.endswith(".json")]:
            raise ValueError(f"files: {sidecars[0]}: .json is the ending of the records of files; rename it")
        if (self.hub is not None) != (self.format == "hugging_face"):
            raise ValueError(f"format: hugging_face and hub go together; found {given[0]} with format: {self.format}")
        return self

    @model_validator(mode="after")
    def keys_belong_to_the_format(self) -> Self:
        refuse_keys_of_others(self, "format", {other.name: (*other.keys, other.name) for other in FORMATS})
        if self.pattern is not None and self.folder is None:
            raise ValueError("pattern: chooses files of a folder, and the dataset has none; remove it")
        return self

    @model_validator(mode="after")
    def held_out_once(self) -> Self:
        if self.is_tokenized and not (self.files and self.held_out_files):
            lacking = "held_out_files" if self.files else "files"
            raise ValueError(f"{lacking}: format {self.format} needs files, and held_out_files among them; give both")
        if self.is_tokenized and self.held_out_one_in is not None:
            raise ValueError(f"held_out_one_in: files of format {self.format} are held out whole; remove it")
        others = [key for key in ("held_out_files", "held_out_one_in") if getattr(self, key)]
        if self.held_out_end is not None and others:
            raise ValueError(f"held_out_end: excludes {others[0]}; remove one of them")
        return self

    @model_validator(mode="after")
    def held_out_files_leave_some(self) -> Self:
        if not self.held_out_files:
            return self
        if self.held_out_one_in is not None or self.format == "hugging_face":
            raise ValueError("held_out_files: excludes held_out_one_in and format: hugging_face; remove it")
        if self.files and (unknown := [name for name in self.held_out_files if name not in self.files]):
            raise ValueError(f"held_out_files: {unknown[0]} is not in files: {', '.join(self.files)}")
        if self.files and not set(self.files) - set(self.held_out_files):
            raise ValueError("held_out_files: lists every file; leave one for training")
        return self


def load_dataset(path: Path) -> Dataset:
    """Return the dataset in a file of `recipes/data/`."""
    return validate(Dataset, read_yaml(path), path)


def register_format(declaration: FormatDeclaration) -> None:
    """Add a format of documents to those that datasets may name; its options get a key of its name."""
    register_with_options(FORMATS, declaration, Dataset, f"Keys of {declaration.name}.")
