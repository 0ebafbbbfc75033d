"""What datasets and published models are: files known by their content, with the sources that have them.

`recipes/data/NAME.yaml` and `recipes/models/NAME.yaml`; recipes name them.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from relm.section import Section, Slug, read_yaml, validate

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ModelFile = Literal[
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
]

WEIGHTS_FILES: tuple[ModelFile, ...] = ("model.safetensors", "config.json")
TOKENIZER_FILES: dict[str, tuple[ModelFile, ...]] = {
    "gpt2_bpe": ("vocab.json", "merges.txt"),
    "tokenizers_json": ("tokenizer.json",),
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
    size: int = Field(gt=0)
    """In bytes, of the file itself."""
    sources: list[Source] = Field(min_length=1)
    """Tried in this order; a folder named by RELM_MIRROR comes before them all."""


class Dataset(Section):
    """`recipes/data/NAME.yaml`: where documents come from and how they are read. Either `files` or `folder` is given."""

    title: str
    """What it is, in a few words."""
    licence: str
    """SPDX identifier, or the licence's name."""
    language: str
    """BCP 47 code of the text, such as en or ro."""
    homepage: str | None = None
    """A page about the data."""
    format: Literal["mediawiki_xml", "text_files"]
    """mediawiki_xml: a Wikipedia dump, plain or bz2; text_files: one document a file, UTF-8."""
    files: dict[Slug, RemoteFile] = Field(default_factory=dict)
    """File name -> what it is; each file becomes one shard, in this order."""
    folder: str | None = None
    """A folder of one's own text instead of `files`, relative to the checkout or with ~. Its content is its identity."""
    pattern: str = Field(default="**/*.txt", pattern=r"^[^/]")
    """Which files of `folder` are documents, as a glob; they are read in sorted order."""
    ends_mid_page: bool = False
    """The file is the beginning of a longer one and ends inside a page, which is dropped; elsewhere a cut file is an error."""
    held_out_one_in: int | None = Field(default=None, ge=2)
    """One document in so many is held out of training, by a hash of its title, in any order; null: 100, of text_files 10."""
    smoke: Slug | None = None
    """The small dataset of the same format that stands in for this one in `results/smoke/NAME`."""

    @property
    def one_in(self) -> int:
        """`held_out_one_in`, or what it stands for."""
        return self.held_out_one_in or {"mediawiki_xml": 100, "text_files": 10}[self.format]

    @model_validator(mode="after")
    def files_or_folder(self) -> Self:
        if bool(self.files) == (self.folder is not None):
            raise ValueError("a dataset has either files or folder")
        if sidecars := [name for name in self.files if name.endswith(".json")]:
            raise ValueError(
                f"files: {sidecars[0]}: names ending in .json are kept for the records beside the files; rename it"
            )
        if self.folder is not None and self.format != "text_files":
            raise ValueError(f"a folder is read with format: text_files; found {self.format}")
        return self


class PretrainedModel(Section):
    """`recipes/models/NAME.yaml`: starting weights, a tokenizer, or both, as published by somebody."""

    title: str
    """What it is, in a few words."""
    licence: str
    """SPDX identifier, or the licence's name."""
    homepage: str | None = None
    """A page about the model."""
    tokenizer: Literal["gpt2_bpe", "tokenizers_json"] | None = None
    """gpt2_bpe: `vocab.json` and `merges.txt`; tokenizers_json: `tokenizer.json`; none: weights only."""
    weights: bool = False
    """Whether `model.safetensors` and `config.json` are among the files, so that `init_from` may name it."""
    files: dict[ModelFile, RemoteFile] = Field(min_length=1)
    """File name, as `transformers` expects it -> what it is."""

    @property
    def tokenizer_files(self) -> tuple[ModelFile, ...]:
        """The files that are the tokenizer."""
        return TOKENIZER_FILES[self.tokenizer] if self.tokenizer else ()

    @model_validator(mode="after")
    def has_what_it_promises(self) -> Self:
        needed = {*self.tokenizer_files, *(WEIGHTS_FILES if self.weights else ())}
        if missing := sorted(needed - set(self.files)):
            raise ValueError(f"files lacks {', '.join(missing)}")
        return self


def load_dataset(path: Path) -> Dataset:
    """The dataset in a file of `recipes/data/`."""
    return validate(Dataset, read_yaml(path), path)


def load_model(path: Path) -> PretrainedModel:
    """The pretrained model in a file of `recipes/models/`."""
    return validate(PretrainedModel, read_yaml(path), path)
