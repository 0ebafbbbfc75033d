"""The files of `results/NAME`, or of a run's own folder, beside the sha256 that was recorded of each. Imports no torch.

`ro-crate-metadata.json` has the sha256 of every other published file; it cannot have its own. Each step's record has those of
what the step read and made: beside its output and, of a published run, in `provenance.json`.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from relm.artifact import checked_sidecar, read_json, sha256_of, sidecar_of
from relm.errors import RelmError
from relm.recipes.plan import Plan
from relm.recipes.run_folder import METADATA, PROVENANCE, RECORDS, WEIGHTS
from relm.replay.attested_run import AttestedRun, published_name
from relm.training.model_files import require_no_others

Record = Mapping[str, Any]


def wrong_files(run: AttestedRun) -> list[str]:
    """Return a sentence for each file of a run that is absent, or another one than was recorded.

    Raises:
        RelmError: what records the hashes is absent or not what relm writes.
    """
    return _wrong_published(run) if run.is_published else _wrong_in_run_folder(run.plan)


def files_in_words(run: AttestedRun) -> list[str]:
    """Return what `wrong_files` compared, and what nothing recorded, as sentences for a verdict."""
    told = []
    if run.is_published:
        crate = run.folder / METADATA
        told.append(
            f"{len(_published_hashes(crate))} files of {run.folder} have the sha256 that {METADATA} records, which cannot "
            f"record its own: {sha256_of(crate)}"
        )
    elif count := sum(1 for _ in _outputs(_records_beside(run.plan), run.plan)):
        told.append(f"{count} files of {run.folder} have the sha256 that the steps' records have")
    if _record_of_training(run) is None:
        told.append(f"not checked, for there is no record of it: what phase {run.phase} read and made, but for the above")
    return told


# --- results/NAME ------------------------------------------------------------------------------------------------------------


def _wrong_published(run: AttestedRun) -> list[str]:
    crate = run.folder / METADATA
    recorded = _published_hashes(crate)
    wrong = [found for name, sha256 in recorded if (found := _difference(run.folder / name, sha256, METADATA))]
    for path in sorted(run.folder.rglob("*")):
        name = path.relative_to(run.folder).as_posix()
        hidden = any(part.startswith(".") for part in PurePosixPath(name).parts)  # of Snakemake, git or a hub
        if not path.is_dir() and not hidden and name != METADATA and name not in dict(recorded):
            wrong.append(f"{path}: {METADATA} records no sha256 of it, so it was not published by relm")
    for inside, sha256 in _outputs(_published_records(run), run.plan):
        name = _published_as(inside, run.plan)
        if name in dict(recorded) and sha256 != dict(recorded)[name]:
            wrong.append(f"{run.folder / name}: {METADATA} and {PROVENANCE} record different sha256s of it")
    return wrong


def _published_hashes(crate: Path) -> list[tuple[str, str]]:
    """Return the name and sha256 of each file that the crate lists."""
    try:
        files = [entity for entity in read_json(crate)["@graph"] if entity["@type"] == "File"]
        hashes = [(str(entity["name"]), str(entity["sha256"])) for entity in files]
    except (KeyError, TypeError) as error:
        raise RelmError(f"{crate}: not what `report` writes ({type(error).__name__}: {error}); publish it anew") from None
    if strange := [name for name, _ in hashes if name.startswith("/") or ".." in PurePosixPath(name).parts]:
        raise RelmError(f"{crate}: lists {strange[0]!r}, which is outside its folder; it is not what `report` writes")
    return hashes


def _published_records(run: AttestedRun) -> list[Record]:
    path = run.folder / PROVENANCE
    return _checked_records(path, read_json(path)) if path.exists() else []


def _published_as(inside: str, plan: Plan) -> str:
    """Return what a file of the run's folder is called in `results/NAME`, if it is published."""
    phase, _, rest = inside.partition("/")
    if phase not in plan.phases:
        return inside
    if rest in RECORDS:
        return published_name(rest, phase, plan.phases)
    return rest.removeprefix("model/") if phase == plan.phases[-1] and rest.startswith("model/") else inside


# --- work/runs/NAME/FINGERPRINT ----------------------------------------------------------------------------------------------


def _wrong_in_run_folder(plan: Plan) -> list[str]:
    outputs = _outputs(_records_beside(plan), plan)
    wrong = [found for inside, sha256 in outputs if (found := _difference(plan.run_folder / inside, sha256, "its record"))]
    for phase in plan.phases:
        weights = plan.model_folder(phase) / WEIGHTS
        if weights.exists() or sidecar_of(weights).exists():
            try:
                if "files" in (sidecar := checked_sidecar(weights)):  # an earlier version named none
                    require_no_others(weights, sidecar["files"])
            except RelmError as error:
                wrong.append(str(error))
    return wrong


def _records_beside(plan: Plan) -> list[Record]:
    paths = sorted(plan.run_folder.rglob("*.record.json"))
    return [record for path in paths for record in _checked_records(path, {"steps": [read_json(path)]})]


# --- records -----------------------------------------------------------------------------------------------------------------


def _checked_records(path: Path, told: Any) -> list[Record]:
    """Return the records of steps in `told`, whose every file has a path and a sha256."""
    try:
        records: list[Record] = [record for record in told["steps"] if record["step"]]
        for entry in (entry for record in records for entry in (*record["inputs"], *record["outputs"])):
            if not isinstance(entry["path"], str) or not isinstance(entry["sha256"], str | None):
                raise TypeError("a path or sha256 is no text")
    except (KeyError, TypeError) as error:
        raise RelmError(f"{path}: not what relm writes ({type(error).__name__}: {error}); bring the file back") from None
    return records


def _outputs(records: Iterable[Record], plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the path inside the run's folder and the sha256 of each recorded output that lies there."""
    prefix = f"work/runs/{plan.name}/{plan.fingerprint}/"
    for entry in (entry for record in records for entry in record["outputs"]):
        inside = entry["path"].removeprefix(prefix)
        if entry["path"].startswith(prefix) and entry["sha256"] and ".." not in PurePosixPath(inside).parts:
            yield inside, entry["sha256"]


def _record_of_training(run: AttestedRun) -> Record | None:
    """Return the record of the step that trained the phase."""
    records = _published_records(run) if run.is_published else _records_beside(run.plan)
    wanted = f"{run.phase}/model/{WEIGHTS}"
    return next((record for record in records if wanted in dict(_outputs([record], run.plan))), None)


def wrong_inputs(run: AttestedRun) -> list[str]:
    """Return a sentence for each file that a phase read and that lies here as another one: manifest, tokenizer, weights.

    Raises:
        RelmError: the record of the phase's training is damaged.
    """
    record = _record_of_training(run)
    entries = [entry for entry in record["inputs"] if entry["sha256"]] if record is not None else []
    here = [(run.plan.work / inside, entry["sha256"]) for entry in entries if (inside := _in_work(entry["path"]))]
    where = "the record of the training"
    return [found for path, sha256 in here if path.exists() and (found := _difference(path, sha256, where))]


def _in_work(path: str) -> str | None:
    inside = path.removeprefix("work/")
    return inside if path.startswith("work/") and ".." not in PurePosixPath(inside).parts else None


def _difference(path: Path, recorded: str, where: str) -> str | None:
    if not path.is_file():
        return f"{path}: no such file, though {where} has its sha256"
    found = sha256_of(path)
    return None if found == recorded else f"{path}: sha256 is {found}, {where} has {recorded}"
