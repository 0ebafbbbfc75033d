"""The digests that a registry has for a tag, by the OCI distribution specification 1.1 and Docker's token flow
(https://distribution.github.io/distribution/spec/auth/token/). Only manifests are requested, no layer, and no engine is needed:
podman does not answer the requests that the `docker` package has for it.

A login is taken from `~/.netrc`, as `requests` does; public images need none.
"""

import hashlib
import ipaddress
import json
import re
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import requests
import urllib3

from relm.corpus.connection_errors import CONNECT_TIMEOUT, explain_connection_error
from relm.corpus.locations import BearerToken, redact_url
from relm.errors import RelmError

DOCKER_HUB, DOCKER_HUB_API = "docker.io", "registry-1.docker.io"
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
READ_TIMEOUT = 30.0  # seconds; a manifest is a few kB
LARGEST_MANIFEST = 4 << 20  # bytes; the least that the specification has registries take
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")


class OutOfReach(RelmError):
    """The registry does not answer from here; another machine may reach it."""


@dataclass(frozen=True)
class Repository:
    """A repository of images: a registry's host, with its port if it has one, and a name in it."""

    host: str
    name: str

    @property
    def address(self) -> str:
        """The address of its manifests; without TLS on this machine alone, as Docker does."""
        host = DOCKER_HUB_API if self.host == DOCKER_HUB else self.host
        return f"{'http' if is_loopback(host) else 'https'}://{host}/v2/{self.name}/manifests"


def parse_repository(image: str) -> Repository:
    """Return the repository of an image's name as Docker reads it: without a host Docker Hub's, of one word `library/`'s.

    >>> parse_repository("python"), parse_repository("gcr.io/tpu-pytorch/xla")
    (Repository(host='docker.io', name='library/python'), Repository(host='gcr.io', name='tpu-pytorch/xla'))
    """
    first, slash, rest = image.partition("/")
    has_host = slash and ("." in first or ":" in first or first == "localhost")
    host, name = (first, rest) if has_host else (DOCKER_HUB, image)
    if host == DOCKER_HUB and "/" not in name:
        name = f"library/{name}"
    if not _REPOSITORY.fullmatch(name) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*(:\d+)?", host):
        raise RelmError(f"image {image!r}: expected a name like docker.io/library/python, without tag and digest")
    return Repository(host, name)


def is_loopback(host: str) -> bool:
    """Return whether an address is a loopback one."""
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def parse_challenge(header: str) -> tuple[str, dict[str, str]]:
    """Return scheme, in lower case, and parameters of a `WWW-Authenticate` header (RFC 9110, 11.6.1).

    >>> parse_challenge('Bearer realm="https://auth.example.org/token",service="registry",scope="repository:a/b:pull,push"')[1]["scope"]
    'repository:a/b:pull,push'
    """
    scheme, _, rest = header.strip().partition(" ")
    parameters: dict[str, str | None] = requests.utils.parse_dict_header(rest)  # type: ignore[no-untyped-call]
    return scheme.lower(), {key.lower(): value for key, value in parameters.items() if value is not None}


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


class ImageRegistry:
    """The manifests of one repository, requested with the token that its registry hands out."""

    def __init__(self, image: str) -> None:
        self.image, self.repository = image, parse_repository(image)
        self.session = requests.Session()
        self.token = ""

    def compare(self, tag: str, digest: str | None) -> Answer:
        """Return the digest of ``tag``, compared with ``digest`` if the lock has one."""
        response = self.request_manifest("HEAD", tag)
        if response is None:
            raise RelmError(f"{self.repository.host} has no image {self.image}:{tag}; correct the image or its tag")
        found = self.read_digest(response, tag)
        if digest is None or found == digest:
            return Answer(found, "none" if digest is None else "same")
        if response.headers.get("Content-Type", "").partition(";")[0] in INDEXES:
            for entry in self.fetch_manifest(found).get("manifests", []):
                if entry.get("digest") == digest:
                    return Answer(found, "platform", _format_platform(entry.get("platform", {})))
        return Answer(found, "absent" if self.request_manifest("HEAD", digest) is None else "moved")

    def read_digest(self, response: requests.Response, reference: str) -> str:
        """Return a response's digest: its header's or, where the registry sends none, that of the manifest itself."""
        digest = response.headers.get("Docker-Content-Digest")
        if digest is None:
            return f"sha256:{hashlib.sha256(_read_body(self.request_manifest('GET', reference))).hexdigest()}"
        if not _SHA256.fullmatch(digest):
            raise RelmError(f"{self.repository.host} gives the digest {digest[:80]!r} of {self.image}; expected sha256:...")
        return digest

    def fetch_manifest(self, digest: str) -> dict[str, Any]:
        """Return the manifest of a digest, which its bytes must have."""
        response = self.request_manifest("GET", digest)
        if response is None:
            raise RelmError(f"{self.repository.host} names {digest} for {self.image}, and does not have it; ask again later")
        content = _read_body(response)
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
            raise RelmError(
                f"{self.repository.host} sends {self.image}@{digest} with other bytes than its digest's; do not trust it"
            )
        manifest: dict[str, Any] = json.loads(content)
        return manifest

    def request_manifest(self, method: str, reference: str) -> requests.Response | None:
        """Return the response to one request, with a token if the registry wants one; None: there is no such manifest."""
        url, headers = f"{self.repository.address}/{reference}", {"Accept": ", ".join((*INDEXES, *MANIFESTS))}
        response = self._request(method, url, headers)
        if response.status_code == 401 and not self.token:
            self._fetch_token(response.headers.get("WWW-Authenticate", ""))
            response = self._request(method, url, headers)
        if response.status_code == 404:
            return None
        if response.status_code in (401, 403):  # Docker Hub answers so for a repository that does not exist, too
            raise RelmError(
                f"{self.repository.host} has no image {self.image} that it shows to everybody; correct the name, or give a "
                "login in ~/.netrc"
            )
        if response.status_code == 429 or response.status_code >= 500:
            raise OutOfReach(f"{self.repository.host}: HTTP {response.status_code} {response.reason}")
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        if response.status_code != 200 or kind not in (*INDEXES, *MANIFESTS):
            what = f"HTTP {response.status_code} {response.reason}, {kind or 'nothing'}"
            raise RelmError(f"{self.repository.host}: {what}; expected a manifest of {self.image}; is this a registry?")
        return response

    def _fetch_token(self, header: str) -> None:
        scheme, parameters = parse_challenge(header)
        realm = parameters.get("realm", "")
        if scheme != "bearer" or not realm:
            raise RelmError(
                f"{self.repository.host} wants a login of the kind {scheme or 'unknown'!r} for {self.image}; see ~/.netrc"
            )
        if urlsplit(realm).scheme != "https" and not is_loopback(self.repository.host):
            raise RelmError(f"{self.repository.host} names {redact_url(realm)} for a token; expected an https address")
        query = {key: value for key, value in parameters.items() if key in ("service", "scope")}
        response = self._request("GET", realm, {}, query)
        try:
            content = response.json() if response.status_code == 200 else {}
            self.token = str(content.get("token") or content.get("access_token") or "")
        except (ValueError, AttributeError):
            self.token = ""
        if not self.token:
            raise RelmError(f"{redact_url(realm)}: there is no token for {self.image} (HTTP {response.status_code})")

    def _request(
        self, method: str, url: str, headers: dict[str, str], parameters: dict[str, str] | None = None
    ) -> requests.Response:
        timeout, auth = (CONNECT_TIMEOUT, READ_TIMEOUT), BearerToken(self.token) if self.token else None
        try:
            return self.session.request(
                method, url, params=parameters, headers=headers, auth=auth, timeout=timeout, stream=True
            )
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise OutOfReach(f"{urlsplit(url).netloc.rsplit('@')[-1]}: {explain_connection_error(error)}") from None


def _read_body(response: requests.Response | None) -> bytes:
    """Return a manifest's bytes, which are few."""
    content = b"" if response is None else response.raw.read(LARGEST_MANIFEST + 1, decode_content=True)
    if not 0 < len(content) <= LARGEST_MANIFEST:
        raise RelmError(f"the manifest has {len(content)} bytes; expected 1 to {LARGEST_MANIFEST}")
    return content


def _format_platform(platform: dict[str, Any]) -> str:
    return "/".join(str(platform[key]) for key in ("os", "architecture", "variant") if platform.get(key))


def format_commands(image: str, tag: str) -> list[str]:
    """Return commands that print the digest of a tag, for a machine from which the registry can be reached."""
    return [
        f"skopeo inspect --format '{{{{.Digest}}}}' docker://{image}:{tag}",
        f"docker buildx imagetools inspect {image}:{tag} --format '{{{{.Manifest.Digest}}}}'",
    ]
