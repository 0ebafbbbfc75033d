"""`relm images resolve`: compare the digests in the lock with the registries', using skopeo and its login."""

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from relm.containers.lock import LOCK, Lock, Pinned, read_lock
from relm.errors import RelmError

SECONDS = 60
# Answers of registries about an unknown image.
_UNKNOWN = ("manifest unknown", "name unknown", "repository name not known")


def resolve(wanted: str | None, folder: Path = Path()) -> str:
    """Compare one entry of the lock or all of them with the registry, and return a line for each.

    `wanted` is ``images.ROLE``, ``bases.NAME``, or a role, which means its image and its bases; None: all. Raise RelmError with
    all lines if an entry is not confirmed.
    """
    lines, fails = [], False
    for key, entry in _select_entries(read_lock(folder), wanted):
        try:
            if key.startswith("images.") and entry.digest is None:
                lines.append(f"{key}: {entry.pinned} was never published; nothing to compare")
                continue
            note = "" if entry.verified else f"; set `verified: true` and today's date as `checked` in {LOCK}"
            lines.append(f"{key}: {_confirm(entry)}, as in the lock{note}")
        except RelmError as error:
            fails = True
            lines.append(f"{key}: {error}")
    if fails:
        raise RelmError("\n".join(lines))
    return "\n".join(lines)


def _select_entries(lock: Lock, wanted: str | None) -> Iterator[tuple[str, Pinned]]:
    """Yield key and entry of the wanted images."""
    entries: dict[str, Pinned] = {f"images.{role}": image for role, image in lock.images.items()}
    entries |= {f"bases.{name}": base for name, base in lock.bases.items()}
    keys = list(entries)
    if wanted is not None and f"images.{wanted}" in entries:
        keys = [f"images.{wanted}", *(f"bases.{name}" for name in lock.images[wanted].bases.values())]
    elif wanted is not None:
        keys = [wanted]
    for key in keys:
        if key not in entries:
            raise RelmError(f"{LOCK}: unknown entry {key!r}; expected one of {', '.join([*lock.images, *entries])}")
        yield key, entries[key]


def _confirm(entry: Pinned) -> str:
    """Return a phrase on an entry's tag; raise RelmError unless its digest, or one platform's, is the lock's."""
    tag = f"{entry.image}:{entry.tag}"
    content = read_manifest(tag)
    found = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if found == entry.digest:
        return f"{tag} is {found}"
    for image in _list_images(content):
        if entry.digest is not None and image.get("digest") == entry.digest:
            platform = image.get("platform") or {}
            named = "/".join(str(platform[key]) for key in ("os", "architecture", "variant") if platform.get(key))
            return f"{tag} is {found}, whose image for {named} is {entry.digest}"
    raise RelmError(
        f"{tag} is {found}, but the lock has {entry.digest or 'no digest'}: not verified. If you want that image, write its "
        f"digest and `source: the registry` into {LOCK}, and run this again"
    )


def find_host(image: str) -> str:
    """Return the registry in an image's name, by Docker's rules.

    >>> find_host("python"), find_host("gcr.io/tpu-pytorch/xla")
    ('docker.io', 'gcr.io')
    """
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"


def read_manifest(reference: str) -> bytes:
    """Return the bytes of a manifest; their sha256 is its digest."""
    host = find_host(reference)
    if shutil.which("skopeo") is None:
        raise RelmError("skopeo is not installed; install it (apt-get install skopeo)")
    # Like Docker, without TLS only on this machine.
    unencrypted = ["--tls-verify=false"] if host.partition(":")[0] in ("localhost", "127.0.0.1") else []
    command = ["skopeo", "inspect", "--raw", *unencrypted, f"docker://{reference}"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise RelmError(f"{host}: no answer in {SECONDS} seconds") from None
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.decode(errors="replace").strip()
    if any(words in said.lower() for words in _UNKNOWN):
        raise RelmError(f"{host} has no image {reference}, or hides it from you; correct the image or its tag")
    line = re.sub(r'^time=.* msg="(.*)"$', r"\1", (said.splitlines() or ["skopeo gave no reason"])[-1])
    reason = ": ".join(line.replace('\\"', '"').split(": ")[-2:])  # the parts before repeat the address
    raise RelmError(f"{host}: {reason[:200]}; run this where the registry can be reached")


def _list_images(content: bytes) -> list[dict[str, Any]]:
    """Return the images of an index; none for another kind of manifest."""
    try:
        found = json.loads(content)["manifests"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
