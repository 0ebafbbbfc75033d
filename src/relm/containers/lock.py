"""`containers/lock.yaml`: role -> image by digest, the bases of images, and the device flags of an image.

An image that was built here and never published has no digest: `relm images build` writes its id into the override
`containers/lock.local.yaml`, which git ignores.
"""

import datetime
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from relm.artifact import atomic_file
from relm.errors import RelmError
from relm.recipes.declaration import NameIn
from relm.recipes.devices import DEVICES
from relm.recipes.section import Section, Slug, read_yaml, validate

Role = Annotated[str, NameIn(DEVICES)]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
LOCK = Path("containers/lock.yaml")
# An image that an engine accepts; never an option, a path or two words.
REFERENCE = re.compile(r"sha256:[0-9a-f]{64}|[a-z0-9][a-z0-9._:/-]*(:[A-Za-z0-9_][A-Za-z0-9._-]*)?(@sha256:[0-9a-f]{64})?")
OVERRIDE = Path("containers/lock.local.yaml")


class Pinned(Section):
    """An image by name and tag, and by digest where one is known."""

    image: str = Field(pattern=r"^[a-z0-9][a-z0-9._:/-]*$")
    """Registry and name, such as docker.io/library/python."""
    tag: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")
    """The tag that the digest was looked up for."""
    digest: Digest | None = None
    """The registry's digest; absent: never published."""
    source: str | None = None
    """The digest's origin: the registry, or the address of a public file."""
    verified: bool = False
    """True if the registry confirmed the digest of the tag."""
    checked: datetime.date | None = Field(default=None, strict=False)
    """The day on which the source was read."""

    @model_validator(mode="after")
    def a_digest_says_where_it_is_from(self) -> Self:
        if self.digest and not (self.source and self.checked):
            raise ValueError("digest: add its `source` and the day it was `checked`")
        if self.verified and not self.digest:
            raise ValueError("verified: expected only with a digest; remove it")
        return self

    @property
    def pinned(self) -> str:
        """``NAME:TAG@DIGEST``, as a Dockerfile and an engine take it; without the digest where there is none."""
        return f"{self.image}:{self.tag}@{self.digest}" if self.digest else f"{self.image}:{self.tag}"


class Image(Pinned):
    """The image of one role, and the rights and devices of its steps."""

    bases: dict[Annotated[str, Field(pattern=r"^[A-Z_]+$")], Slug] = Field(min_length=1)
    """The Dockerfile's argument -> one of the bases; BASE is the image to start from."""
    gpus: bool = False
    """True if steps see all NVIDIA GPUs."""
    privileged: bool = False
    """True if steps have root's rights on the machine's devices."""
    network: Literal["none", "host"] = "none"
    """The network of steps that do not need one themselves."""
    devices: list[str] = Field(default_factory=list)
    """Patterns of device files: /dev/ipu* matches those that the machine has."""
    capabilities: list[str] = Field(default_factory=list)
    """Linux capabilities that are not dropped."""
    ulimits: dict[str, str] = Field(default_factory=dict)
    """Name -> soft:hard, such as memlock: "-1:-1"."""
    shm_size: str | None = Field(default=None, pattern=r"^[0-9]+[bkmg]$")
    """Size of /dev/shm; absent: the engine's default."""
    ipc: Literal["private", "host"] = "private"
    """The shared memory: private or the machine's."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of its steps."""
    passed: list[str] = Field(default_factory=list)
    """Variables that its steps inherit from the caller, if set."""
    passed_files: list[str] = Field(default_factory=list)
    """Inherited variables, each with the path of a file that steps may read."""
    configuration: list[str] = Field(default_factory=list)
    """Files and folders that its steps may read, if they exist."""
    own_devices: list[str] = Field(default_factory=list)
    """Patterns of device files of accelerators in the machine itself. If one matches, steps get only these files: `network`,
    `ipc`, `devices`, `capabilities` and `ulimits` are for accelerators that are reached over a network."""

    def for_own_devices(self) -> "Image":
        """Return the entry for a machine with accelerators in itself."""
        fields: dict[str, Any] = {"network": "none", "ipc": "private", "capabilities": [], "ulimits": {}}
        return self.model_copy(update={**fields, "devices": self.own_devices})


class Lock(Section):
    """The whole file."""

    images: dict[Role, Image] = Field(default_factory=dict)
    bases: dict[Slug, Pinned] = Field(default_factory=dict)
    """Images that the Dockerfile starts from."""

    @model_validator(mode="after")
    def bases_are_known(self) -> Self:
        for role, image in self.images.items():
            for name in image.bases.values():
                if name not in self.bases:
                    raise ValueError(
                        f"images.{role}.bases: unknown base {name}; expected one of {', '.join(self.bases) or 'none'}"
                    )
        return self


class Built(Section):
    """A role's image that was built here."""

    id: Digest
    """The engine's id: the hash of the image's configuration."""
    bases: dict[str, str]
    """The Dockerfile's argument -> the image it was built on: the lock's base, or another."""
    built: datetime.date = Field(strict=False)
    commit: str | None = None
    """The checkout's commit, with `+changes` if it had any; absent: no checkout."""
    loggers: bool = False
    """True if it has the loggers that `run.loggers` may name."""
    apptainer: Path | None = Field(default=None, strict=False)
    """The same image for Apptainer: a .sif file or a folder."""


class Override(Section):
    """`lock.local.yaml`."""

    images: dict[Role, Built] = Field(default_factory=dict)


def read_lock(folder: Path = Path()) -> Lock:
    """Read the lock of a checkout; an error names the key."""
    return validate(Lock, read_yaml(folder / LOCK), folder / LOCK)


def read_override(folder: Path = Path()) -> Override:
    """Read the images that were built here; empty if none was."""
    path = folder / OVERRIDE
    return validate(Override, read_yaml(path), path) if path.exists() else Override()


def find_image(role: Role, folder: Path = Path()) -> Image:
    """Return a role's entry in the lock."""
    lock = read_lock(folder)
    if role not in lock.images:
        raise RelmError(f"{LOCK}: no image for {role}; expected one of {', '.join(lock.images) or 'none'}")
    return lock.images[role]


def find_reference(role: Role, folder: Path = Path()) -> str:
    """Return a role's image for an engine: ``sha256:...``, built here, or ``NAME:TAG@sha256:...``, published and verified."""
    built = read_override(folder).images.get(role)
    if built is not None:
        return built.id
    image = find_image(role, folder)
    if image.digest is None:
        raise RelmError(
            f"{LOCK}: the image of {role} ({image.pinned}) has no digest, because it was never published. "
            f"Build it here: make images ROLES={role}"
        )
    require_verified(image, f"images.{role}", f"or build it here: make images ROLES={role}")
    return image.pinned


def find_bases(role: Role, folder: Path = Path()) -> dict[str, Pinned]:
    """Return the Dockerfile's arguments -> bases with verified digests."""
    known, bases = read_lock(folder).bases, {}
    for argument, name in find_image(role, folder).bases.items():
        require_verified(known[name], f"bases.{name}", f"or name another image: make images ROLES={role} {argument}=NAME")
        bases[argument] = known[name]
    return bases


def record_built(role: Role, built: Built, folder: Path = Path()) -> None:
    """Record in the override that a role's image was built here."""
    known = read_override(folder).images | {role: built}
    content = {"images": {name: entry.model_dump(mode="json", exclude_defaults=True) for name, entry in known.items()}}
    comment = (
        "# Written by `make images`: images built here, which replace the lock's. Delete this file to use the lock again.\n"
    )
    with atomic_file(folder / OVERRIDE, "w") as file:
        file.write(comment + yaml.safe_dump(content, sort_keys=False))


def require_verified(pinned: Pinned, key: str, otherwise: str) -> None:
    """Raise RelmError for an image whose digest the registry never confirmed."""
    if pinned.verified:
        return
    origin = f"from {pinned.source}, read {pinned.checked}" if pinned.digest else "none is given"
    raise RelmError(
        f"{LOCK}: {key}: the digest of {pinned.image}:{pinned.tag} is not verified ({origin}). Ask the registry: "
        f"skopeo inspect --raw docker://{pinned.image}:{pinned.tag} | sha256sum; {otherwise}"
    )


def find_role(given: str, folder: Path = Path()) -> Role:
    """Return the role of an image, given its reference or the path for Apptainer."""
    for role, built in read_override(folder).images.items():
        if given in (built.id, str(built.apptainer)):
            return role
    for role, image in read_lock(folder).images.items():
        if image.digest and given == image.pinned:
            return role
    raise RelmError(
        f"{given}: not in {LOCK} or {OVERRIDE}, so its device flags are unknown; add it, or use an image that is listed"
    )
