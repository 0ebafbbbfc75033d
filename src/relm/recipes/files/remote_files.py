"""Published files, identified by their sha256, with the sources from which they can be downloaded."""

import hashlib
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from relm.recipes.files.web_address import WebAddress
from relm.recipes.section import Section

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FIRST_DOWNLOAD = "first_download"
"""Stands for the sha256 of a file whose hash nobody has published."""


class Source(Section):
    """One source of a file. Exactly one of `url`, `pypi`, `npm`, `huggingface` is given."""

    url: WebAddress | None = None
    """URL of the file, or of the archive that contains it."""
    pypi: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+==[^=\s]+$")
    """Release on the Python package index, NAME==VERSION; `file` names the wheel or sdist."""
    npm: str | None = Field(default=None, pattern=r"^(@[a-z0-9._-]+/)?[a-z0-9._-]+@[0-9][^\s@]*$")
    """Release on the npm registry, NAME@VERSION; its tarball is read."""
    huggingface: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?$")
    """Repository on the Hugging Face hub, OWNER/NAME; `file` names the path in it."""
    repository_type: Literal["model", "dataset"] = "model"
    """Type of the Hugging Face repository."""
    revision: str | None = None
    """Revision of the Hugging Face repository: a commit, rather than a tag or branch."""
    file: str | None = None
    """Wheel or sdist of a release, or path in a Hugging Face repository."""
    sha256: Sha256 | None = None
    """Hash of the downloaded archive or compressed file, which is checked before it is opened."""
    size: int | None = Field(default=None, gt=0)
    """Size of what is downloaded in bytes, where that is an archive or compressed, and limit of the download. null: a
    generous limit."""
    member: str | None = None
    """Path of the file inside the downloaded zip or tar archive (a wheel is a zip)."""
    decompress: Literal["gzip", "bzip2", "xz"] | None = None
    """Compression of the downloaded file, or of the archive's member."""

    @model_validator(mode="after")
    def exactly_one_kind(self) -> Self:
        kinds = [kind for kind in ("url", "pypi", "npm", "huggingface") if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise ValueError(f"a source names exactly one of url, pypi, npm, huggingface; found {kinds or 'none'}")
        if self.size is not None and self.member is None and self.decompress is None:
            raise ValueError("size: needs member or decompress; give the size of the file itself next to `sources`")
        needed = {"pypi": ("file", "member"), "npm": ("member",), "huggingface": ("file", "revision")}.get(kinds[0], ())
        if missing := [key for key in needed if getattr(self, key) is None]:
            raise ValueError(f"a source with {kinds[0]} also needs {missing[0]}")
        return self


class RemoteFile(Section):
    """A file identified by its content, whatever source it comes from."""

    sha256: str = Field(pattern=r"^([0-9a-f]{64}|first_download)$")
    """Hash of the file itself, after extraction from an archive and decompression. first_download, for a dataset or a test with
    unknown hashes: the hash of the first download is recorded, and from then on only that file is accepted."""
    size: int | None = Field(default=None, gt=0)
    """Size of the file itself in bytes; null if it is not known exactly."""
    at_most: int | None = Field(default=None, gt=0)
    """Upper limit of the size in bytes, instead of `size`: a longer download stops before it fills the disk."""
    sources: list[Source] = Field(default_factory=list)
    """Sources, tried in this order after the folder that RELM_MIRROR names."""
    made_by: str | None = None
    """Command that makes the file, instead of sources, where nobody publishes it; the file is then put into RELM_MIRROR's
    folder."""

    @property
    def is_pinned(self) -> bool:
        """True if the sha256 is known; false if it is that of the first download."""
        return not self.sha256.startswith(FIRST_DOWNLOAD)

    @property
    def identity(self) -> str:
        """The sha256, or a phrase with a digest of the sources, whose first download decides the content."""
        if self.sha256 != FIRST_DOWNLOAD:
            return self.sha256
        listed = (self.made_by or "") + "".join(
            source.model_dump_json(exclude_defaults=True, exclude={"size"}) for source in self.sources
        )
        return f"{FIRST_DOWNLOAD} {hashlib.sha256(listed.encode()).hexdigest()[:12]}"

    @property
    def key(self) -> str:
        """Twelve hexadecimal digits of the identity, which are part of the file's path."""
        return self.identity.removeprefix(FIRST_DOWNLOAD).strip()[:12]

    @property
    def largest_size(self) -> int:
        """Largest size of the file in bytes."""
        return self.size or self.at_most or 0

    def may_have(self, size: int) -> bool:
        """Return True if a file of this size in bytes can be this one."""
        return size == self.size if self.size else size <= self.largest_size

    def format_size(self) -> str:
        """Return the size, or its upper limit, as text."""
        return f"{self.size:,} bytes" if self.size else f"at most {self.largest_size:,} bytes"

    @model_validator(mode="after")
    def has_one_size_and_an_origin(self) -> Self:
        if (self.size is None) == (self.at_most is None):
            raise ValueError("size: give it, or at_most where it is not known exactly, and not both")
        if bool(self.sources) == (self.made_by is not None):
            raise ValueError("sources: give at least one, or made_by where nobody publishes the file, and not both")
        return self


def _require_sha256(file: RemoteFile) -> RemoteFile:
    if not file.is_pinned:
        raise ValueError(f"sha256: {FIRST_DOWNLOAD} is only for files of datasets and published tests; give the file's sha256")
    return file


PinnedFile = Annotated[RemoteFile, AfterValidator(_require_sha256)]
"""A file whose sha256 is known, such as a model's."""
