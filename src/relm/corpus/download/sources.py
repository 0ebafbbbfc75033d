"""The HTTP address of each source of a file, with the digests that its bytes must have."""

import dataclasses
import posixpath
from urllib.parse import unquote, urlsplit

import requests

from relm.corpus.download.hub_files import locate_on_hugging_face, read_hugging_face_endpoint, read_hugging_face_token
from relm.corpus.download.locations import Check, Location, has_same_origin, redact_url, require_web_location
from relm.corpus.download.npm_registry import locate_on_npm_registry
from relm.corpus.download.package_index import locate_on_package_index
from relm.corpus.download.source_faults import SOURCE_HASH, WrongHash
from relm.recipes.files.remote_files import Source


def describe_source(source: Source) -> str:
    """Return a description of the source for messages: no address of a mirror, no credentials."""
    if source.url:
        return redact_url(source.url)
    if source.pypi:
        return f"{source.file} of {source.pypi} on the Python package index"
    if source.npm:
        return f"{source.npm} on the npm registry"
    return f"{source.file} of {source.huggingface} on the Hugging Face hub"


def locate_source(source: Source, session: requests.Session) -> Location:
    """Return the location of a source; a package is looked up in its index or registry."""
    if source.pypi:
        found = locate_on_package_index(source, session)
    elif source.npm:
        found = locate_on_npm_registry(source, session)
    elif source.huggingface:
        found = locate_on_hugging_face(source)
    else:
        url = str(source.url)
        found = Location(url, auth=read_hugging_face_token() if has_same_origin(url, read_hugging_face_endpoint()) else None)
    require_web_location(found.url)
    if source.sha256:
        for check in found.checks:
            if check.algorithm == "sha256" and check.digest != source.sha256:
                raise WrongHash(f"{check.stated_by} has sha256 {check.digest}, the recipe expects {source.sha256}", SOURCE_HASH)
        return dataclasses.replace(found, checks=(*found.checks, Check("sha256", source.sha256, key=SOURCE_HASH)))
    return found


def list_kept_names(source: Source) -> list[tuple[str, str | None, str | None]]:
    """Return the forms in which a user may have kept a source's file: (file name, member of the archive, compression)."""
    if source.npm:
        name, version = source.npm.rsplit("@", 1)
        fetched = f"{name.rsplit('/', 1)[-1]}-{version}.tgz"
    else:
        fetched = posixpath.basename(source.file or unquote(urlsplit(source.url or "").path))
    if source.member is None:
        return [(fetched, None, source.decompress)]
    return [(posixpath.basename(source.member), None, source.decompress), (fetched, source.member, source.decompress)]
