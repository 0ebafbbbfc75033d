"""Write files that are whole or absent, and the sidecars that describe them.

A step writes each output under a temporary name, flushes it to disk, renames it, and then writes the sidecar ``FILE.json``: the
file's sha256, its size and what identifies it. Snakemake's rules take the sidecar as their input and the big file as
``ancient()``: touching or copying the big file reruns nothing, but a change of content does.
"""

import contextlib
import hashlib
import json
import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from relm.errors import RelmError

LARGEST_JSON = 1 << 30
"""The size limit of a JSON file in bytes; a run of ten thousand shards needs a tenth."""
DEEPEST_JSON = 100
WRITTEN_BACK = 1 << 23
SEAL = "facts_sha256"
"""The last key of a sidecar and of a step's record: the sha256 of all other keys, which exposes a changed digit."""


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sidecar_of(path: Path) -> Path:
    """Return ``FILE.json`` for ``FILE``."""
    return Path(f"{path}.json")  # Path.with_name rejects `.`, which a user may pass as a file


def record_of(output: Path) -> Path:
    """Return ``FILE.record.json`` for the first output of a step."""
    return Path(f"{output}.record.json")  # as above


def require_regular_file(path: Path) -> None:
    """Raise RelmError for a pipe, a socket or a device: reading may never end, and replacing it does harm."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise RelmError(f"{path}: is a named pipe, a socket or a device; expected a file. Choose another path, or move it away")


def require_usable_partial(partial: Path) -> None:
    """Raise RelmError unless a partial file is absent, or is a regular file that an interrupted attempt left.

    Its name is predictable: somebody's link there would redirect the bytes to another file, and a pipe would block.
    """
    try:
        mode = partial.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe"}
        raise RelmError(
            f"{partial}: is {kinds.get(stat.S_IFMT(mode), 'a socket or a device')}; expected no file, or the file that an "
            "interrupted attempt left. Move it away, and run again"
        )


def _open_new(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL | os.O_NOFOLLOW, 0o666)


def sha256_of(path: Path) -> str:
    """Return the hexadecimal sha256 of a file's content."""
    require_regular_file(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class HashingWriter:
    """Append to a file, and keep the sha256 of all bytes so far.

    Every `WRITTEN_BACK` bytes it asks the system to start writing them to the disk, so the final flush has little left.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self._digest = hashlib.sha256()
        self._size = self._written_back = 0

    @property
    def sha256(self) -> str:
        """Return the hexadecimal sha256 of all bytes so far."""
        return self._digest.hexdigest()

    def write(self, content: bytes | memoryview) -> None:
        """Append some bytes."""
        self.file.write(content)
        self._digest.update(content)
        self._size += memoryview(content).nbytes
        if self._size - self._written_back >= WRITTEN_BACK:
            self.file.flush()
            with contextlib.suppress(OSError, AttributeError):  # only advice, which some systems and files do not support
                os.posix_fadvise(
                    self.file.fileno(), self._written_back, self._size - self._written_back, os.POSIX_FADV_DONTNEED
                )
            self._written_back = self._size


def stamp_of(path: Path) -> list[int]:
    """Return a file's size, times of change, inode and device; while these stay, it need not be hashed again."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


@contextlib.contextmanager
def atomic_file(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a temporary file for writing; it is renamed to ``path`` when the block ends without an error.

    An exception removes the temporary file; after a SIGKILL, the next attempt removes it. Of two processes that write one file
    at once, the first to begin fails, and never renames the other's unfinished bytes.

    Raises:
        RelmError: the file cannot be written, another process writes it too, or the path or the temporary file is a pipe or a
            device.
    """
    require_regular_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    encoding, newline = (None, None) if "b" in mode else ("utf-8", "\n")
    try:
        require_usable_partial(partial)
        partial.unlink(missing_ok=True)
        file = open(partial, mode, encoding=encoding, newline=newline, opener=_open_new)  # noqa: SIM115 - closed below
    except OSError as error:
        raise RelmError(f"{path}: cannot be written: {error.strerror}; nothing was changed") from error
    own = os.dup(file.fileno())  # while open, its inode cannot be reused for another file
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not _is_open_as(partial, own):
            raise RelmError(f"{path}: another process is writing it; wait for that one, and run again")
        os.replace(partial, path)
    except BaseException as error:
        if _is_open_as(partial, own):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise RelmError(f"{path}: cannot be written: {error.strerror}; nothing was changed") from error
        raise
    finally:
        os.close(own)


def _is_open_as(path: Path, descriptor: int) -> bool:
    """Return True if a path still leads to an open file, and not to another one."""
    with contextlib.suppress(OSError):
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    return False


def sync_path(path: Path) -> None:
    """Flush a file's content or a folder's names to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Write readable JSON atomically, with keys in the given order."""
    with atomic_file(path, "w") as file:
        json.dump(value, file, indent=1, ensure_ascii=False, allow_nan=False)
        file.write("\n")


def read_json(path: Path, *, finite: bool = True) -> Any:
    """Return the content of a JSON file that a step wrote.

    Args:
        finite: reject NaN and numbers beyond the range of floats, which relm never writes.

    Raises:
        RelmError: the file is absent, too large, not JSON, nested too deeply, or has a number that is not finite.
    """
    require_regular_file(path)
    try:
        if (size := path.stat().st_size) > LARGEST_JSON:
            raise RelmError(f"{path}: has {size:,} bytes, expected at most {LARGEST_JSON:,}; delete it, relm did not write it")
        content = json.loads(path.read_text(encoding="utf-8"))
        _require_plain(content, finite)
    except FileNotFoundError:
        raise RelmError(f"{path}: no such file; run the step that makes it") from None
    except (ValueError, RecursionError) as error:  # also thousands of digits or of nested brackets
        raise RelmError(f"{path}: not valid JSON ({error}); delete it and run the step that makes it again") from None
    return content


def _require_plain(content: Any, finite: bool) -> None:
    """Raise ValueError for JSON that is nested too deeply or, with `finite`, has a number that is not finite."""
    level, depth = [content], 0
    while level:
        if (depth := depth + 1) > DEEPEST_JSON:
            raise ValueError(f"nested more than {DEEPEST_JSON} deep")
        if finite and any(isinstance(value, float) and not math.isfinite(value) for value in level):
            raise ValueError("a number is not finite")
        inner = ((value.values() if isinstance(value, dict) else value) for value in level if isinstance(value, dict | list))
        level = [value for values in inner for value in values]


def seal(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts with the sha256 of their canonical JSON as the last key, replacing an earlier one."""
    plain = {key: value for key, value in facts.items() if key != SEAL}
    return {**plain, SEAL: _digest(plain)}


def read_sealed(path: Path, remedy: str) -> Any:
    """Return the content of a JSON file without its seal, if it has one.

    Raises:
        RelmError: as in `read_json`, or the content was changed after it was sealed; ends with `remedy`.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not content:
        return content
    *_, last = content
    plain = {key: value for key, value in content.items() if key != (SEAL if SEAL in content else last)}
    is_intact = _digest(plain) == content.get(SEAL, content[last])
    if is_intact != (SEAL in content):  # without a seal, or the seal's name was changed
        raise RelmError(f"{path}: changed since it was made: {SEAL} is not the sha256 of the other keys; {remedy}")
    return plain if is_intact else content


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(facts).encode("utf-8", "surrogatepass")).hexdigest()


def write_sidecar(path: Path, **facts: Any) -> dict[str, Any]:
    """Write ``FILE.json`` for a finished file: name, sha256, size in bytes, and ``facts``, which must be reproducible."""
    return write_hashed_sidecar(path, sha256_of(path), **facts)


def write_hashed_sidecar(path: Path, sha256: str, /, **facts: Any) -> dict[str, Any]:
    """Write the sidecar of a file whose sha256 is already known, as from `HashingWriter`."""
    sidecar = seal({"file": path.name, "sha256": sha256, "size": path.stat().st_size, **facts})
    write_json(sidecar_of(path), sidecar)
    return sidecar


def companions(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return `files` for a sidecar: the sha256 and size of each file that belongs to the described one."""
    return {path.name: {"sha256": sha256_of(path), "size": path.stat().st_size} for path in sorted(paths)}


def checked_sidecar(path: Path, expected_sha256: str | None = None) -> Mapping[str, Any]:
    """Return the sidecar of a file after comparing the file and its companions with it.

    Args:
        expected_sha256: the recipe's sha256 of a download; None: only the sidecar decides.

    Raises:
        RelmError: the file or a companion is absent, or differs from the sidecar or the recipe.
    """
    sidecar = read_sidecar(path)
    if not path.exists():
        raise RelmError(
            f"{path}: no such file, although {sidecar_of(path).name} describes it; delete that sidecar and run again"
        )
    size = path.stat().st_size
    if size != sidecar["size"]:
        raise RelmError(f"{path}: has {size} bytes, its sidecar says {sidecar['size']}: truncated or changed; delete both")
    found = sha256_of(path)
    if found != sidecar["sha256"]:
        raise RelmError(
            f"{path}: sha256 is {found}, its sidecar says {sidecar['sha256']}: changed since it was made; delete both"
        )
    if expected_sha256 is not None:
        require_sha256(path, found, expected_sha256)
    for name, expected in sidecar.get("files", {}).items():
        _require_companion(path, path.with_name(name), expected)
    return sidecar


def work_folder() -> Path:
    """Return the folder of intermediate products: ``RELM_WORK``, or ``work``."""
    return Path(os.environ.get("RELM_WORK") or "work")


def require_sha256(path: Path, found: str, expected: str) -> None:
    """Raise RelmError unless a file has the recipe's sha256."""
    if found != expected:
        made = sidecar_of(path).exists() and Path(os.path.abspath(path)).is_relative_to(os.path.abspath(work_folder()))
        if not made:  # the user's file
            raise RelmError(f"{path}: sha256 is {found}, expected {expected}; use the right file, or correct the hash")
        raise RelmError(
            f"{path}: sha256 is {found}, the recipe expects {expected}. Delete it and {sidecar_of(path).name}, and run the "
            "snakemake command again to download it"
        )


def read_sidecar(path: Path) -> dict[str, Any]:
    """Return the sidecar of a file; raise RelmError if it is absent, changed, or of another shape."""
    sidecar = read_sealed(sidecar_of(path), "delete it and run the step that makes it again")
    if not _describes_a_file(sidecar) or not _names_companions(sidecar.get("files", {})):
        raise RelmError(f"{sidecar_of(path)}: not a sidecar of relm; delete it and run the step that makes it again")
    return dict(sidecar)


def _describes_a_file(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("sha256"), str):
        return False
    size = entry.get("size")
    return isinstance(size, int) and not isinstance(size, bool) and size >= 0


def _names_companions(files: Any) -> bool:
    """Return True if `files` maps plain names, without folders, to descriptions of files."""
    if not isinstance(files, dict):
        return False
    return all(Path(name).name == name and name not in ("", "..") and _describes_a_file(files[name]) for name in files)


def _restore_token_ids(path: Path, expected: Mapping[str, Any]) -> None:
    """Write a lost `generation_config.json` again, if the token ids in `config.json` give the same bytes.

    Only models that generate text have the file, so no rule declares it, and Snakemake does not copy it to other machines.
    """
    with contextlib.suppress(OSError, RelmError):
        config = read_json(path.with_name("config.json"))
        ids = {key: value for key, value in config.items() if key.endswith("_token_id") and value is not None}
        content = f"{json.dumps(ids, indent=1)}\n".encode()
        if hashlib.sha256(content).hexdigest() == expected["sha256"]:
            with atomic_file(path) as file:
                file.write(content)


def _require_companion(path: Path, companion: Path, expected: Mapping[str, Any]) -> None:
    sidecar = sidecar_of(path)
    if companion.name == "generation_config.json" and not os.path.lexists(companion):
        _restore_token_ids(companion, expected)
    if not companion.is_file():
        fault = f"no such file, although {sidecar.name} names it"
    elif (size := companion.stat().st_size) != expected["size"]:
        fault = f"has {size} bytes, {sidecar.name} says {expected['size']}"
    elif (found := sha256_of(companion)) != expected["sha256"]:
        fault = f"sha256 is {found}, {sidecar.name} says {expected['sha256']}"
    else:
        return
    raise RelmError(
        f"{companion}: {fault}; put back the {companion.name} that belongs to {path.name}, or delete {sidecar} "
        "and run the step that makes them again"
    )
