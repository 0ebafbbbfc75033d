"""Download a recipe's file from the first source with the right bytes: the user's folders, then each source in order.

The destination appears whole, by rename, once it has the recipe's sha256; nothing else about a source is trusted. After an
interruption the received bytes stay in its folder, and the download resumes from them. A file without a sha256 is compared with
its first download.
"""

import contextlib
import hashlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import requests
from tqdm import tqdm

from relm.artifact import atomic_file, checked_sidecar, sha256_of, write_sidecar
from relm.corpus.archive import read_content
from relm.corpus.download.first_download import explain_record, pin, write_record
from relm.corpus.download.http_requests import Session
from relm.corpus.download.source_faults import SourceFault, Throttled, WrongHash
from relm.corpus.download.sources import describe_source, list_kept_names
from relm.corpus.download.transfer import PartialFile, transfer
from relm.errors import RelmError
from relm.limits import require_disk
from relm.recipes.files.remote_files import RemoteFile, Source

# Seconds before throttled sources (HTTP 429) are tried again, doubled each time; a source may ask for more.
FIRST_PAUSE, LONGEST_PAUSE = 15.0, 300.0
LONGEST_WAIT = 2 * 3600.0  # seconds after which they are given up
COMPRESSIONS = {".xz": "xz", ".gz": "gzip", ".bz2": "bzip2"}


def download(name: str, remote: RemoteFile, destination: Path, named_in: str = "its recipe") -> str:
    """Make `destination` and its sidecar from the folders of RELM_MIRROR or the first source that gives the right bytes.

    A correct file that exists is left unchanged. The sidecar is the same for every source. RELM_MIRROR is searched by the
    file's `name` in its recipe; `named_in` is the YAML file with its sha256, for messages. Return a sentence with the source of
    the bytes, their number and the speed.

    Raises RelmError if no source gave the right bytes, with each one's reason, or the disk is or would be full.
    """
    asked, remote = remote, pin(remote, destination)
    if _is_there(remote, destination):
        return f"{name}: already there with the right sha256 ({destination.stat().st_size:,} bytes); nothing was downloaded"
    started = time.monotonic()
    faults: list[tuple[str, SourceFault]] = []
    with _explain_disk_faults(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        with PartialFile(destination) as part:
            origin = _try_mirrors(name, remote, destination, faults) or _try_sources(remote, part, faults)
            if origin is None:
                has_wrong_hash = asked.is_pinned and any(isinstance(fault, WrongHash) for _, fault in faults)
                place = f"below files.{name} in {named_in}"
                advice = (
                    f"If the publisher states the other sha256, correct it and the size {place}\n" if has_wrong_hash else ""
                )
                raise RelmError(_format_failure(name, remote, faults, advice) + explain_record(asked, destination))
            write_sidecar(destination)
            part.clear()
            first = "" if remote.is_pinned else f"; {write_record(destination, origin)}"
    seconds = max(time.monotonic() - started, 1e-3)
    size = destination.stat().st_size
    return f"{name}: {size:,} bytes from {origin} in {seconds:.1f} s ({size / seconds / 1e6:.1f} MB/s){first}"


def _is_there(remote: RemoteFile, destination: Path) -> bool:
    """Return whether the destination is the wanted file, and write its sidecar if that is missing or wrong."""
    if not remote.is_pinned or not destination.is_file() or not remote.may_have(destination.stat().st_size):
        return False
    with contextlib.suppress(RelmError, KeyError, TypeError):
        return bool(checked_sidecar(destination)["sha256"] == remote.sha256)
    if sha256_of(destination) != remote.sha256:
        return False
    write_sidecar(destination)
    return True


@contextlib.contextmanager
def _explain_disk_faults(destination: Path) -> Iterator[None]:
    """Say what is kept after a disk error; faults of a source never arrive here as OSError."""
    try:
        yield
    except (OSError, RelmError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        part = PartialFile(destination).path
        kept = f"resumes from {part}" if part.exists() else "starts from the beginning"
        raise RelmError(
            f"{destination}: cannot be written: {cause.strerror}. Make room, or move the work folder with RELM_WORK. "
            f"The same command then {kept}."
        ) from cause


def _format_failure(name: str, remote: RemoteFile, faults: Sequence[tuple[str, SourceFault]], advice: str) -> str:
    """Return the message about a file that no source gave."""
    return (
        f"{name}: no source gave the {remote.format_size()} with sha256 {remote.sha256}:\n"
        + "".join(f"  - {place}: {fault}\n" for place, fault in faults)
        + (f"It is made by: {remote.made_by}\n" if remote.made_by else "")
        + advice
        + f"To provide it by hand, put {' or '.join(_list_ways(name, remote))} (plain files also as .xz, .gz or .bz2) into a "
        + "folder and set RELM_MIRROR to that folder; its content is checked as well"
    )


# --- the user's own folders ------------------------------------------------------------------------------------------------


def _list_ways(name: str, remote: RemoteFile) -> dict[str, list[tuple[str | None, str | None]]]:
    """Return file name in a mirror -> ways to read it: (member of the archive, compression)."""
    ways: dict[str, list[tuple[str | None, str | None]]] = {name: [(None, None)]}
    for file, member, compression in (kept for source in remote.sources for kept in list_kept_names(source)):
        if (member, compression) not in ways.setdefault(file, []):
            ways[file].append((member, compression))
    return ways


def _try_mirrors(name: str, remote: RemoteFile, destination: Path, faults: list[tuple[str, SourceFault]]) -> str | None:
    """Try every file with a matching name below the folders of RELM_MIRROR; return the right one."""
    folders = [Path(os.path.expanduser(folder)) for folder in os.environ.get("RELM_MIRROR", "").split(os.pathsep) if folder]
    for folder in folders:
        if not folder.is_dir():
            raise RelmError(f"RELM_MIRROR: expected folders, found {folder}; correct or unset it")
    candidates = [found for folder in folders for found in _find_candidates(folder, name, remote)]
    if folders and not candidates:
        faults.append((f"RELM_MIRROR ({', '.join(map(str, folders))})", SourceFault("no file with a matching name")))
    for path, member, compression in candidates:
        try:
            if member is None and compression is None and path.is_file():
                _require_size(path.stat().st_size, remote)
            require_disk(destination.parent, remote.largest_size, destination.name)
            _store(read_content(path, member, compression, remote.largest_size), remote, destination)
            return str(path)
        except SourceFault as fault:
            faults.append((str(path), fault))
    return None


def _require_size(size: int, remote: RemoteFile) -> None:
    if not remote.may_have(size):
        raise SourceFault(f"has {size:,} bytes, expected {remote.format_size()}")


def _find_candidates(folder: Path, name: str, remote: RemoteFile) -> Iterator[tuple[Path, str | None, str | None]]:
    """Yield (path, member, compression) of every file with a matching name below a folder, sorted; links are not followed."""
    ways = _list_ways(name, remote)
    for parent, folders, found in os.walk(folder):
        folders.sort()
        for file in sorted(found):
            for member, compression in ways.get(file, []):
                yield Path(parent, file), member, compression
            stem, suffix = os.path.splitext(file)
            if suffix in COMPRESSIONS and (None, None) in ways.get(stem, []):
                yield Path(parent, file), None, COMPRESSIONS[suffix]


def _store(blocks: Iterable[bytes], remote: RemoteFile, destination: Path) -> None:
    """Write blocks to the destination if they have the wanted sha256, otherwise raise SourceFault and change nothing."""
    digest, size = hashlib.sha256(), 0
    with atomic_file(destination) as file:
        for block in blocks:
            size += len(block)
            if size > remote.largest_size:
                raise SourceFault(f"has more than the expected {remote.largest_size:,} bytes")
            digest.update(block)
            file.write(block)
        if not remote.is_pinned:
            _require_size(size, remote)
        if remote.is_pinned and digest.hexdigest() != remote.sha256:
            raise WrongHash(f"has {size:,} bytes with sha256 {digest.hexdigest()}, expected sha256 {remote.sha256}")


# --- the sources of the recipe ---------------------------------------------------------------------------------------------


def _try_sources(remote: RemoteFile, part: PartialFile, faults: list[tuple[str, SourceFault]]) -> str | None:
    """Try each source, and throttled ones again; return a description of the one that was right."""
    deadline, pause = time.monotonic() + LONGEST_WAIT, FIRST_PAUSE
    sources = dict(enumerate(remote.sources))
    with Session() as session:
        while True:
            throttled: dict[int, Throttled] = {}
            for number, source in sources.items():
                try:
                    _try_source(source, remote, part, session)
                    return describe_source(source)
                except Throttled as fault:
                    throttled[number] = fault
                except SourceFault as fault:
                    faults.append((describe_source(source), fault))
            sources = {number: sources[number] for number in throttled}
            wait = min((max(pause, fault.seconds or 0) for fault in throttled.values()), default=0)
            if not throttled or time.monotonic() + wait > deadline:
                faults += [(describe_source(sources[number]), fault) for number, fault in throttled.items()]
                return None
            named = ", ".join(f"{describe_source(sources[number])}: {fault}" for number, fault in throttled.items())
            tqdm.write(f"{named}; trying again in {wait:,.0f} s, no longer than {LONGEST_WAIT / 3600:g} h", file=sys.stderr)
            time.sleep(wait)
            pause = min(2 * pause, LONGEST_PAUSE)


def _try_source(source: Source, remote: RemoteFile, part: PartialFile, session: requests.Session) -> None:
    for attempt in range(2):
        transfer(source, part, session, remote)
        try:
            _accept(source, remote, part)
        except SourceFault:
            # The part may have pieces of two versions of the file: try once more from the beginning.
            again = part.is_resumed and attempt == 0
            part.clear()
            if not again:
                raise
        else:
            return


def _accept(source: Source, remote: RemoteFile, part: PartialFile) -> None:
    """Make the destination of the fetched bytes if they are right."""
    if source.sha256:
        _require_sha256(part, source.sha256)
    if source.member is not None or source.decompress is not None:
        _store(read_content(part.path, source.member, source.decompress, remote.largest_size), remote, part.destination)
        return
    if remote.is_pinned:
        _require_sha256(part, remote.sha256)
    else:
        _require_size(part.size, remote)
    part.become_destination()


def _require_sha256(part: PartialFile, expected: str) -> None:
    with part.open() as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise WrongHash(f"the received bytes have sha256 {found}, the recipe expects {expected}")
