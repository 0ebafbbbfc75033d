"""The HTTP address of each file of a recipe, with the digests that its bytes must have.

A package index, the npm registry and the Hugging Face hub are queried as by their own clients (PEP 503 and PEP 691; the
registry's abbreviated metadata; `resolve/REVISION/FILE`), at the address that those clients are configured with. Nothing of a
package is ever executed. Messages never show an address's password or query, which may hold tokens.
"""

import base64
import binascii
import configparser
import contextlib
import json
import os
import posixpath
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit, urlunsplit

import requests
import urllib3

from relm.errors import RelmError
from relm.recipes.remote_files import Source

PYPI, NPM, HUGGING_FACE = "https://pypi.org/simple", "https://registry.npmjs.org", "https://huggingface.co"
SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"
NPM_ABBREVIATED = "application/vnd.npm.install-v1+json"
CONNECT_TIMEOUT, READ_TIMEOUT = 15.0, 60.0  # seconds; reading: between two blocks, not for the whole file
# Keys below files.NAME of a dataset: the sha256 of the file, and that of what one source sends, which may be an archive.
FILE_HASH, SOURCE_HASH = "sha256", "sources[].sha256"
LARGEST_METADATA = 64 << 20  # bytes of an index page; the largest simple pages are about 20 MB


class SourceFault(RelmError):
    """This source does not have the file; the next one may."""


class WrongHash(SourceFault):
    """The bytes of a source are not those whose sha256 the recipe has."""

    def __init__(self, message: str, key: str = FILE_HASH) -> None:
        """Name what is wrong, and the key that has the expected hash."""
        super().__init__(message)
        self.key = key


class TemporaryFault(SourceFault):
    """This source may have the file on another attempt."""


class Unreachable(TemporaryFault):
    """No connection at all: another attempt helps less than after a fault in mid-transfer."""


class Check(NamedTuple):
    """A digest that received bytes must have."""

    algorithm: str
    digest: str
    """In hexadecimal digits."""
    stated_by: str = "the recipe"
    key: str | None = FILE_HASH
    """The key of the recipe that states it; None: an index does."""


@dataclass(frozen=True)
class Location:
    """One address, and the digests known for its bytes before they are fetched."""

    url: str
    checks: tuple[Check, ...] = ()
    auth: requests.auth.AuthBase | None = None


@dataclass(frozen=True)
class IndexPage:
    """An index page: its address after redirects, its Content-Type, its content."""

    url: str
    kind: str
    content: bytes


class BearerToken(requests.auth.AuthBase):
    """Sends a token in the Authorization header, which `requests` drops on a redirect to another host."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


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
    """Return the location of a source; a package is looked up in its index or registry.

    Raises:
        SourceFault: there is no such release or file, or the index contradicts the recipe.
        TemporaryFault: the index did not answer.
    """
    if source.pypi:
        found = _locate_on_package_index(source, session)
    elif source.npm:
        found = _locate_on_npm_registry(source, session)
    elif source.huggingface:
        found = _locate_on_hugging_face(source)
    else:
        url = str(source.url)
        found = Location(
            url, auth=read_hugging_face_token() if _parse_origin(url) == _parse_origin(read_hugging_face_endpoint()) else None
        )
    if urlsplit(found.url).scheme not in ("http", "https"):
        raise SourceFault(f"expected an http or https address, found {redact_url(found.url)}")
    if source.sha256:
        for check in found.checks:
            if check.algorithm == "sha256" and check.digest != source.sha256:
                raise WrongHash(f"{check.stated_by} has sha256 {check.digest}, the recipe expects {source.sha256}", SOURCE_HASH)
        return Location(found.url, (*found.checks, Check("sha256", source.sha256, key=SOURCE_HASH)), found.auth)
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


# --- the Python package index ----------------------------------------------------------------------------------------------


def _locate_on_package_index(source: Source, session: requests.Session) -> Location:
    project, version = str(source.pypi).split("==", 1)
    index = find_package_index()
    page_url = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', project).lower()}/"
    page = _fetch_index_page(session, page_url, f"{SIMPLE_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1")
    links = list(_parse_json_links(page) if "json" in page.kind else _parse_html_links(page))
    for name, link, digest in links:
        if name == source.file:
            url = urljoin(page.url, link)
            checks = (Check("sha256", digest, "the package index", key=None),) if digest else ()
            return Location(url, checks, _choose_login(index, url))
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


# --- the npm registry ------------------------------------------------------------------------------------------------------


def _locate_on_npm_registry(source: Source, session: requests.Session) -> Location:
    name, version = str(source.npm).rsplit("@", 1)
    registry = find_npm_registry()
    url = f"{registry.rstrip('/')}/{quote(name, safe='@')}"
    page = _fetch_index_page(session, url, f"{NPM_ABBREVIATED}, application/json;q=0.5")
    try:
        versions = json.loads(page.content)["versions"]
        if version not in versions:
            raise SourceFault(f"the npm registry has no {source.npm}; it has {', '.join(versions) or 'no version'}")
        release = versions[version]["dist"]
        tarball, integrity = urljoin(page.url, str(release["tarball"])), str(release.get("integrity", ""))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceFault(f"{redact_url(url)}: not the metadata of an npm package ({type(error).__name__})") from None
    return Location(tarball, tuple(_parse_integrity(integrity)), _choose_login(registry, tarball))


def _parse_integrity(integrity: str) -> Iterator[Check]:
    """Yield the sha512 digests of a Subresource Integrity string (W3C); weaker ones are skipped."""
    for word in integrity.split():
        algorithm, _, value = word.partition("-")
        if algorithm == "sha512":
            try:
                digest = base64.b64decode(value.split("?")[0], validate=True).hex()
                yield Check("sha512", digest, "the npm registry", key=None)
            except binascii.Error:
                raise SourceFault(f"the npm registry has an integrity that is not base64: {word[:100]}") from None


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


# --- the Hugging Face hub --------------------------------------------------------------------------------------------------


def _locate_on_hugging_face(source: Source) -> Location:
    kind = "datasets/" if source.repository_type == "dataset" else ""
    revision, file = quote(str(source.revision), safe=""), quote(str(source.file))
    url = f"{read_hugging_face_endpoint()}/{kind}{source.huggingface}/resolve/{revision}/{file}"
    return Location(url, auth=read_hugging_face_token())


def read_hugging_face_endpoint() -> str:
    """Return HF_ENDPOINT, or the public hub's address, without a slash at its end."""
    return (os.environ.get("HF_ENDPOINT") or HUGGING_FACE).rstrip("/")


def read_hugging_face_token() -> BearerToken | None:
    """Return the token of HF_TOKEN, if it is set.

    Raises:
        RelmError: it holds characters that no header can have; the message does not show it.
    """
    token = os.environ.get("HF_TOKEN", "").strip()
    if not token:
        return None
    if not re.fullmatch(r"[!-~]+", token):
        raise RelmError("HF_TOKEN: holds spaces or characters that no token has; set it to the token alone, or unset it")
    return BearerToken(token)


# --- requests and their errors ---------------------------------------------------------------------------------------------


def open_location(session: requests.Session, location: Location, headers: dict[str, str]) -> requests.Response:
    """Return a streamed response of status 200, 206 or 416, with the bytes as stored (no transfer compression requested).

    Raises:
        Unreachable: no connection, or no answer in time.
        TemporaryFault: 429 or a server error.
        SourceFault: any other answer.
    """
    try:
        response = session.get(
            location.url,
            headers={"Accept-Encoding": "identity", **headers},
            auth=location.auth,
            stream=True,
            timeout=(CONNECT_TIMEOUT, READ_TIMEOUT),
        )
    except (requests.exceptions.InvalidSchema, requests.exceptions.InvalidURL, requests.TooManyRedirects) as error:
        raise SourceFault(f"cannot be requested ({type(error).__name__})") from None
    except requests.RequestException as error:
        raise Unreachable(explain_connection_error(error)) from None
    if response.status_code in (200, 206, 416):
        return response
    status = f"HTTP {response.status_code} {response.reason or ''}".rstrip()
    response.close()
    if response.status_code in (408, 429) or response.status_code >= 500:
        raise TemporaryFault(status)
    gated = response.status_code in (401, 403) and _parse_origin(location.url) == _parse_origin(read_hugging_face_endpoint())
    hint = "; the repository is private or gated: set HF_TOKEN to a token that may read it" if gated else ""
    raise SourceFault(f"{status}{hint}")


def _fetch_index_page(session: requests.Session, url: str, accept: str) -> IndexPage:
    try:
        with open_location(session, Location(url), {"Accept": accept, "Accept-Encoding": "gzip, identity"}) as response:
            if response.status_code != 200:
                raise SourceFault(f"HTTP {response.status_code} where an index page was expected")
            content = b""
            for block in response.iter_content(1 << 20):
                content += block
                if len(content) > LARGEST_METADATA:
                    raise SourceFault(f"over {LARGEST_METADATA:,} bytes where an index page was expected")
            return IndexPage(response.url or url, response.headers.get("Content-Type", ""), content)
    except requests.RequestException as error:
        raise TemporaryFault(f"{redact_url(url)}: {explain_connection_error(error)}") from None
    except SourceFault as fault:
        raise type(fault)(f"{redact_url(url)}: {fault}") from None


def redact_url(url: str) -> str:
    """Return an address without its user, password, query and fragment, which may hold secrets.

    >>> redact_url("https://me:secret@host:8080/a/b.zip?signature=x#y")
    'https://host:8080/a/b.zip'
    """
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rsplit("@", 1)[-1], parts.path, "", ""))


def explain_connection_error(error: BaseException) -> str:
    """Return the meaning of an exception of `requests` or `urllib3`, without its text, which shows whole addresses."""
    kinds: list[tuple[Any, str]] = [
        ((requests.ConnectTimeout,), f"no connection within {CONNECT_TIMEOUT:g} s"),
        ((requests.ReadTimeout, urllib3.exceptions.ReadTimeoutError, TimeoutError), f"no data for {READ_TIMEOUT:g} s"),
        ((requests.exceptions.ProxyError, urllib3.exceptions.ProxyError), "the proxy does not answer or refuses"),
        ((requests.exceptions.SSLError, urllib3.exceptions.SSLError), "no trusted connection (TLS)"),
        ((urllib3.exceptions.ProtocolError,), "the connection was cut"),
    ]
    causes = list(_list_causes(error))
    for types, words in kinds:
        if any(isinstance(cause, types) for cause in causes):
            reason = next((str(cause.verify_message) for cause in causes if hasattr(cause, "verify_message")), "")
            return f"{words}: {reason}" if reason else words
    system = [cause.strerror for cause in causes if isinstance(cause, OSError) and cause.strerror]
    return f"the connection failed ({system[-1] if system else type(causes[-1]).__name__})"


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and all exceptions it wraps, the innermost last."""
    seen: list[BaseException] = []
    pending: list[Any] = [error]
    while pending:
        cause = pending.pop(0)
        if isinstance(cause, BaseException) and cause not in seen:
            seen.append(cause)
            yield cause
            pending += [getattr(cause, "reason", None), cause.__cause__, cause.__context__, *cause.args]


def _parse_origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _choose_login(index: str, url: str) -> requests.auth.AuthBase | None:
    """Return the user and password in an index's address, for files on the same host."""
    parts = urlsplit(index)
    if parts.username is None or _parse_origin(index) != _parse_origin(url):
        return None
    return requests.auth.HTTPBasicAuth(unquote(parts.username), unquote(parts.password or ""))
