"""A store for the files of runs, at any address that fsspec knows: gs://bucket/folder, file:///disk/folder.

`objects/SHA256` are contents, each written once and never over; `runs/` has the indexes. An object has its name only when it is
whole: Google Cloud Storage (gs://) shows an object once it has all its bytes; anywhere else it is written into `partial/`
and moved. Credentials come from the environment (the VM's service account, GOOGLE_APPLICATION_CREDENTIALS).
"""

import contextlib
import errno
import json
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
from fsspec.callbacks import Callback

from relm.artifact import stamp_of
from relm.cluster.bucket.index import Index, IndexName, parse_index_name, read_index
from relm.errors import RelmError
from relm.progress import ProgressBar
from relm.training.kill_points import kill_point

# Stores in which an object appears whole or not at all.
ATOMIC = ("gs", "gcs")
LARGEST_INDEX = 256 << 20  # bytes; an entry has about two hundred
PIECE = 1 << 23  # bytes read and written at once
RIGHTS = (
    "give the account that runs here roles/storage.objectUser and roles/storage.legacyBucketReader on the bucket (on a TPU VM "
    "that is its service account; elsewhere `gcloud auth application-default login`, or GOOGLE_APPLICATION_CREDENTIALS)"
)


class Changed(Exception):
    """The file to be stored has changed or disappeared."""


class Store:
    """One store, by its address."""

    def __init__(self, url: str) -> None:
        """Open the store without a request.

        Raises:
            RelmError: nothing here knows such an address, or there is a secret in it.
        """
        if "@" in url or "?" in url:
            raise RelmError(
                "STORE: an address has no @ and no ?, since what stands there may be a secret and would be shown; give "
                "credentials by the environment, as GOOGLE_APPLICATION_CREDENTIALS does"
            )
        self.url = url.rstrip("/")
        # Otherwise gcsfs first requests the kind of bucket from Google's storage control by gRPC.
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        with self._report_errors("cannot be opened"):
            self._files, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
            self._root = str(root).rstrip("/")
        protocols = self._files.protocol
        self._is_atomic = bool(set(ATOMIC) & set((protocols,) if isinstance(protocols, str) else protocols))

    def objects(self) -> dict[str, int]:
        """Return sha256 -> size of all objects."""
        with self._report_errors("cannot be listed"):
            found = self._files.find(f"{self._root}/objects", detail=True)
        return {path.rsplit("/", 1)[-1]: int(told["size"]) for path, told in found.items()}

    def indexes(self) -> list[IndexName]:
        """Return the indexes of all runs, oldest first."""
        with self._report_errors("cannot be listed"):
            found = self._files.find(f"{self._root}/runs")
        names = [parse_index_name(path.rpartition(f"{self._root}/runs/")[2]) for path in found]
        return sorted((name for name in names if name), key=lambda name: name.time)

    def index(self, name: IndexName) -> Index:
        """Return an index by its name.

        Raises:
            RelmError: it cannot be read, or is damaged.
        """
        with self._report_errors(f"{name} cannot be read"), self._files.open(f"{self._root}/{name}", "rb") as file:
            content = file.read(LARGEST_INDEX + 1)
        where = f"{self.url}/{name}"
        if len(content) > LARGEST_INDEX:
            raise RelmError(
                f"{where}: has more than {LARGEST_INDEX >> 20} MiB, so it is no index; delete it and push the run again"
            )
        try:
            told = json.loads(content)
        except (ValueError, RecursionError):
            raise RelmError(f"{where}: damaged: not valid JSON; push the run again") from None
        return read_index(told, where, name)

    def write_index(self, index: Index, time: str) -> None:
        """Add an index."""
        content = json.dumps(index.document(), indent=1).encode() + b"\n"
        self._write(str(IndexName(index.name, index.fingerprint, time)), content)

    def put_bytes(self, sha256: str, content: bytes) -> None:
        """Store bytes that are in memory."""
        self._write(f"objects/{sha256}", content)

    def put(self, sha256: str, path: Path, stamp: list[int], bar: "ProgressBar") -> None:
        """Store a file.

        Args:
            stamp: `relm.artifact.stamp_of` the file when it was hashed.
            bar: shows the bytes sent.
        """
        target = f"{self._root}/objects/{sha256}"
        with self._report_errors(f"objects/{sha256} cannot be written"):
            if self._is_atomic:
                self._put_at_once(path, target, bar)
            else:
                target = self._put_aside(path, sha256, bar)
            if not _is_the_same(path, stamp):
                self._files.rm_file(target)
                raise Changed(path)
            if not self._is_atomic:
                self._settle(target, f"objects/{sha256}")

    def pieces(self, sha256: str) -> Iterator[bytes]:
        """Yield the bytes of an object; the caller compares their hash.

        Raises:
            RelmError: it is absent, or cannot be read.
        """
        path = f"{self._root}/objects/{sha256}"
        with self._report_errors(f"objects/{sha256} cannot be read"), self._files.open(path, "rb") as file:
            while piece := file.read(PIECE):
                yield piece

    def _put_at_once(self, path: Path, target: str, bar: "ProgressBar") -> None:
        try:
            self._files.put_file(str(path), target, callback=_Advance(bar), consistency="md5")
        except FileNotFoundError:
            if not path.exists():
                raise Changed(path) from None
            raise

    def _put_aside(self, path: Path, sha256: str, bar: "ProgressBar") -> str:
        """Write a file under a temporary name and return that name."""
        partial = f"{self._root}/partial/{sha256}-{uuid.uuid4().hex}"
        try:
            source = open(path, "rb")  # noqa: SIM115 - closed by the next block
        except FileNotFoundError:
            raise Changed(path) from None
        self._files.makedirs(f"{self._root}/partial", exist_ok=True)
        with source, self._files.open(partial, "wb") as file:
            while piece := source.read(PIECE):
                file.write(piece)
                bar.update(len(piece))
                kill_point("push-piece")
        return partial

    def _write(self, name: str, content: bytes) -> None:
        with self._report_errors(f"{name} cannot be written"):
            if self._is_atomic:
                self._files.pipe_file(f"{self._root}/{name}", content, consistency="md5")
                return
            partial = f"{self._root}/partial/{uuid.uuid4().hex}"
            self._files.makedirs(f"{self._root}/partial", exist_ok=True)
            self._files.pipe_file(partial, content)
            self._settle(partial, name)

    def _settle(self, partial: str, name: str) -> None:
        """Move a complete object to its name."""
        kill_point("push-whole")
        self._files.makedirs(f"{self._root}/{name}".rpartition("/")[0], exist_ok=True)
        self._files.mv(partial, f"{self._root}/{name}")

    @contextlib.contextmanager
    def _report_errors(self, what: str) -> Iterator[None]:
        """Turn the errors of any store's client into RelmError."""
        try:
            yield
        except (RelmError, Changed, GeneratorExit):
            raise
        except Exception as error:
            raise RelmError(f"{self.url}: {what}: {explain_error(error)}") from error


class _Advance(Callback):  # type: ignore[misc]
    """Updates a progress bar with fsspec's reports of a transfer."""

    def __init__(self, bar: "ProgressBar") -> None:
        super().__init__()
        self._bar, self._done = bar, 0

    def absolute_update(self, value: int) -> None:
        self._bar.update(value - self._done)
        self._done = value

    def relative_update(self, inc: int = 1) -> None:
        self.absolute_update(self._done + inc)


def _is_the_same(path: Path, stamp: list[int]) -> bool:
    try:
        return stamp_of(path) == stamp
    except FileNotFoundError:
        return False


def explain_error(error: Exception) -> str:
    """Return the meaning of a store client's error and what to do, without any part of an address after a question mark."""
    said = re.sub(r"\?\S+", "?...", str(error).strip().partition("\n")[0])
    if isinstance(error, ImportError):
        package = "gcsfs" if "gcsfs" in said else said
        return (
            f"{package} is not installed in this environment; that of the TPU has gcsfs: `make DEVICE=tpu environment`, or "
            "`make .venv-tpu/made-from` beside another one, then .venv-tpu/bin/relm"
        )
    if isinstance(error, ValueError) and "Protocol not known" in said:
        return f"{said}; give an address such as gs://bucket/folder or file:///disk/folder"
    if type(error).__module__.startswith("google.auth"):
        return f"there are no credentials for it here ({type(error).__name__}); {RIGHTS}"
    if isinstance(error, PermissionError) or getattr(error, "code", None) in (401, 403) or said.startswith("Forbidden"):
        return f"no right to ({said}); {RIGHTS}"
    if isinstance(error, FileNotFoundError):
        return f"there is no such bucket, folder or object ({said}); correct the address, or make the bucket (docs/tpu.md)"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "the disk is full; make room and give the same command again: what is there is not sent again"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({os.fspath(error.filename) if error.filename else 'no file named'})"
    return f"{type(error).__name__}: {said}; give the same command again: what is there is not sent again"
