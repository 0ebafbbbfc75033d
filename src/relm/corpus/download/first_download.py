"""Record the sha256 of a first download, for files whose recipes have none because nobody published one.

`FILE.first_download.json` stays when FILE is deleted, so that a later download must give the same bytes.
"""

import datetime
from pathlib import Path
from typing import Any

from relm.artifact import checked_sidecar, read_sealed, seal, sha256_of, write_json
from relm.errors import RelmError
from relm.json_shapes import COUNT, LINE, require_shape
from relm.recipes.files.remote_files import RemoteFile


def record_of(destination: Path) -> Path:
    """Return the path of the record of a file's first download."""
    return destination.with_name(f"{destination.name}.first_download.json")


def pin(remote: RemoteFile, destination: Path) -> RemoteFile:
    """Return the file with the sha256 and size in the record of its first download, unless its recipe has a sha256."""
    record = record_of(destination)
    if remote.is_pinned:
        return remote
    if not record.exists() and destination.exists():
        _restore_record(destination)
    if not record.exists():
        return remote
    facts = _read_record(record)
    return remote.model_copy(update={"sha256": facts["sha256"], "size": facts["size"], "at_most": None})


def _restore_record(destination: Path) -> None:
    """Restore a deleted record from the file and its sidecar, so that no other file replaces this one."""
    try:
        checked_sidecar(destination)
    except RelmError as error:
        raise RelmError(
            f"{destination}: its record of the first download, {record_of(destination).name}, was deleted, and its sidecar "
            f"does not match ({error}). Restore the record, or delete the file to record the next download as the first"
        ) from None
    write_record(destination, "an earlier download, whose record was deleted")


def write_record(destination: Path, origin: str) -> str:
    """Record the downloaded file as the first of its name, and return the lines that pin it in the recipe."""
    facts = {"file": destination.name, "sha256": sha256_of(destination), "size": destination.stat().st_size, "source": origin}
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    write_json(record_of(destination), seal({**facts, "date": date}))
    return (
        f"first download, recorded in {record_of(destination)}; to pin it for everybody, write into the dataset's or "
        f"the test's file `{destination.name}: {{sha256: {facts['sha256']}, size: {facts['size']}}}`, which gives runs on a "
        "dataset another fingerprint"
    )


def explain_record(remote: RemoteFile, destination: Path) -> str:
    """Return a remedy if no source gives the file of the first download; empty if the recipe has the sha256."""
    if remote.is_pinned or not record_of(destination).exists():
        return ""
    facts = _read_record(record_of(destination))
    return (
        f"\nThis is the sha256 of the first download, on {facts['date']} from {facts['source']}, recorded in "
        f"{record_of(destination)}. If the publisher changed the file, delete that record; runs of the old file "
        "cannot be repeated then. Otherwise restore the old file from a copy, as above"
    )


def _read_record(record: Path) -> dict[str, Any]:
    remedy = "restore it from a copy, or delete it to record the next download as the first"
    facts: dict[str, Any] = read_sealed(record, remedy)
    require_shape(facts, {"sha256": LINE, "size": COUNT, "source": LINE, "date": LINE}, str(record), remedy)
    return facts
