"""Files of releases on a Python package index (PEP 503 and PEP 691), at the address that pip is configured with."""

import configparser
import json
import os
import posixpath
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import requests

from relm.corpus.index_pages import IndexPage, choose_login, fetch_index_page
from relm.corpus.locations import Check, Location, redact_url
from relm.corpus.source_faults import SourceFault
from relm.recipes.remote_files import Source

PYPI = "https://pypi.org/simple"
SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"


def locate_on_package_index(source: Source, session: requests.Session) -> Location:
    project, version = str(source.pypi).split("==", 1)
    index = find_package_index()
    page_url = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', project).lower()}/"
    page = fetch_index_page(session, page_url, f"{SIMPLE_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1")
    links = list(_parse_json_links(page) if "json" in page.kind else _parse_html_links(page))
    for name, link, digest in links:
        if name == source.file:
            url = urljoin(page.url, link)
            checks = (Check("sha256", digest, "the package index", key=None),) if digest else ()
            return Location(url, checks, choose_login(index, url))
    same_version = [name for name, _, _ in links if version in name]
    raise SourceFault(
        f"the package index lists no {source.file}; of {version} it lists: {', '.join(same_version) or 'nothing'}"
    )


def _parse_json_links(page: IndexPage) -> Iterator[tuple[str, str, str | None]]:
    """Yield (file name, link, sha256) of a PEP 691 page."""
    try:
        for entry in json.loads(page.content)["files"]:
            yield str(entry["filename"]), str(entry["url"]), entry.get("hashes", {}).get("sha256")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceFault(f"{redact_url(page.url)}: not a simple index page in JSON ({type(error).__name__})") from None


class _Anchors(HTMLParser):
    """Collects the links of a PEP 503 page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for key, value in attrs if tag == "a" and key == "href" and value]


def _parse_html_links(page: IndexPage) -> Iterator[tuple[str, str, str | None]]:
    """Yield (file name, link, sha256) of a PEP 503 page."""
    anchors = _Anchors()
    anchors.feed(page.content.decode("utf-8", errors="replace"))
    for href in anchors.links:
        link, fragment = urldefrag(href)
        algorithm, _, digest = fragment.partition("=")
        yield posixpath.basename(unquote(urlsplit(link).path)), link, digest if algorithm == "sha256" else None


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
