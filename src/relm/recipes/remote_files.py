"""Files of others that are known by their content, with the sources that have them."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from relm.recipes.section import Section

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


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
