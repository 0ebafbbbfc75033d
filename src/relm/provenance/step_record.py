"""Write each step's record, `FILE.record.json` next to its first output, and follow records from a result to its sources."""

import contextlib
import datetime
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from relm.artifact import (
    SEAL,
    checked_sidecar,
    read_json,
    read_sealed,
    read_sidecar,
    record_of,
    require_regular_file,
    require_sha256,
    seal,
    sha256_of,
    sidecar_of,
    write_json,
)
from relm.errors import RelmError
from relm.json_shapes import COUNT, FLAG, LINE, NUMBER, TEXT, Nullable, require_shape
from relm.provenance import container, surroundings
from relm.recipes.checkout import read_commit
from relm.recipes.identity import is_source, work_folder
from relm.recipes.plan import Plan
from relm.recipes.redaction import expand_path, mask_value, shorten_path
from relm.recipes.run_folder import DEVICE_FIGURES, WEIGHTS, final_logs

Record = dict[str, Any]
_FILES = [{"path": LINE, "sha256": Nullable(LINE), "size": Nullable(COUNT)}]
_CODE = {"commit": Nullable(LINE), "changed?": Nullable(FLAG), "reason?": TEXT}
_CONTAINER = {"engine": LINE, "role": Nullable(LINE), "image": Nullable(LINE), "digest": Nullable(LINE)}
SHAPE = {
    "step": LINE,
    "argv": [TEXT],
    "started": LINE,
    "ended": LINE,
    "seconds": NUMBER,
    "device": LINE,
    "summary?": TEXT,
    "host": {"processor": LINE, "cores_usable": COUNT, "memory_bytes": COUNT},
    "code": _CODE,
    "software": {"relm": LINE, "*": LINE},
    "container?": Nullable(_CONTAINER),
    "packages?": {"sha256": LINE, "installed": [LINE]},
    "inputs": _FILES,
    "outputs": _FILES,
}
"""The shape of a step's record."""


@contextlib.contextmanager
def record(step: str, inputs: Sequence[Path], outputs: Sequence[Path], argv: Sequence[str]) -> Iterator[Record]:
    """Run a step and, if it succeeds, record its inputs, outputs, duration, code and machine.

    Yield a dict to which the step may add facts, such as ``summary`` or ``device``. Folders are listed without a hash. The
    record contains no host name, user name, home folder or token.
    """
    added: Record = {}
    path_of_record = record_of(outputs[0])
    # Deleted sources that are made again must be the same: the key in their path identifies what they were made from, and how.
    before = read_record(path_of_record) if path_of_record.is_file() and is_source(outputs[0]) else None
    code, read = read_commit(), [describe_file(path) for path in inputs]  # before the step changes them
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    yield added
    seconds = time.monotonic() - clock
    if absent := [str(path) for path in outputs if not path.exists()]:
        raise RelmError(f"step {step}: succeeded but did not make {', '.join(absent)}")
    made = [describe_file(path) for path in outputs]
    if before is not None:
        _require_same(before, made, path_of_record)
    facts = {
        "step": step,
        "argv": list(argv),
        "started": _utc(started),
        "ended": _utc(started + datetime.timedelta(seconds=seconds)),
        "seconds": round(seconds, 3),
        **surroundings.measure_resources(),
        "device": surroundings.device(),
        **added,
        "host": surroundings.host(),
        "code": code,
        "software": surroundings.software(),
        "container": container.container(),
        "packages": container.packages(),
    }
    files = {"inputs": read, "outputs": made}
    write_json(path_of_record, seal(mask_value(facts) | files))


def _require_same(before: Record, made: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Raise RelmError unless files that were made again have the sha256 of the earlier ones, recorded at `path`."""
    recorded = {entry["path"]: entry["sha256"] for entry in before["outputs"]}
    for entry in made:
        if (expected := recorded.get(entry["path"])) not in (None, entry["sha256"]):
            raise RelmError(
                f"{entry['path']}: made again with sha256 {entry['sha256']}; {path} has {expected}, from commit "
                f"{before['code']['commit'] or 'unknown'}, and files were made from that one. Use the code and packages "
                "of that record, or delete the record and run the same snakemake command again"
            )


def require_as_made(path: Path, expected_sha256: str | None = None, *, first_output: Path | None = None) -> None:
    """Raise RelmError unless an input is the file that a step made: the one check of all inputs.

    Compare it with its sidecar or, for a small file without one, with its step's record. A file with neither passes, unless the
    recipe has its sha256.

    Args:
        path: the file; a folder passes.
        expected_sha256: the recipe's sha256 of it.
        first_output: the first output of the step that made it, which has the record; None: the file itself.
    """
    require_regular_file(path)
    if sidecar(path) is not None:
        checked_sidecar(path, expected_sha256)
        return
    record = record_of(first_output or path)
    recorded = {entry["path"]: entry["sha256"] for entry in read_record(record)["outputs"]} if record.is_file() else {}
    expected = recorded.get(shorten_path(path))
    if not path.is_file() or (expected, expected_sha256) == (None, None):
        return
    found = sha256_of(path)
    if expected_sha256 is not None:
        require_sha256(path, found, expected_sha256)
    if expected is not None and found != expected:
        raise RelmError(
            f"{path}: sha256 is {found}, but {record.name} has {expected}: changed since it was made. Delete it, and the same "
            "snakemake command makes it again"
        )


def require_phases_as_made(plan: Plan) -> None:
    """Raise RelmError unless each phase has the logs and attestations in its training record."""
    for phase in plan.phases:
        folder = plan.run_folder / phase
        for path in (*final_logs(folder).values(), folder / DEVICE_FIGURES):
            require_as_made(path, first_output=plan.model_folder(phase) / WEIGHTS)


def read_record(path: Path) -> Record:
    """Return a step's record; raise RelmError if it is damaged or has another shape."""
    remedy = "delete it and the file that it describes, and the same snakemake command makes both"
    content = read_sealed(path, remedy)
    require_shape(content, SHAPE, str(path), remedy)
    return dict(content)


def _utc(moment: datetime.datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def describe_file(path: Path) -> dict[str, Any]:
    """Return path, sha256 and size of a file, null for folders, from its sidecar if that has the same size.

    A file that only another machine has is described by its sidecar.
    """
    described = sidecar(path)
    if not path.is_file():
        return {"path": shorten_path(path), **{key: described[key] if described else None for key in ("sha256", "size")}}
    size = path.stat().st_size
    sha256 = described["sha256"] if described and described.get("size") == size else sha256_of(path)
    return {"path": shorten_path(path), "sha256": sha256, "size": size}


def sidecar(path: Path) -> Record | None:
    """Return the sidecar of a file; None if `FILE.json` is absent or something else."""
    if not sidecar_of(path).is_file():
        return None
    content = read_json(sidecar_of(path))
    if not isinstance(content, dict) or not (SEAL in content or (content.get("file") == path.name and "sha256" in content)):
        return None
    content = read_sidecar(path)
    return content if content.get("file") == path.name else None


# --- from a result to its sources --------------------------------------------------------------------------------------------


def collect(outputs: Sequence[Path]) -> list[Record]:
    """Return the records of all steps that led to ``outputs``, producers before consumers, each once.

    A file of the work folder without a record gets an entry without ``step``, whose ``missing`` says why. Files outside the
    work folder, such as recipes, are sources and have no record.
    """
    search = _Search()
    for path in outputs:
        search.visit(path)
    return search.found


class _Search:
    """A depth-first search that appends each record after those of its inputs."""

    def __init__(self) -> None:
        self.found: list[Record] = []
        self.seen: set[Path] = set()
        self.folders: dict[Path, dict[Path, Path]] = {}

    def visit(self, path: Path) -> None:
        """Append the record of the step that made a file, after those of its inputs."""
        path = _resolve_sidecar(path.absolute())
        path_of_record = self.maker(path)
        key = path_of_record or path
        if key in self.seen:
            return
        self.seen.add(key)
        if path_of_record is None:
            if path.is_relative_to(work_folder().absolute()):
                outputs = [{"path": shorten_path(path), "sha256": None, "size": None}]
                self.found.append({"step": None, "missing": "no record", "inputs": [], "outputs": outputs})
            return
        content = read_record(path_of_record)
        _require_match(content, path, path_of_record)
        for entry in content["inputs"]:
            self.visit(expand_path(entry["path"]))
        self.found.append(content)

    def maker(self, path: Path) -> Path | None:
        """Return the record that lists a file or its folder as an output."""
        for output in (path, path.parent):
            path_of_record = self.records_in(output.parent).get(output)
            if path_of_record is not None:
                return path_of_record
        return None

    def records_in(self, folder: Path) -> dict[Path, Path]:
        """Return output -> record for the records in a folder."""
        if folder not in self.folders:
            self.folders[folder] = {
                _resolve_sidecar(expand_path(entry["path"]).absolute()): path_of_record
                for path_of_record in sorted(folder.glob("*.record.json"))
                for entry in read_record(path_of_record)["outputs"]
            }
        return self.folders[folder]


def _resolve_sidecar(path: Path) -> Path:
    """Return the file that a sidecar describes; any other path unchanged."""
    file = path.with_name(path.name.removesuffix(".json"))
    return file if file != path and file.is_file() and sidecar(file) else path


def _require_match(content: Record, path: Path, path_of_record: Path) -> None:
    """Raise RelmError unless a record has the sha256 of a file's sidecar or, without one, of the file."""
    recorded = [entry["sha256"] for entry in content["outputs"] if entry["path"] == shorten_path(path)]
    if not recorded or not path.is_file():
        return
    described = sidecar(path)
    if recorded[0] != (found := described["sha256"] if described else sha256_of(path)):
        stated = f"{sidecar_of(path).name} has {found}" if described else f"its sha256 is {found}"
        raise RelmError(
            f"{path}: {stated}, but {path_of_record} has {recorded[0]}. Delete them, and the same snakemake command makes them "
            "again"
        )
