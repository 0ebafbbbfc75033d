"""The digest that a registry has for a tag, as skopeo reads it; a login is the one that skopeo or podman has."""

import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any, Literal

from relm.errors import RelmError

SECONDS = 60
# What registries answer where they have no such image.
_UNKNOWN = ("manifest unknown", "name unknown", "repository name not known")


class OutOfReach(RelmError):
    """The registry does not answer from here; another machine may reach it."""


@dataclass(frozen=True)
class Answer:
    """A tag's digest in its registry, compared with the digest that the lock has for it."""

    tag_digest: str
    locked: Literal["none", "same", "platform", "moved", "absent"]
    """The lock's digest: ``none``: it has none; ``same``: the tag's; ``platform``: that of one platform's image of the tag;
    ``moved``: the registry has it, but the tag has moved on; ``absent``: the registry does not have it."""
    platform: str = ""

    @property
    def confirms(self) -> bool:
        """True if the lock's digest is an image of this tag."""
        return self.locked in ("same", "platform")


def find_host(image: str) -> str:
    """Return the registry of an image's name, as Docker reads it.

    >>> find_host("python"), find_host("gcr.io/tpu-pytorch/xla")
    ('docker.io', 'gcr.io')
    """
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"


def compare_tag(image: str, tag: str, digest: str | None) -> Answer:
    """Return the digest of a tag, compared with ``digest`` if the lock has one."""
    content = _read_manifest(f"{image}:{tag}")
    if content is None:
        raise RelmError(f"{find_host(image)} has no image {image}:{tag} that it shows to you; correct the image or its tag")
    found = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if digest is None or found == digest:
        return Answer(found, "none" if digest is None else "same")
    for entry in _list_images(content):
        if entry.get("digest") == digest:
            return Answer(found, "platform", _format_platform(entry.get("platform") or {}))
    return Answer(found, "absent" if _read_manifest(f"{image}@{digest}") is None else "moved")


def _read_manifest(reference: str) -> bytes | None:
    """Return the bytes of a manifest, whose sha256 is its digest; None: the registry has none."""
    if shutil.which("skopeo") is None:
        raise OutOfReach("skopeo: no such program; install it (apt-get install skopeo)")
    # As Docker, without TLS on this machine alone.
    is_here = find_host(reference).partition(":")[0] in ("localhost", "127.0.0.1")
    command = ["skopeo", "inspect", "--raw", *(["--tls-verify=false"] if is_here else []), f"docker://{reference}"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise OutOfReach(f"{find_host(reference)}: no answer in {SECONDS} seconds") from None
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.decode(errors="replace").strip()
    if any(words in said.lower() for words in _UNKNOWN):
        return None
    line = re.sub(r'^time=.* msg="(.*)"$', r"\1", (said.splitlines() or ["skopeo gave no reason"])[-1])
    reason = ": ".join(line.replace('\\"', '"').split(": ")[-2:])  # what comes before repeats the address
    raise OutOfReach(f"{find_host(reference)}: {reason[:200]}")


def _list_images(content: bytes) -> list[dict[str, Any]]:
    """Return the images of an index; none of another manifest."""
    try:
        found = json.loads(content)["manifests"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _format_platform(platform: dict[str, Any]) -> str:
    return "/".join(str(platform[key]) for key in ("os", "architecture", "variant") if platform.get(key))


def format_commands(image: str, tag: str) -> list[str]:
    """Return commands that print the digest of a tag, for a machine from which the registry can be reached."""
    return [
        f"skopeo inspect --format '{{{{.Digest}}}}' docker://{image}:{tag}",
        f"docker buildx imagetools inspect {image}:{tag} --format '{{{{.Manifest.Digest}}}}'",
    ]
