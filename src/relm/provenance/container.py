"""The container, image and packages of a running step, as seen from inside.

A container cannot read its image's digest or labels, so the command that starts it names the image in `RELM_IMAGE`
(`relm.containers.run_line`), and the image has its role in `RELM_IMAGE_ROLE`. Each engine leaves some sign of itself.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relm.errors import RelmError

IMAGE, ROLE = "RELM_IMAGE", "RELM_IMAGE_ROLE"
ENGINES = {"docker": "Docker", "podman": "podman", "apptainer": "Apptainer", "unknown": "an unknown engine"}
_APPTAINER = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
_DIGEST = re.compile(r"(?:^|@)(sha256:[0-9a-f]{64})$")


def find_engine(environment: Mapping[str, str], root: Path) -> str | None:
    """Return the engine of the container that this process is in; None outside any.

    Podman and Docker put a file at the root. Podman hides it if the root is read-only, but also sets a variable, as Apptainer
    does. Other engines are known only by the image's variables. A virtual machine made from an image has Docker's file but not
    its mounts.
    """
    if any(environment.get(name) for name in _APPTAINER):
        return "apptainer"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists() and _docker_mounts_files(root):
        return "docker"
    if environment.get("container") == "podman":
        return "podman"
    return "unknown" if environment.get(IMAGE) or environment.get(ROLE) else None


def _docker_mounts_files(root: Path) -> bool:
    """Return True if /etc/hosts or /etc/hostname is a mount, as in Docker's containers, or if mounts cannot be read."""
    try:
        mounts = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True
    return any(mount.split()[4] in ("/etc/hosts", "/etc/hostname") for mount in mounts if len(mount.split()) > 4)


def container(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> dict[str, str | None] | None:
    """Return ``find_engine``, ``role``, ``image`` and ``digest`` of the container that this process is in; None outside any.

    The image is NAME:TAG@DIGEST, as requested from the engine, or the id of one that was built here, which then is its digest;
    unknown values are null.
    """
    found = find_engine(environment, root)
    if found is None:
        return None
    image = environment.get(IMAGE) or _find_apptainer_image(environment) or None
    digest = _DIGEST.search(image or "")
    role = environment.get(ROLE) or None
    return {"engine": found, "role": role, "image": image, "digest": digest[1] if digest else None}


def _find_apptainer_image(environment: Mapping[str, str]) -> str | None:
    """Return the image of Apptainer's file or folder, from the lock and the override in the current folder.

    Snakemake names a pulled image by the MD5 of its address with digest; the override has the paths of images built here.
    """
    from relm.containers.lock import read_lock, read_override

    path = Path(next((environment[name] for name in _APPTAINER if environment.get(name)), "/"))
    with contextlib.suppress(RelmError):  # without a lock nothing is known
        for built in read_override().images.values():
            if built.apptainer is not None and built.apptainer.resolve() == path:
                return built.id
        for image in read_lock().images.values():
            address = hashlib.md5(f"docker://{image.pinned}".encode(), usedforsecurity=False).hexdigest()
            if image.digest and path.name == f"{address}.simg":
                return image.pinned
    return None


def format_container(facts: Mapping[str, Any] | None) -> str:
    """Return what `container` returned as a phrase for a report.

    >>> format_container(None)
    'outside any container'
    >>> format_container({"engine": "docker", "role": None, "image": None, "digest": None})
    'in a container by Docker, image unknown'
    """
    if facts is None:
        return "outside any container"
    engine, role = ENGINES.get(facts["engine"], facts["engine"]), f" (relm's for {facts['role']})" if facts.get("role") else ""
    if not facts["image"]:
        return f"in a container{role} by {engine}, image unknown"
    return f"in the image {facts['image']}{role} by {engine}{'' if facts['digest'] else ', digest unknown'}"


@functools.cache
def packages() -> dict[str, Any]:
    """Return every installed distribution as ``NAME==VERSION``, sorted, and the ``sha256`` of these lines.

    Of two distributions with one name, the first on the path counts, which is the one that is imported.
    """
    versions: dict[str, str] = {}
    for found in importlib.metadata.distributions():
        name, version = _name_and_version(found)
        versions.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    lines = [f"{name}=={version}" for name, version in sorted(versions.items())]
    return {"sha256": hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest(), "installed": lines}


def _name_and_version(found: importlib.metadata.Distribution) -> tuple[str, str]:
    """Return the name and version of a distribution, without `email`, which would take 0.3 s for all of them."""
    head = (found.read_text("METADATA") or "").partition("\n\n")[0]
    fields = dict(re.findall(r"^(Name|Version): *(\S+) *$", head, re.MULTILINE))
    return fields.get("Name") or found.name, fields.get("Version") or found.version
