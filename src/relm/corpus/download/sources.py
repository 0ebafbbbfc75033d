"""Find the HTTP address of a source: as given, or on a package index, the npm registry or the Hugging Face hub."""

import configparser
import os
import posixpath
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

import requests

from relm.corpus.download.http_requests import open_location, read_body
from relm.corpus.download.locations import (
    Location,
    choose_hugging_face_token,
    choose_login,
    read_hugging_face_endpoint,
    redact_url,
)
from relm.corpus.download.source_faults import SourceFault, clip_list
from relm.recipes.files.remote_files import Source

PYPI, NPM = "https://pypi.org/simple", "https://registry.npmjs.org"
LARGEST_PAGE = 32 << 20  # bytes of an index page; the largest have about 20 MB


def describe_source(source: Source) -> str:
    """Return a description of the source for messages, without a mirror's address or credentials."""
    if source.url:
        return redact_url(source.url)
    if source.pypi:
        return f"{source.file} of {source.pypi} on the Python package index"
    if source.npm:
        return f"{source.npm} on the npm registry"
    return f"{source.file} of {source.huggingface} on the Hugging Face hub"


def locate_source(source: Source, session: requests.Session) -> Location:
    """Return the location of a source; for a Python package, look it up in its index."""
    if source.pypi:
        return _locate_on_package_index(source, session)
    if source.npm:
        return _locate_on_npm_registry(source.npm)
    url = source.url or _make_hugging_face_url(source)
    return Location(url, choose_hugging_face_token(url))


def _make_hugging_face_url(source: Source) -> str:
    kind = "datasets/" if source.repository_type == "dataset" else ""
    revision, file = quote(str(source.revision), safe=""), quote(str(source.file))
    return f"{read_hugging_face_endpoint()}/{kind}{source.huggingface}/resolve/{revision}/{file}"


def _locate_on_npm_registry(release: str) -> Location:
    """Return the location of a release's tarball, which has the same path on every registry."""
    registry = find_npm_registry()
    name, version = release.rsplit("@", 1)
    tarball = f"{registry.rstrip('/')}/{name}/-/{posixpath.basename(name)}-{quote(version)}.tgz"
    return Location(tarball, choose_login(registry, tarball))


def find_npm_registry() -> str:
    """Return npm's configured registry: its variable, else `registry=` in ~/.npmrc, else the public one."""
    chosen = {name.lower(): value for name, value in os.environ.items()}.get("npm_config_registry")
    settings = Path(os.path.expanduser("~/.npmrc"))
    if not chosen and settings.is_file():
        found = re.search(r"^\s*registry\s*=\s*[\"']?([^\s\"']+)", settings.read_text(errors="replace"), re.MULTILINE)
        chosen = found and found[1]
    return chosen or NPM


class _Anchors(HTMLParser):
    """Collects the links of a simple index page in HTML (PEP 503)."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for key, value in attrs if tag == "a" and key == "href" and value]


def _locate_on_package_index(source: Source, session: requests.Session) -> Location:
    """Return the location of a wheel or sdist."""
    project, version = str(source.pypi).split("==", 1)
    index = find_package_index()
    page = Location(f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', project).lower()}/")
    try:
        address, content = _fetch_page(session, page)
    except SourceFault as fault:
        raise type(fault)(f"{redact_url(page.url)}: {fault}") from None
    anchors, listed = _Anchors(), {}
    try:
        anchors.feed(content)
        for link in anchors.links:
            listed[posixpath.basename(unquote(urlsplit(link).path))] = urljoin(address, urldefrag(link)[0])
    except (ValueError, AssertionError) as error:  # AssertionError: from html.parser
        raise SourceFault(f"{redact_url(page.url)}: not a simple index page in HTML ({type(error).__name__})") from None
    if source.file not in listed:
        same_version = clip_list(name for name in listed if version in name)
        raise SourceFault(f"the package index lacks {source.file}; of {version} it has: {same_version}")
    url = listed[source.file]
    return Location(url, choose_login(index, url))


def _fetch_page(session: requests.Session, page: Location) -> tuple[str, str]:
    """Return the address of a page after redirects, and its text, which is data and never executed."""
    with open_location(session, page, {"Accept": "application/vnd.pypi.simple.v1+html, text/html;q=0.5"}) as response:
        encoding = response.headers.get("Content-Encoding", "identity")
        if response.status_code != 200 or encoding != "identity":
            raise SourceFault(f"HTTP {response.status_code}, encoding {encoding!r:.40}: expected a plain index page")
        content = bytearray()
        for block in read_body(response):
            content += block
            if len(content) > LARGEST_PAGE:
                raise SourceFault(f"expected an index page, found more than {LARGEST_PAGE:,} bytes")
        return response.url or page.url, content.decode("utf-8", errors="replace")


def find_package_index() -> str:
    """Return pip's configured index: PIP_INDEX_URL, else `index-url` in its files, else the public one.

    Later files win: global, user, environment, PIP_CONFIG_FILE; with PIP_CONFIG_FILE=/dev/null pip reads none.
    """
    own, home = os.environ.get("PIP_CONFIG_FILE", ""), os.path.expanduser("~")
    files = ["/etc/xdg/pip/pip.conf", "/etc/pip.conf", f"{home}/.pip/pip.conf", f"{home}/.config/pip/pip.conf"]
    settings = configparser.RawConfigParser()
    try:
        settings.read([*files, f"{sys.prefix}/pip.conf", own] if own != os.devnull else [], encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise SourceFault(f"pip.conf: not a pip configuration file ({type(error).__name__}); correct it") from None
    return os.environ.get("PIP_INDEX_URL") or str(settings.get("global", "index-url", fallback=PYPI))


def list_kept_names(source: Source) -> list[tuple[str, str | None, str | None]]:
    """Return the forms in which a user may keep a source's file: (file name, member of the archive, compression)."""
    if source.npm:
        name, version = source.npm.rsplit("@", 1)
        fetched = f"{posixpath.basename(name)}-{version}.tgz"
    else:
        fetched = posixpath.basename(source.file or unquote(urlsplit(source.url or "").path))
    if source.member is None:
        return [(fetched, None, source.decompress)]
    return [(posixpath.basename(source.member), None, source.decompress), (fetched, source.member, source.decompress)]
