"""Tarballs of releases on the npm registry (its abbreviated metadata), at the address that npm is configured with."""

import base64
import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urljoin

import requests

from relm.corpus.download.index_pages import PAGE_FAULTS, choose_login, fetch_index_page
from relm.corpus.download.locations import Check, Location, redact_url
from relm.corpus.download.source_faults import SourceFault, clip, clip_list
from relm.recipes.files.remote_files import Source

NPM = "https://registry.npmjs.org"
NPM_ABBREVIATED = "application/vnd.npm.install-v1+json"


def locate_on_npm_registry(source: Source, session: requests.Session) -> Location:
    """Return the location of a release's tarball, with the sha512 that the registry states."""
    name, version = str(source.npm).rsplit("@", 1)
    registry = find_npm_registry()
    url = f"{registry.rstrip('/')}/{quote(name, safe='@')}"
    page = fetch_index_page(session, url, f"{NPM_ABBREVIATED}, application/json;q=0.5")
    try:
        versions = json.loads(page.content)["versions"]
        if version not in versions:
            raise SourceFault(f"the npm registry has no {source.npm}; it has {clip_list(versions, none='no version')}")
        release = versions[version]["dist"]
        tarball, integrity = urljoin(page.url, str(release["tarball"])), str(release.get("integrity", ""))
    except PAGE_FAULTS as error:
        raise SourceFault(f"{redact_url(url)}: not the metadata of an npm package ({type(error).__name__})") from None
    return Location(tarball, tuple(_parse_integrity(integrity)), choose_login(registry, tarball))


def _parse_integrity(integrity: str) -> Iterator[Check]:
    """Yield the sha512 digests of a Subresource Integrity string (W3C); weaker ones are skipped."""
    for word in integrity.split():
        algorithm, _, value = word.partition("-")
        if algorithm == "sha512":
            try:
                digest = base64.b64decode(value.split("?")[0], validate=True).hex()
                yield Check("sha512", digest, "the npm registry", key=None)
            except ValueError:
                raise SourceFault(f"the npm registry has an integrity that is not base64: {clip(word, most=100)}") from None


def find_npm_registry() -> str:
    """Return the registry that npm is configured with: npm_config_registry, else `registry=` in .npmrc, else the public one."""
    if registry := _read_npm_variable("registry"):
        return registry
    path = Path(_read_npm_variable("userconfig") or os.path.expanduser("~/.npmrc"))
    chosen = NPM
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "registry" and value.strip():
                chosen = value.strip().strip("\"'")
    return chosen


def _read_npm_variable(name: str) -> str | None:
    variable = f"npm_config_{name}"
    return os.environ.get(variable) or os.environ.get(variable.upper())
