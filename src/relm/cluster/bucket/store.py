"""A store for the files of runs, at any address that fsspec knows: gs://bucket/folder, file:///disk/folder.

`objects/SHA256` holds contents, each written once; `runs/NAME/FINGERPRINT/TIME.json` lists the files of one push. Objects
appear whole: Google Cloud Storage (gs://) shows an object once it has all its bytes; elsewhere it is written into `partial/`
and moved. Credentials come from the environment.
"""

import contextlib
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import fsspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from relm.artifact import stamp_of
from relm.errors import RelmError
from relm.recipes.run_name import RUN_NAME
from relm.training.kill_points import kill_point

# Stores in which an object appears only when it is complete.
ATOMIC = {"gs", "gcs"}
LARGEST_INDEX = 256 << 20  # bytes; an entry has about two hundred
PIECE = 1 << 23  # bytes read at once
RIGHTS = (
    "give the account that runs here roles/storage.objectUser and roles/storage.legacyBucketReader on the bucket (on a TPU VM "
    "that is its service account; elsewhere `gcloud auth application-default login`, or GOOGLE_APPLICATION_CREDENTIALS)"
)
AGAIN = "run the same command again: files in the store are not sent again"
_INDEX_PATH = re.compile(rf"(?P<name>{RUN_NAME})/(?P<fingerprint>[0-9a-f]{{12}})/(?P<time>\d{{8}}T\d{{6}}\.\d{{6}}Z)\.json")


class Changed(Exception):
    """The file to be stored has changed or disappeared."""


def _require_printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("expected a name without control characters")
    return name


class Entry(BaseModel):
    """One file in an index."""

    model_config = ConfigDict(strict=True, frozen=True)

    path: Annotated[str, Field(max_length=1000), AfterValidator(_require_printable)]
    """`work/...` or `results/...`."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0, le=1 << 50)]  # no run has a file of a petabyte


class Index(BaseModel):
    """The files of one push of a run."""

    model_config = ConfigDict(strict=True, frozen=True)

    format: Literal[1] = 1
    name: str
    fingerprint: str
    files: list[Entry]


class IndexName(NamedTuple):
    """The name of an index: a run, its fingerprint, and the time of the push."""

    name: str
    fingerprint: str
    time: str

    def __str__(self) -> str:
        return f"runs/{self.name}/{self.fingerprint}/{self.time}.json"


class Store:
    """One store, by its address."""

    def __init__(self, url: str) -> None:
        """Open the store without a request."""
        if "@" in url or "?" in url:
            raise RelmError(
                "STORE: an address must not contain @ or ?, since a secret there would be shown; set credentials in the "
                "environment, for example with GOOGLE_APPLICATION_CREDENTIALS"
            )
        self.url = url.rstrip("/")
        # Otherwise gcsfs first asks Google's storage control for the kind of bucket, by gRPC.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        with self._report_errors("cannot be opened"):
            self._files, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
            self._root = str(root).rstrip("/")
        protocols = self._files.protocol
        self._is_atomic = bool(ATOMIC & set((protocols,) if isinstance(protocols, str) else protocols))

    def objects(self) -> dict[str, int]:
        """Return sha256 -> size of all objects."""
        with self._report_errors("cannot be listed"):
            found = self._files.find(f"{self._root}/objects", detail=True)
        return {path.rsplit("/", 1)[-1]: int(facts["size"]) for path, facts in found.items()}

    def indexes(self) -> list[IndexName]:
        """Return the names of all indexes, oldest first."""
        with self._report_errors("cannot be listed"):
            found = self._files.find(f"{self._root}/runs")
        names = [_INDEX_PATH.fullmatch(path.rpartition(f"{self._root}/runs/")[2]) for path in found]
        return sorted((IndexName(**name.groupdict()) for name in names if name), key=lambda name: name.time)

    def index(self, name: IndexName) -> Index:
        """Read an index and check its shape, because anybody with access to the bucket may have changed it."""
        with self._report_errors(f"{name} cannot be read"), self._files.open(f"{self._root}/{name}", "rb") as file:
            content = file.read(LARGEST_INDEX + 1)
        try:
            index = Index.model_validate_json(content[:LARGEST_INDEX])
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False, include_context=False)[0]
            found = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".removeprefix(": ")
            remedy = "push the run again, or pull with the version of relm that pushed it"
            raise RelmError(f"{self.url}/{name}: damaged: {found}; {remedy}") from None
        if (index.name, index.fingerprint) != (name.name, name.fingerprint):
            raise RelmError(f"{self.url}/{name}: lists another run's files; nothing was pulled. Push the run again")
        return index

    def write_index(self, index: Index, time: str) -> None:
        """Add an index."""
        name = IndexName(index.name, index.fingerprint, time)
        self._write(str(name), index.model_dump_json(indent=1).encode() + b"\n")

    def put_bytes(self, sha256: str, content: bytes) -> None:
        """Store bytes that are in memory."""
        self._write(f"objects/{sha256}", content)

    def put(self, sha256: str, path: Path, stamp: list[int]) -> None:
        """Store a file whose stamp (`relm.artifact.stamp_of`) was this when it was hashed; raise Changed if it is different."""
        with self._new_object(f"objects/{sha256}") as target:
            try:
                self._files.put_file(str(path), target, **self._verified())
                is_same = stamp_of(path) == stamp
            except FileNotFoundError:
                if path.exists():
                    raise
                is_same = False
            if not is_same:
                with contextlib.suppress(FileNotFoundError):
                    self._files.rm_file(target)
                raise Changed(path)

    def pieces(self, sha256: str) -> Iterator[bytes]:
        """Yield the bytes of an object; the caller checks their hash."""
        path = f"{self._root}/objects/{sha256}"
        with self._report_errors(f"objects/{sha256} cannot be read"), self._files.open(path, "rb") as file:
            while piece := file.read(PIECE):
                yield piece

    def remove(self, names: Iterable[str]) -> None:
        """Remove indexes or objects, if they exist."""
        for name in names:
            with self._report_errors(f"{name} cannot be removed"), contextlib.suppress(FileNotFoundError):
                self._files.rm_file(f"{self._root}/{name}")

    def _write(self, name: str, content: bytes) -> None:
        with self._new_object(name) as target:
            self._files.pipe_file(target, content, **self._verified())

    def _verified(self) -> dict[str, str]:
        """Return the option that checks the MD5 of the bytes that arrived."""
        return {"consistency": "md5"} if self._is_atomic else {}

    @contextlib.contextmanager
    def _new_object(self, name: str) -> Iterator[str]:
        """Yield the path to write an object to; it gets its name when the block ends without an error."""
        target = f"{self._root}/{name}"
        with self._report_errors(f"{name} cannot be written"):
            if self._is_atomic:
                yield target
                return
            partial = f"{self._root}/partial/{uuid.uuid4().hex}"
            self._files.makedirs(f"{self._root}/partial", exist_ok=True)
            yield partial
            kill_point("push-whole")
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._files.mv(partial, target)

    @contextlib.contextmanager
    def _report_errors(self, what: str) -> Iterator[None]:
        """Turn the errors of any store's client into RelmError."""
        try:
            yield
        except (RelmError, Changed):
            raise
        except Exception as error:
            raise RelmError(f"{self.url}: {what}: {explain_error(error)}") from error


def explain_error(error: Exception) -> str:
    """Return what a store client's error means and what to do, without queries of addresses, which may hold secrets."""
    said = re.sub(r"\?\S+", "?...", str(error).strip().partition("\n")[0])
    if isinstance(error, ImportError):
        return (
            f"{'gcsfs' if 'gcsfs' in said else said} is not installed here; the TPU environment has gcsfs: `make "
            "DEVICE=tpu environment`, or, next to another environment, `make .venv-tpu/made-from` and .venv-tpu/bin/relm"
        )
    if "Protocol not known" in said:
        return f"{said}; give an address such as gs://bucket/folder or file:///disk/folder"
    if re.search(r"request time|RequestTimeTooSkewed|reasonable timeframe", said):
        return f"this machine's clock differs from the store's ({said}); set it, then {AGAIN}"
    if re.search(r"(?i)(token|credentials?)\b.*\bexpired|ExpiredToken", said):
        return f"the credentials have expired ({said}); renew them, then {AGAIN}"
    if type(error).__module__.startswith("google.auth"):
        return f"no credentials here ({type(error).__name__}); {RIGHTS}"
    if isinstance(error, PermissionError) or getattr(error, "code", None) in (401, 403) or said.startswith("Forbidden"):
        return f"permission denied ({said}); {RIGHTS}"
    if isinstance(error, FileNotFoundError):
        return f"no such bucket, folder or object ({said}); correct the address, or make the bucket (docs/tpu.md)"
    return f"{type(error).__name__}: {said}; {AGAIN}"
