"""What datasets and published models are: files known by their content, with the sources that have them.

`recipes/data/NAME.yaml` and `recipes/models/NAME.yaml`; recipes name them.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from relm.recipes.section import Section, Slug, read_yaml, validate

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ModelFile = Literal[
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "pytorch_model.bin",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
]

WEIGHTS_FILES: tuple[ModelFile, ...] = ("model.safetensors", "config.json")
# Released in the older form: loaded as tensors and nothing else, once, and written as the above.
PICKLED_WEIGHTS: ModelFile = "pytorch_model.bin"
TOKENIZER_FILES: dict[str, tuple[ModelFile, ...]] = {
    "gpt2_bpe": ("vocab.json", "merges.txt"),
    "roberta_bpe": ("vocab.json", "merges.txt"),
    "bert_wordpiece_uncased": ("vocab.txt",),
    "bert_wordpiece_cased": ("vocab.txt",),
    "t5_sentencepiece": ("spiece.model",),
    "tokenizers_json": ("tokenizer.json",),
}

# Which files of a folder are documents, by format; all others: "**/*.txt". WikiText's test file is no training text.
PATTERNS = {
    "mediawiki_xml": "**/*.xml*",
    "wikitext": "**/wiki.[tv][ra]*",
    "json_lines": "**/*.jsonl",
    "parquet": "**/*.parquet",
    "hugging_face": "**/*",
}
RECORDS = ("json_lines", "parquet", "hugging_face")
FORMATS_OF_KEYS = {
    "ends_mid_page": ("mediawiki_xml",),
    "text_key": RECORDS,
    "id_key": RECORDS,
    "title_key": RECORDS,
    "split": ("hugging_face",),
    "held_out_end": ("text_files",),
}


class Source(Section):
    """One place that has a file. Exactly one of `url`, `pypi`, `npm`, `huggingface` is given."""

    url: str | None = Field(default=None, pattern=r"^https?://")
    """Address of the file, or of the archive that holds it."""
    pypi: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+==[^=\s]+$")
    """A release on the Python package index, NAME==VERSION; `file` names the wheel or sdist."""
    npm: str | None = Field(default=None, pattern=r"^(@[a-z0-9._-]+/)?[a-z0-9._-]+@[0-9][^\s@]*$")
    """A release on the npm registry, NAME@VERSION; its tarball is read."""
    huggingface: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?$")
    """A repository on the Hugging Face hub, OWNER/NAME; `file` names the path in it."""
    repository_type: Literal["model", "dataset"] = "model"
    """Of a Hugging Face repository."""
    revision: str | None = None
    """Of a Hugging Face repository: a commit, better than a tag or branch."""
    file: str | None = None
    """The wheel or sdist of a release, or the path in a Hugging Face repository."""
    sha256: Sha256 | None = None
    """Of what is fetched, where that is an archive or compressed: a wrong archive is then refused before it is opened."""
    member: str | None = None
    """Path of the file inside the fetched zip or tar archive (a wheel is a zip)."""
    decompress: Literal["gzip", "bzip2", "xz"] | None = None
    """How the fetched file, or the archive's member, is compressed."""

    @model_validator(mode="after")
    def exactly_one_kind(self) -> Self:
        kinds = [kind for kind in ("url", "pypi", "npm", "huggingface") if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise ValueError(f"a source names exactly one of url, pypi, npm, huggingface; found {kinds or 'none'}")
        for kind, needed in (
            ("pypi", "file"),
            ("pypi", "member"),
            ("npm", "member"),
            ("huggingface", "file"),
            ("huggingface", "revision"),
        ):
            if kind in kinds and getattr(self, needed) is None:
                raise ValueError(f"a source with {kind} also needs {needed}")
        return self


class RemoteFile(Section):
    """A file known by its content: whatever source it comes from, these bytes or none."""

    sha256: Sha256
    """Of the file itself, after extraction from an archive and decompression."""
    size: int | None = Field(default=None, gt=0)
    """In bytes, of the file itself; null where it is not known exactly."""
    at_most: int | None = Field(default=None, gt=0)
    """In bytes, instead of `size`: what comes and is longer is refused before it fills the disk."""
    sources: list[Source] = Field(min_length=1)
    """Tried in this order; a folder named by RELM_MIRROR comes before them all."""

    @property
    def most(self) -> int:
        """The most bytes that it can have."""
        return self.size or self.at_most or 0

    def may_have(self, size: int) -> bool:
        """Whether a file of so many bytes can be this one."""
        return size == self.size if self.size else size <= self.most

    @property
    def extent(self) -> str:
        """Its size in words."""
        return f"{self.size:,} bytes" if self.size else f"at most {self.most:,} bytes"

    @model_validator(mode="after")
    def one_size(self) -> Self:
        if (self.size is None) == (self.at_most is None):
            raise ValueError("size: give it, or at_most where it is not known exactly, and not both")
        return self


class Hub(Section):
    """A dataset of the Hugging Face hub, pinned by its commit; its rows are streamed, nothing is kept."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")
    """OWNER/NAME."""
    revision: str = Field(pattern=r"^[0-9a-f]{40}$")
    """The commit, forty hexadecimal digits: a branch or tag may move."""
    config: str | None = None
    """Which of its configurations (subsets); null: the default one."""


class Dataset(Section):
    """`recipes/data/NAME.yaml`: where documents come from and how they are read. Exactly one of `files`, `folder`, `hub`."""

    title: str
    """What it is, in a few words."""
    licence: str
    """SPDX identifier, or the licence's name."""
    language: str = Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")
    """BCP 47 code of the text, such as en or ro."""
    homepage: str | None = Field(default=None, pattern=r"^https?://")
    """A page about the data."""
    format: Literal[
        "mediawiki_xml",
        "wikitext",
        "text_files",
        "text_sentences",
        "text_lines",
        "json_lines",
        "parquet",
        "hugging_face",
    ]
    """mediawiki_xml: a Wikipedia dump, plain or bz2; wikitext: WikiText-2 and -103, one document an article; text_files: one
    document a file, UTF-8; text_sentences: one sentence a line, a blank line between documents; text_lines: one document a
    line; json_lines: one object a line; parquet: one row a document; hugging_face: rows of a `hub` dataset, or of a folder that
    the `datasets` library reads."""
    files: dict[Slug, RemoteFile] = Field(default_factory=dict)
    """File name -> what it is; each file becomes one shard, in this order."""
    folder: str | None = None
    """A folder of one's own instead of `files`, relative to the checkout or with ~. Its content is its identity."""
    hub: Hub | None = None
    """A dataset of the Hugging Face hub instead of `files`, read with format: hugging_face."""
    pattern: str | None = Field(default=None, pattern=r"^[^/]")
    """Which files of `folder` are read, as a glob, in sorted order; null: `**/*.txt`, or what the format's files are called."""
    ends_mid_page: bool = False
    """The file is the beginning of a longer one and ends inside a page, which is dropped; elsewhere a cut file is an error."""
    text_key: str = "text"
    """Of json_lines, parquet and hugging_face: the key or column with a document's text."""
    id_key: str | None = None
    """Of the same: the key with its id, a text or whole number; null: the file's name and the line or row."""
    title_key: str | None = None
    """Of the same: the key with its title; null: its id."""
    split: str = "train"
    """Of hugging_face: which split of the dataset is read; relm's own splits are made of it."""
    held_out_files: list[str] = Field(default_factory=list)
    """Those of `files`, or paths inside `folder`, that are held out of training, whole; all others are trained on."""
    held_out_one_in: int | None = Field(default=None, ge=2)
    """One document in so many is held out of training, in any order, by a hash of its title (of its text, where documents have
    no titles); null: 100, of text_files 10."""
    held_out_end: float | None = Field(default=None, gt=0, lt=1)
    """Of text_files: this share of each file's characters, at its end, is held out of training, instead of whole files; what
    stands before it is trained on."""
    smoke: Slug | None = None
    """The small dataset that stands in for this one in `results/smoke/NAME`: of the same format, but where that reads the hub,
    which a twin does not."""

    @property
    def one_in(self) -> int:
        """`held_out_one_in`, or what it stands for."""
        return self.held_out_one_in or (10 if self.format == "text_files" else 100)

    @property
    def file_pattern(self) -> str:
        """`pattern`, or what it stands for."""
        return self.pattern or PATTERNS.get(self.format, "**/*.txt")

    @model_validator(mode="after")
    def one_source(self) -> Self:
        given = [name for name in ("files", "folder", "hub") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"a dataset has one of files, folder and hub; found {' and '.join(given) or 'none'}")
        if sidecars := [name for name in self.files if name.endswith(".json")]:
            raise ValueError(
                f"files: {sidecars[0]}: names ending in .json are kept for the records beside the files; rename it"
            )
        if (self.hub or self.files) and (self.hub is not None) != (self.format == "hugging_face"):
            raise ValueError(f"format: hugging_face reads a hub dataset or a folder; found {given[0]} with {self.format}")
        return self

    @model_validator(mode="after")
    def keys_belong_to_the_format(self) -> Self:
        for key, formats in FORMATS_OF_KEYS.items():
            if key in self.model_fields_set and self.format not in formats:
                raise ValueError(f"{key}: belongs to format {' or '.join(formats)}, found {self.format}; leave it out")
        if self.pattern is not None and self.folder is None:
            raise ValueError("pattern: chooses files of a folder, and there is none; leave it out")
        return self

    @model_validator(mode="after")
    def held_out_once(self) -> Self:
        others = [key for key in ("held_out_files", "held_out_one_in") if getattr(self, key)]
        if self.held_out_end is not None and others:
            raise ValueError(f"held_out_end: not together with {others[0]}; leave one out")
        return self

    @model_validator(mode="after")
    def held_out_files_leave_some(self) -> Self:
        if not self.held_out_files:
            return self
        if self.held_out_one_in is not None or self.format == "hugging_face":
            raise ValueError("held_out_files: not together with held_out_one_in or format: hugging_face; leave it out")
        if self.files and (unknown := [name for name in self.held_out_files if name not in self.files]):
            raise ValueError(f"held_out_files: {unknown[0]} is none of files, which are {', '.join(self.files)}")
        if self.files and not set(self.files) - set(self.held_out_files):
            raise ValueError("held_out_files: no file is left for training")
        return self


class PretrainedModel(Section):
    """`recipes/models/NAME.yaml`: starting weights, a tokenizer, or both, as published by somebody."""

    title: str
    """What it is, in a few words."""
    licence: str
    """SPDX identifier, or the licence's name."""
    homepage: str | None = Field(default=None, pattern=r"^https?://")
    """A page about the model."""
    tokenizer: (
        Literal[
            "gpt2_bpe",
            "roberta_bpe",
            "bert_wordpiece_uncased",
            "bert_wordpiece_cased",
            "t5_sentencepiece",
            "tokenizers_json",
        ]
        | None
    ) = None
    """gpt2_bpe and roberta_bpe: `vocab.json` and `merges.txt`; bert_wordpiece_uncased and bert_wordpiece_cased: `vocab.txt`;
    t5_sentencepiece (mT5 too): `spiece.model`; tokenizers_json: `tokenizer.json`; null: weights only."""
    weights: bool = False
    """Whether `model.safetensors` and `config.json` are among the files, so that `init_from` may name it."""
    files: dict[ModelFile, RemoteFile] = Field(default_factory=dict)
    """File name, as `transformers` expects it -> what it is. Weights released as `pytorch_model.bin` alone are converted."""
    configuration: dict[str, Any] | None = None
    """Of weights that are converted: the content of their `config.json`."""
    folder: str | None = None
    """A folder of one's own instead, as `save_pretrained` writes it, relative to the checkout or with ~, known by content."""

    @property
    def tokenizer_files(self) -> tuple[ModelFile, ...]:
        """The files that are the tokenizer."""
        return TOKENIZER_FILES[self.tokenizer] if self.tokenizer else ()

    @property
    def weights_files(self) -> tuple[ModelFile, ...]:
        """The files that are the weights and their configuration, which beside a `pytorch_model.bin` is no file."""
        if not self.weights:
            return ()
        return ("pytorch_model.bin", "config.json") if self.converted else WEIGHTS_FILES

    @property
    def converted(self) -> bool:
        """Whether the weights are released as `pytorch_model.bin`, and become a `model.safetensors` here."""
        return self.weights and PICKLED_WEIGHTS in self.files

    @model_validator(mode="after")
    def one_source(self) -> Self:
        given = [name for name in ("files", "folder") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"a model has either files or a folder; found {' and '.join(given) or 'none'}")
        if self.folder is not None and not (self.weights or self.tokenizer):
            raise ValueError("folder: say what it is read for: weights: true, or which tokenizer, or both")
        return self

    @field_validator("configuration")
    @classmethod
    def numbers_are_numbers(cls, configuration: dict[str, Any] | None) -> dict[str, Any] | None:
        for key, value in (configuration or {}).items():
            if isinstance(value, str) and re.fullmatch(r"[+-]?\d+[eE][+-]?\d+", value):
                raise ValueError(f"{key}: {value} is a text in YAML, which wants a point in a number: 1.0e-05 for 1e-05")
        return configuration

    @model_validator(mode="after")
    def has_what_it_promises(self) -> Self:
        if self.converted != (self.configuration is not None):
            raise ValueError("configuration: belongs to weights that are converted from pytorch_model.bin, and they need it")
        if self.converted and (twice := {*WEIGHTS_FILES} & {*self.files}):
            raise ValueError(f"files: {min(twice)} is made of pytorch_model.bin and configuration; leave it out")
        given = {*self.files, *(["config.json"] if self.converted else [])}
        missing = sorted({*self.tokenizer_files, *self.weights_files} - given)
        if missing and self.folder is None:
            raise ValueError(f"files lacks {', '.join(missing)}")
        return self


def load_dataset(path: Path) -> Dataset:
    """The dataset in a file of `recipes/data/`."""
    return validate(Dataset, read_yaml(path), path)


def load_model(path: Path) -> PretrainedModel:
    """The pretrained model in a file of `recipes/models/`."""
    return validate(PretrainedModel, read_yaml(path), path)
