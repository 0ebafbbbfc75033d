"""Compares the files of `results/NAME`, or of a run's folder, with their recorded sha256s. Imports no torch.

For a published folder, `published_files` compares its two lists. Each step's record has the sha256 of its inputs and outputs.
It is next to the output and, for a published run, in `provenance.json`.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from relm.artifact import checked_sidecar, read_json, read_sealed, sha256_of, sidecar_of
from relm.errors import RelmError
from relm.json_shapes import LINE, Nullable, require_shape
from relm.plan.products import published_files
from relm.plan.published_files import MISSING, compare_files, read_crate_hashes
from relm.recipes.plan import Plan
from relm.recipes.run_folder import CHECKPOINTS, CHECKSUMS, LOG, METADATA, PROVENANCE, WEIGHTS
from relm.replay.attested_run import AttestedRun, Segment
from relm.training.model_files import require_no_others

Record = Mapping[str, Any]
_FILES = [{"path": LINE, "sha256": Nullable(LINE)}]
_STEPS = {"steps": [{"step": Nullable(LINE), "inputs": _FILES, "outputs": _FILES}]}


def wrong_files(run: AttestedRun) -> list[str]:
    """Return a sentence for each file of a run that is missing, or differs from the recorded one."""
    return _wrong_published(run) if run.is_published else _wrong_in_run_folder(run.plan)


def describe_checked_files(run: AttestedRun) -> list[str]:
    """Return sentences on the files that `wrong_files` compared, and on those without a record."""
    sentences = []
    if run.is_published:
        count, own = len(read_crate_hashes(run.folder) or {}), sha256_of(run.folder / METADATA)
        sentences.append(f"{count} files of {run.folder} have the sha256 that {METADATA} (sha256 {own}) records")
    elif count := sum(1 for _ in _outputs(_read_own_records(run.plan), run.plan)):
        sentences.append(f"{count} files of {run.folder} have the sha256 that their steps' records have")
    if _record_of_training(run) is None:
        sentences.append(f"not checked for lack of a record: the other inputs and outputs of phase {run.phase}")
    return sentences


# --- results/NAME ------------------------------------------------------------------------------------------------------------


def _wrong_published(run: AttestedRun) -> list[str]:
    differences = compare_files(run.folder)[0]
    # An earlier version wrote only the crate.
    wrong = [f"{run.folder}/{found}" for found in differences if (found.name, found.state) != (CHECKSUMS, MISSING)]
    if wrong:
        return wrong
    recorded = read_crate_hashes(run.folder) or {}
    names = {path: name for name, path in published_files(run.plan).items()}
    for inside, sha256 in _outputs(published_records(run.folder), run.plan):
        name = names.get(run.plan.run_folder / inside)
        if name is not None and sha256 != recorded.get(name, sha256):
            wrong.append(f"{run.folder / name}: {METADATA} and {PROVENANCE} record different sha256s of it")
    return wrong


def published_records(folder: Path) -> list[Record]:
    """Return the records of steps in a published folder."""
    path = folder / PROVENANCE
    return _checked_records(path, read_json(path)) if path.exists() else []


# --- work/runs/NAME/FINGERPRINT ----------------------------------------------------------------------------------------------


def _wrong_in_run_folder(plan: Plan) -> list[str]:
    outputs = _outputs(_read_own_records(plan), plan)
    wrong = [found for inside, sha256 in outputs if (found := _difference(plan.run_folder / inside, sha256, "its record"))]
    for phase in plan.phases:
        weights = plan.model_folder(phase) / WEIGHTS
        if weights.exists() or sidecar_of(weights).exists():
            try:
                if "files" in (sidecar := checked_sidecar(weights)):  # earlier versions list no files
                    require_no_others(weights, sidecar["files"])
            except RelmError as error:
                wrong.append(str(error))
    return wrong


def _read_own_records(plan: Plan) -> list[Record]:
    paths = sorted(plan.run_folder.rglob("*.record.json"))
    return [
        record
        for path in paths
        for record in _checked_records(
            path, {"steps": [read_sealed(path, "restore it, or delete it with the file that it describes")]}
        )
    ]


# --- records -----------------------------------------------------------------------------------------------------------------


def _checked_records(path: Path, content: Any) -> list[Record]:
    """Return the records of steps in `content`, each of whose files has a path and a sha256."""
    require_shape(content, _STEPS, str(path), "restore the file")
    return [record for record in content["steps"] if record["step"]]


def _outputs(records: Iterable[Record], plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the path and the sha256 of each recorded output in the run's folder."""
    prefix = f"work/runs/{plan.run_name}/{plan.fingerprint}/"
    for entry in (entry for record in records for entry in record["outputs"]):
        inside = entry["path"].removeprefix(prefix)
        if entry["path"].startswith(prefix) and entry["sha256"] and ".." not in PurePosixPath(inside).parts:
            yield inside, entry["sha256"]


def _record_of_training(run: AttestedRun) -> Record | None:
    """Return the record of the step that trained the phase."""
    records = published_records(run.folder) if run.is_published else _read_own_records(run.plan)
    wanted = f"{run.phase}/model/{WEIGHTS}"
    return next((record for record in records if wanted in dict(_outputs([record], run.plan))), None)


def find_wrong_inputs(run: AttestedRun) -> list[str]:
    """Return a sentence for each of a phase's inputs (manifest, tokenizer, weights) that differs from the recorded one."""
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
        return f"{path}: no such file, but {where} has its sha256"
    found = sha256_of(path)
    return None if found == recorded else f"{path}: sha256 is {found}, but {where} has {recorded}"


def describe_attested(run: AttestedRun, segment: Segment) -> list[str]:
    """Return phrases on the lines and files compared with `checkpoints.jsonl`, and on those not attested."""
    sentences, ends = [], [one.end for one in run.segments]
    if lines := sum(end.log["lines"] for end in ends if end.log is not None):
        sentences.append(f"{lines} lines of {LOG} are those that {CHECKPOINTS} attests")
    if segment.start is not None:
        state = " and state.json" if segment.start.state_sha256 else ""
        sentences.append(f"{', '.join(segment.start.sha256)}{state} of step {segment.start.step:,} are the attested ones")
        ends.append(segment.start)
    unattested = sorted({end.step for end in ends if end.log is None or end.state_sha256 is None})
    if unattested:
        steps = f"{unattested[0]:,}" + (f" to {unattested[-1]:,}" if len(unattested) > 1 else "")
        sentences.append(
            f"not checked, because an earlier version of relm did not attest them: state.json and the lines of {LOG} at "
            f"checkpoints of step {steps}"
        )
    return sentences
