"""Files of releases on a Python package index (PEP 503 and PEP 691), at the address that pip is configured with."""

import configparser
import contextlib
import json
import os
import posixpath
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import requests

from relm.corpus.download.index_pages import PAGE_FAULTS, IndexPage, choose_login, fetch_index_page
from relm.corpus.download.locations import Check, Location, redact_url
from relm.corpus.download.source_faults import SourceFault, clip, clip_list
from relm.recipes.files.remote_files import Source

PYPI = "https://pypi.org/simple"
SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"


class ListedFile(NamedTuple):
    """A file of a project, as an index page lists it."""

    name: str
    link: str
    sha256: str | None
    size: int | None = None


def locate_on_package_index(source: Source, session: requests.Session) -> Location:
    """Return the location of a wheel or sdist, with the sha256 and the size that the index states."""
    project, version = str(source.pypi).split("==", 1)
    index = find_package_index()
    page_url = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', project).lower()}/"
    page = fetch_index_page(session, page_url, f"{SIMPLE_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1")
    listed = _parse_page(page)
    for file in listed:
        if file.name == source.file:
            return _locate_file(file, page, index)
    same_version = [file.name for file in listed if version in file.name]
    raise SourceFault(f"the package index lists no {source.file}; of {version} it lists: {clip_list(same_version)}")


def _locate_file(file: ListedFile, page: IndexPage, index: str) -> Location:
    if file.sha256 and not re.fullmatch("[0-9a-f]{64}", file.sha256):
        raise SourceFault(f"the package index states the sha256 {clip(file.sha256)}, expected 64 hexadecimal digits")
    try:
        url = urljoin(page.url, file.link)
    except ValueError:
        raise SourceFault(f"the package index has an address that cannot be read for {file.name}") from None
    checks = (Check("sha256", file.sha256, "the package index", key=None),) if file.sha256 else ()
    return Location(url, checks, choose_login(index, url), file.size)


def _parse_page(page: IndexPage) -> list[ListedFile]:
    """Return the files that a page lists."""
    form, parse = ("JSON", _parse_json) if "json" in page.kind else ("HTML", _parse_html)
    try:
        return list(parse(page.content))
    except PAGE_FAULTS as error:
        raise SourceFault(f"{redact_url(page.url)}: not a simple index page in {form} ({type(error).__name__})") from None


def _parse_json(content: bytes) -> Iterator[ListedFile]:
    """Yield the files of a PEP 691 page; since PEP 700 it has their sizes."""
    for entry in json.loads(content)["files"]:
        size, sha256 = entry.get("size"), entry.get("hashes", {}).get("sha256")
        is_size = isinstance(size, int) and not isinstance(size, bool) and size > 0
        yield ListedFile(str(entry["filename"]), str(entry["url"]), str(sha256) if sha256 else None, size if is_size else None)


class _Anchors(HTMLParser):
    """Collects the links of a PEP 503 page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for key, value in attrs if tag == "a" and key == "href" and value]


def _parse_html(content: bytes) -> Iterator[ListedFile]:
    """Yield the files of a PEP 503 page; a link that cannot be read is left out, because it may be another file's."""
    anchors = _Anchors()
    anchors.feed(content.decode("utf-8", errors="replace"))
    for href in anchors.links:
        with contextlib.suppress(ValueError):
            link, fragment = urldefrag(href)
            algorithm, _, digest = fragment.partition("=")
            name = posixpath.basename(unquote(urlsplit(link).path))
            yield ListedFile(name, link, digest if algorithm == "sha256" else None)


def find_package_index() -> str:
    """Return the index that pip is configured with: PIP_INDEX_URL, else `index-url` in pip's files, else the public one.

    Files are read in pip's order, a later one wins: PIP_CONFIG_FILE, global, user (unless PIP_CONFIG_FILE exists), environment.
    """
    if os.environ.get("PIP_INDEX_URL"):
        return os.environ["PIP_INDEX_URL"]
    chosen = PYPI
    for path in _list_pip_files():
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise SourceFault(f"{path}: not a pip configuration file ({type(error).__name__}); correct it") from None
        for section in ("global", "install", "download"):
            for key in ("index-url", "index_url"):
                chosen = parser.get(section, key, fallback="") or chosen
    return chosen


def _list_pip_files() -> list[Path]:
    home = Path(os.path.expanduser("~"))
    override = os.environ.get("PIP_CONFIG_FILE")
    if override == os.devnull:
        return []
    files = [Path(override)] if override else []
    shared = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    files += [Path(folder) / "pip" / "pip.conf" for folder in shared.split(os.pathsep)] + [Path("/etc/pip.conf")]
    if not (override and Path(override).exists()):
        user = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        files += [home / ".pip" / "pip.conf", user / "pip" / "pip.conf"]
        if sys.platform == "darwin":
            files.append(home / "Library" / "Application Support" / "pip" / "pip.conf")
    return [*files, Path(sys.prefix) / "pip.conf"]
