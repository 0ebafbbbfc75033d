"""Published files, identified by their sha256, with the sources from which they can be downloaded."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from relm.recipes.section import Section

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Source(Section):
    """One source of a file. Exactly one of `url`, `pypi`, `npm`, `huggingface` is given."""

    url: str | None = Field(default=None, pattern=r"^https?://")
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
    """Hash of the downloaded archive or compressed file, so that a wrong one is refused before it is opened."""
    member: str | None = None
    """Path of the file inside the downloaded zip or tar archive (a wheel is a zip)."""
    decompress: Literal["gzip", "bzip2", "xz"] | None = None
    """Compression of the downloaded file, or of the archive's member."""

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
    """A file identified by its content, whatever source it comes from."""

    sha256: Sha256
    """Hash of the file itself, after extraction from an archive and decompression."""
    size: int | None = Field(default=None, gt=0)
    """Size of the file itself in bytes; null if it is not known exactly."""
    at_most: int | None = Field(default=None, gt=0)
    """Upper limit of the size in bytes, instead of `size`: a longer download is refused before it fills the disk."""
    sources: list[Source] = Field(min_length=1)
    """Sources, tried in this order after the folder that RELM_MIRROR names."""

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
    def one_size(self) -> Self:
        if (self.size is None) == (self.at_most is None):
            raise ValueError("size: give it, or at_most where it is not known exactly, and not both")
        return self
