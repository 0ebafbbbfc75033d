"""What a registry says of an image's tag and digest, by the OCI distribution specification 1.1 and Docker's token flow
(https://distribution.github.io/distribution/spec/auth/token/). Only manifests are asked for, no layer.

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

from relm.corpus.sources import CONNECT_TIMEOUT, BearerToken, in_words, shown
from relm.errors import RelmError

DOCKER_HUB, DOCKER_HUB_API = "docker.io", "registry-1.docker.io"
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
READ_TIMEOUT = 30.0  # seconds; a manifest is a few kB
LARGEST_MANIFEST = 4 << 20  # bytes; the least that the specification has registries take
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class OutOfReach(RelmError):
    """The registry does not answer from here; another machine may ask it."""


@dataclass(frozen=True)
class Repository:
    """Where the manifests of an image lie: a registry's host, with its port if it has one, and a name in it."""

    host: str
    name: str

    @property
    def address(self) -> str:
        """Of its manifests; without TLS on this machine alone, as Docker does."""
        host = DOCKER_HUB_API if self.host == DOCKER_HUB else self.host
        return f"{'http' if is_this_machine(host) else 'https'}://{host}/v2/{self.name}/manifests"


def repository(image: str) -> Repository:
    """The repository of an image's name as Docker reads it: without a host it is Docker Hub's, with one word `library/`'s.

    >>> repository("python"), repository("gcr.io/tpu-pytorch/xla")
    (Repository(host='docker.io', name='library/python'), Repository(host='gcr.io', name='tpu-pytorch/xla'))

    Raises:
        RelmError: no image can have this name; a tag or a digest is none of the name.
    """
    first, slash, rest = image.partition("/")
    has_host = slash and ("." in first or ":" in first or first == "localhost")
    host, name = (first, rest) if has_host else (DOCKER_HUB, image)
    if host == DOCKER_HUB and "/" not in name:
        name = f"library/{name}"
    if not _REPOSITORY.fullmatch(name) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*(:\d+)?", host):
        raise RelmError(f"image {image!r}: expected a name like docker.io/library/python, without tag and digest")
    return Repository(host, name)


def is_this_machine(host: str) -> bool:
    """Whether an address is a loopback one."""
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def challenge(header: str) -> tuple[str, dict[str, str]]:
    """Scheme, in lower case, and parameters of a `WWW-Authenticate` header (RFC 9110, 11.6.1).

    >>> challenge('Bearer realm="https://auth.example.org/token",service="registry",scope="repository:a/b:pull,push"')[1]["scope"]
    'repository:a/b:pull,push'
    """
    scheme, _, rest = header.strip().partition(" ")
    parameters: dict[str, str | None] = requests.utils.parse_dict_header(rest)  # type: ignore[no-untyped-call]
    return scheme.lower(), {key.lower(): value for key, value in parameters.items() if value is not None}


@dataclass(frozen=True)
class Answer:
    """What a registry says of a tag and of the digest that somebody noted for it."""

    tag_digest: str
    noted: Literal["none", "same", "platform", "moved", "absent"]
    """``same``: the tag names it; ``platform``: it is one platform's image of the tag; ``moved``: the registry has it, the tag
    names another one now; ``absent``: the registry does not have it."""
    platform: str = ""

    @property
    def confirms(self) -> bool:
        """Whether the noted digest is an image of this tag."""
        return self.noted in ("same", "platform")


class Registry:
    """One repository's manifests, asked with the token that its registry hands out."""

    def __init__(self, image: str, session: requests.Session | None = None) -> None:
        self.image, self.repository = image, repository(image)
        self.session = session or requests.Session()
        self.token = ""

    def answer(self, tag: str, digest: str | None) -> Answer:
        """What the registry says of ``tag`` and of ``digest``, if one is noted.

        Raises:
            OutOfReach: the registry does not answer.
            RelmError: there is no such tag, it needs a login, or what comes is no registry's answer.
        """
        if not _TAG.fullmatch(tag):
            raise RelmError(f"image {self.image}: {tag!r} is no tag")
        asked = self.ask("HEAD", tag)
        if asked is None:
            raise RelmError(f"{self.repository.host} has no image {self.image}:{tag}; correct the image or its tag")
        found = self.digest(asked, tag)
        if digest is None or found == digest:
            return Answer(found, "none" if digest is None else "same")
        if asked.headers.get("Content-Type", "").partition(";")[0] in INDEXES:
            for entry in self.manifest(found).get("manifests", []):
                if entry.get("digest") == digest:
                    return Answer(found, "platform", _platform(entry.get("platform", {})))
        return Answer(found, "absent" if self.ask("HEAD", digest) is None else "moved")

    def digest(self, asked: requests.Response, reference: str) -> str:
        """The digest of an answer: its header's or, of a registry that sends none, that of the manifest itself."""
        told = asked.headers.get("Docker-Content-Digest")
        if told is None:
            got = self.ask("GET", reference)
            return f"sha256:{hashlib.sha256(_content(got)).hexdigest()}"
        if not _SHA256.fullmatch(told):
            raise RelmError(f"{self.repository.host} gives the digest {told[:80]!r} of {self.image}; expected sha256:...")
        return told

    def manifest(self, digest: str) -> dict[str, Any]:
        """The manifest of a digest, which its bytes must have."""
        got = self.ask("GET", digest)
        if got is None:
            raise RelmError(
                f"{self.repository.host} says that {self.image} is {digest}, and does not have that; ask again later"
            )
        content = _content(got)
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
            raise RelmError(f"{self.repository.host} gives other bytes for {self.image}@{digest}; ask again, then distrust it")
        manifest: dict[str, Any] = json.loads(content)
        return manifest

    def ask(self, method: str, reference: str) -> requests.Response | None:
        """The answer to one request, after a token was fetched if the registry wants one; None: there is no such manifest."""
        url, headers = f"{self.repository.address}/{reference}", {"Accept": ", ".join((*INDEXES, *MANIFESTS))}
        response = self._request(method, url, headers)
        if response.status_code == 401 and not self.token:
            self._fetch_token(response.headers.get("WWW-Authenticate", ""))
            response = self._request(method, url, headers)
        if response.status_code == 404:
            return None
        if response.status_code in (401, 403):  # Docker Hub says so of a repository that does not exist as well
            raise RelmError(
                f"{self.repository.host} has no image {self.image} that it shows to everybody; correct the name, or give a "
                "login in ~/.netrc"
            )
        if response.status_code == 429 or response.status_code >= 500:
            raise OutOfReach(f"{self.repository.host}: HTTP {response.status_code} {response.reason}")
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        if response.status_code != 200 or kind not in (*INDEXES, *MANIFESTS):
            what = f"HTTP {response.status_code} {response.reason}, {kind or 'nothing'}"
            raise RelmError(f"{self.repository.host}: {what}; expected a manifest of {self.image}: is this a registry?")
        return response

    def _fetch_token(self, header: str) -> None:
        scheme, told = challenge(header)
        realm = told.get("realm", "")
        if scheme != "bearer" or not realm:
            raise RelmError(
                f"{self.repository.host} wants a login of the kind {scheme or 'unknown'!r} for {self.image}: give it one"
            )
        if urlsplit(realm).scheme != "https" and not is_this_machine(self.repository.host):
            raise RelmError(f"{self.repository.host} sends us to {shown(realm)} for a token; expected an https address")
        asked = {key: value for key, value in told.items() if key in ("service", "scope")}
        response = self._request("GET", realm, {}, asked)
        try:
            said = response.json() if response.status_code == 200 else {}
            self.token = str(said.get("token") or said.get("access_token") or "")
        except (ValueError, AttributeError):
            self.token = ""
        if not self.token:
            raise RelmError(f"{shown(realm)}: gives no token for {self.image} (HTTP {response.status_code})")

    def _request(
        self, method: str, url: str, headers: dict[str, str], parameters: dict[str, str] | None = None
    ) -> requests.Response:
        timeout, auth = (CONNECT_TIMEOUT, READ_TIMEOUT), BearerToken(self.token) if self.token else None
        try:
            return self.session.request(
                method, url, params=parameters, headers=headers, auth=auth, timeout=timeout, stream=True
            )
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise OutOfReach(f"{urlsplit(url).netloc.rsplit('@')[-1]}: {in_words(error)}") from None


def _content(response: requests.Response | None) -> bytes:
    """The body, which is a manifest's: small."""
    content = b"" if response is None else response.raw.read(LARGEST_MANIFEST + 1, decode_content=True)
    if not 0 < len(content) <= LARGEST_MANIFEST:
        raise RelmError(f"a manifest of {len(content)} bytes is none")
    return content


def _platform(told: dict[str, Any]) -> str:
    return "/".join(str(told[key]) for key in ("os", "architecture", "variant") if told.get(key))


def by_hand(image: str, tag: str) -> list[str]:
    """Commands that print the digest of a tag, for a machine from which the registry can be reached."""
    return [
        f"skopeo inspect --format '{{{{.Digest}}}}' docker://{image}:{tag}",
        f"docker buildx imagetools inspect {image}:{tag} --format '{{{{.Manifest.Digest}}}}'",
    ]
