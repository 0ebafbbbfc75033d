"""The container, image and packages of a running step, as seen from inside.

An image cannot read its own digest or labels, so the command that starts a container names the image in `RELM_IMAGE`
(`relm.containers.run_line`), and the image has its role in `RELM_IMAGE_ROLE`. Each engine leaves a sign
that there is a container at all.
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

    Podman and Docker put a file at the root, which podman hides again where the root is read-only; it sets a variable as well,
    and so does Apptainer. Other engines are known by the image's variables alone. A virtual machine whose disk was made from
    an image has Docker's file too, and not its mounts.
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
    """Return whether /etc/hosts or /etc/hostname is a mount, as in Docker's containers; True if mounts cannot be read."""
    try:
        mounts = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True
    return any(mount.split()[4] in ("/etc/hosts", "/etc/hostname") for mount in mounts if len(mount.split()) > 4)


def container(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> dict[str, str | None] | None:
    """Return ``find_engine``, ``role``, ``image`` and ``digest`` of the container that this process is in; None outside any.

    The image is as requested from the engine, NAME:TAG@DIGEST or, for one that was built here, its id, which is its digest
    then; unknown values are null.
    """
    found = find_engine(environment, root)
    if found is None:
        return None
    image = environment.get(IMAGE) or _find_apptainer_image(environment) or None
    digest = _DIGEST.search(image or "")
    told = {"engine": found, "role": environment.get(ROLE) or None, "image": image}
    return {**told, "digest": digest[1] if digest else None}


def _find_apptainer_image(environment: Mapping[str, str]) -> str | None:
    """Return the image that Apptainer's file or folder was built from, by the lock in the current folder.

    Snakemake names a pulled image by the MD5 of its address, digest included; one that was built here has its path in the
    override.
    """
    from relm.containers.lock import read_lock, read_override

    path = Path(next((environment[name] for name in _APPTAINER if environment.get(name)), "/"))
    with contextlib.suppress(RelmError):  # no lock here: nothing is known
        for built in read_override().images.values():
            if built.apptainer is not None and built.apptainer.resolve() == path:
                return built.id
        for image in read_lock().images.values():
            address = hashlib.md5(f"docker://{image.pinned}".encode(), usedforsecurity=False).hexdigest()
            if image.digest and path.name == f"{address}.simg":
                return image.pinned
    return None


def format_container(told: Mapping[str, Any] | None) -> str:
    """Return the facts of `container` as a phrase for a report.

    >>> format_container(None)
    'outside any container'
    >>> format_container({"engine": "docker", "role": None, "image": None, "digest": None})
    'in a container of Docker that does not say which image it is of'
    """
    if told is None:
        return "outside any container"
    runs = ENGINES.get(told["engine"], told["engine"])
    if not told["image"]:
        return f"in a container of {runs} that does not say which image it is of{_format_role(told)}"
    return f"in the image {told['image']}{_format_role(told)} by {runs}{'' if told['digest'] else ', its digest unknown'}"


def _format_role(told: Mapping[str, Any]) -> str:
    return f" (relm's for {told['role']})" if told.get("role") else ""


@functools.cache
def packages() -> dict[str, Any]:
    """Return every installed distribution as ``NAME==VERSION``, sorted, and the ``sha256`` of these lines.

    Of two distributions with one name the imported one counts: the first on the path.
    """
    versions: dict[str, str] = {}
    for found in importlib.metadata.distributions():
        name, version = _name_and_version(found)
        versions.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    lines = [f"{name}=={version}" for name, version in sorted(versions.items())]
    return {"sha256": hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest(), "installed": lines}


def _name_and_version(found: importlib.metadata.Distribution) -> tuple[str, str]:
    """Return the name and version of a distribution; parsing the metadata of all as e-mails would take a third of a second."""
    head = (found.read_text("METADATA") or "").partition("\n\n")[0]
    fields = dict(re.findall(r"^(Name|Version): *(\S+) *$", head, re.MULTILINE))
    return fields.get("Name") or found.name, fields.get("Version") or found.version
