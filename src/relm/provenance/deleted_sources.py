"""Downloads and documents that `snakemake --config shards_on_disk=N` deleted after use; their records stay."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from relm.artifact import record_of
from relm.errors import RelmError
from relm.provenance.step_record import read_record
from relm.recipes.identity import is_source
from relm.recipes.redaction import expand_path, shorten_path

SHOWN = 6
"""The number of files that are listed by name."""


def recorded_sha256(source: Path) -> str | None:
    """Return the recorded sha256 of a download or of documents, even after deletion; None without a record."""
    first = source.with_name(source.name.replace(".held_out.", ".train."))  # `extract` makes both and writes one record
    for record in filter(Path.is_file, map(record_of, (source, first))):
        for entry in read_record(record)["outputs"]:
            if entry["path"] == shorten_path(source) and isinstance(entry["sha256"], str):
                return entry["sha256"]
    return None


def find_deleted(records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return path -> sha256 of deleted sources whose records are still in the work folder."""
    outputs = [entry for record in records for entry in record["outputs"] if entry["sha256"]]
    return {entry["path"]: entry["sha256"] for entry in outputs if _is_deleted(expand_path(entry["path"]), entry["sha256"])}


def _is_deleted(path: Path, sha256: str) -> bool:
    try:
        return is_source(path) and not path.exists() and recorded_sha256(path) == sha256
    except RelmError:
        return False


def describe_deleted(deleted: Mapping[str, str]) -> list[str]:
    """Return lines on deleted sources: the count, and the first ones with their sha256."""
    if not deleted:
        return []
    count = "1 source was" if len(deleted) == 1 else f"{len(deleted):,} sources were"
    listed = [f"  {path}: sha256 {sha256}" for path, sha256 in list(deleted.items())[:SHOWN]]
    more = [f"  and {len(deleted) - SHOWN:,} more, listed in provenance.json"]
    return [f"{count} deleted after use; recorded:", *listed, *(more if len(deleted) > SHOWN else [])]
