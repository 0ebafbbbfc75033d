"""Take over a run from another machine: copy what is finished, and the newest checkpoint, into the new run folder.

`work/runs/NAME` and `work/runs/NAME@MACHINE` share a fingerprint, so either can resume from the other's checkpoint. The copy
appears by one rename: after a SIGKILL the new run has everything or nothing.
"""

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from relm.artifact import checked_sidecar, read_sealed, seal, sha256_of, sidecar_of, sync_path, write_json
from relm.cluster.supervision import is_locked
from relm.errors import RelmError
from relm.limits import require_disk
from relm.recipes.machine.machines import find_own_machine
from relm.recipes.plan import Plan
from relm.recipes.redaction import shorten_path
from relm.recipes.run_folder import CHECKPOINT_FILES, MACHINES, OF_ONE_MACHINE, WEIGHTS
from relm.reporting.file_copies import clone_file
from relm.training.checkpoint_state import STATE, read_state, write_state
from relm.training.interruption import run_lock
from relm.training.kill_points import kill_point

logger = logging.getLogger(__name__)


def take_over_seeds(target: Plan, source: Plan) -> str:
    """Take over each run of a recipe that has begun elsewhere, and return a sentence for each."""
    pairs = [
        (ours, theirs)
        for ours, theirs in zip(target.runs, source.runs, strict=False)
        if any((theirs.run_folder / phase).is_dir() for phase in theirs.phases)
    ]
    for ours, theirs in (pairs := pairs or [(target, source)]):  # before the first is copied
        _require_same_run(ours, theirs)
        _require_not_begun(ours)
    return "\n".join(take_over(*pair) for pair in pairs)


def take_over(target: Plan, source: Plan) -> str:
    """Copy the finished phases and the newest checkpoint of a run into the folder of the same run on another machine.

    The source is unchanged. Return a sentence with the step after which the target resumes.
    """
    folder = target.run_folder
    partial, before = (folder.with_name(f".{folder.name}.{state}") for state in ("partial", "before"))
    _restore(folder, before)
    for plan in (source, target):
        if is_locked(plan.run_folder):
            raise RelmError(f"{plan.name}: Snakemake is working on it; stop it first, then run this command again")
    with hold_phase_locks(source), hold_phase_locks(target):
        steps = _find_steps(source, target)
        files = [path for phase, step in steps.items() for path in _list_files(source, phase, step)]
        require_disk(target.work, sum(path.stat().st_size for path in files), f"continue {target.name}")
        try:
            shutil.rmtree(partial, ignore_errors=True)
            for path in files:
                _copy(path, partial / path.relative_to(source.run_folder), source, target)
                kill_point("takeover-file")
            _swap(partial, folder, before)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            with contextlib.suppress(OSError):  # the next `relm continue` tries again
                _restore(folder, before)
            raise RelmError(f"{folder}: cannot be written: {error.strerror} ({error.filename}); nothing was changed") from error
    done = ", ".join(
        f"phase {phase} {'is finished' if step is None else f'resumes after step {step:,}'}" for phase, step in steps.items()
    )
    return f"{target.name} continues {source.name}: {done}. Next: `snakemake {target.results}`"


def _require_same_run(target: Plan, source: Plan) -> None:
    if target.fingerprint != source.fingerprint:
        raise RelmError(
            f"{source.name} has fingerprint {source.fingerprint} and {target.name} has {target.fingerprint}: data, model or "
            "training differ. Name two runs of the same recipe"
        )
    if target.run_folder == source.run_folder:
        raise RelmError(f"{target.name} and {source.name} are the same run; `snakemake {target.results}` resumes it")


def _restore(folder: Path, before: Path) -> None:
    """Rename a replaced folder back, after a kill or an error between the two renames of `_swap`."""
    if before.exists() and not folder.exists():
        before.rename(folder)


def _require_not_begun(target: Plan) -> None:
    """Raise RelmError if a phase has files, except those of one machine, such as `compile.json`."""
    for phase in target.phases:
        folder = target.run_folder / phase
        if begun := next(
            (path for path in _list_visible_files(folder) if path.relative_to(folder).parts[0] not in OF_ONE_MACHINE), None
        ):
            raise RelmError(
                f"{target.name} has begun already ({begun}); `snakemake {target.results}` resumes it. To continue another "
                f"machine's run instead, move {target.run_folder} away"
            )


@contextlib.contextmanager
def hold_phase_locks(plan: Plan) -> Iterator[None]:
    """Hold the locks of a run's phases, so that no trainer works or starts in them."""
    with contextlib.ExitStack() as stack:
        for phase in plan.phases:
            if (plan.run_folder / phase).is_dir():
                stack.enter_context(run_lock(plan.run_folder / phase / "lock"))
        yield


def _find_steps(source: Plan, target: Plan) -> dict[str, int | None]:
    """Return phase -> the step of its newest intact checkpoint, or None for a finished phase, without later phases."""
    steps: dict[str, int | None] = {}
    for phase in source.phases:
        weights = source.model_folder(phase) / WEIGHTS
        if sidecar_of(weights).exists():
            checked_sidecar(weights)
            steps[phase] = None
            continue
        newest = next(_find_intact_checkpoints(source, phase), None)
        if newest is not None:
            steps[phase] = newest
        break
    if not steps:
        raise RelmError(
            f"{source.name} has no checkpoint in {source.run_folder}; nothing to continue. "
            f"`snakemake {target.results}` trains from the start"
        )
    return steps


def _find_intact_checkpoints(source: Plan, phase: str) -> Iterator[int]:
    """Yield the steps of a phase's checkpoints whose files have the recorded hashes, newest first."""
    for checkpoint in sorted((source.run_folder / phase).glob("checkpoints/step-" + "[0-9]" * 8), reverse=True):
        try:
            state = read_state(checkpoint)
            made_by = state["fingerprint"]
            intact = all(sha256_of(checkpoint / name) == state["sha256"][name] for name in CHECKPOINT_FILES)
        except (RelmError, OSError):
            intact = False
        if not intact:
            logger.warning("%s: damaged; taking the checkpoint before it", checkpoint)
            continue
        if made_by != source.fingerprint:
            raise RelmError(
                f"{checkpoint / STATE}: fingerprint: found {made_by}, expected {source.fingerprint} of {source.name}: the "
                "checkpoint is another run's. Move it away, then run this command again"
            )
        yield int(checkpoint.name.removeprefix("step-"))


def _list_files(source: Plan, phase: str, step: int | None) -> Sequence[Path]:
    """Return the files of a phase to copy, with one checkpoint: that of a step, or the newest of a finished phase."""
    folder = source.run_folder / phase
    kept = next(_find_intact_checkpoints(source, phase), None) if step is None else step
    files = []
    for path in _list_visible_files(folder):
        top, *inside = path.relative_to(folder).parts
        if inside[0] == f"step-{kept or 0:08d}" if top == "checkpoints" else top not in OF_ONE_MACHINE:
            files.append(path)
    return files


def _list_visible_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, sorted, without hidden ones, which are still being written."""
    for parent, folders, files in os.walk(folder, followlinks=True):  # checkpoints may be linked from a larger disk
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (Path(parent, name) for name in sorted(files) if not name.startswith("."))
        yield from (path for path in paths if path.is_file())


def _copy(path: Path, copy: Path, source: Plan, target: Plan) -> None:
    """Copy a file with its times, so that no input is newer than its output; records get the new run folder."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith(".record.json"):
        moved = _move_record(read_sealed(path, "restore it, or delete it"), source, target)
        write_json(copy, seal(moved))
    elif path.name == STATE and MACHINES not in (state := read_state(path.parent)):
        write_state(copy.parent, {**state, MACHINES: [{"after_step": 0, "machine": find_own_machine(source.recipe)}]})
    else:
        if not clone_file(path, copy):
            shutil.copyfile(path, copy)
        sync_path(copy)
    status = path.stat()
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))


def _move_record(record: dict[str, Any], source: Plan, target: Plan) -> dict[str, Any]:
    """Return a step's record with paths in the target's run folder, and the run that they were copied from."""
    old, new = (f"{shorten_path(plan.run_folder)}/" for plan in (source, target))
    moved = {
        files: [{**entry, "path": entry["path"].replace(old, new, 1)} for entry in record[files]]
        for files in ("inputs", "outputs")
    }
    return {**record, **moved, "taken_over_from": record.get("taken_over_from", source.run_name)}


def _swap(partial: Path, folder: Path, before: Path) -> None:
    """Rename the copied folder into place, with the existing files of the folder that it does not have."""
    shutil.rmtree(before, ignore_errors=True)
    if folder.exists():
        for path in folder.rglob("*"):
            kept = partial / path.relative_to(folder)
            if path.is_file() and not kept.exists():
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, kept)
        kill_point("takeover-staged")
        folder.rename(before)
        kill_point("takeover-moved")
    partial.rename(folder)
    kill_point("takeover-renamed")
    shutil.rmtree(before, ignore_errors=True)
