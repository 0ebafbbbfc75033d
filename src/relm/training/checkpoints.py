"""Checkpoints: folders that are either complete or absent; every byte is checked before use.

``step-00000500/`` holds ``model.safetensors``, ``optimizer.safetensors`` and ``state.json`` with the sha256 of both, the step
and the identity of the run. Learning rate, data order and dropout follow from the step, so nothing else is saved.

``checkpoints.jsonl``, next to the folder of all checkpoints, lists each one that the recipe requests, including deleted ones.
`relm reproduce` compares a segment that it trains again with these lines. `state.json` records the size and sha256 of both logs
up to its step; a run resumes only with these logs.
"""

import dataclasses
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor

from relm.artifact import sync_path
from relm.errors import RelmError
from relm.recipes.run_folder import (
    CHECKPOINT_FILES,
    CHECKPOINTS,
    LOG,
    LOGS,
    acceptance_of,
    checkpoint_folder,
)
from relm.training.attested_hashes import line_facts, lines_after, state_sha256
from relm.training.checkpoint_state import STATE, read_state, write_state
from relm.training.kill_points import kill_point
from relm.training.run_log import RunLog
from relm.training.tensor_file import Damaged, read_tensors, write_tensors

FORMAT = 1
# Keys of `state.json` that must match this run -> words for the error message if one differs.
IDENTITY = {
    "fingerprint": "another run",
    "phase": "another phase",
    "manifest_sha256": "other data",
    "start_sha256": "other starting weights",
}

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One saved step, with its tensors in main memory."""

    folder: Path
    state: Mapping[str, Any]
    """The content of `state.json`."""
    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]

    @property
    def step(self) -> int:
        """Return the number of optimizer steps taken before it."""
        return int(self.state["step"])


def open_list(checkpoints: Path, step: int, attested: Mapping[str, Any] | None = None) -> RunLog:
    """Open `checkpoints.jsonl` of a run that resumes after `step`, and remove later lines; `attested` as in `RunLog`."""
    return RunLog(checkpoints.with_name(CHECKPOINTS), step, attested)


def save_checkpoint(
    checkpoints: Path,
    state: Mapping[str, Any],
    model: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    keep: int,
    forever: int | None = None,
    listed: bool = True,
    log: Mapping[str, Any] | None = None,
    checkpoint_list: RunLog | None = None,
) -> Path:
    """Write one checkpoint, then delete all but the `keep` newest and those whose step is a multiple of `forever`.

    Args:
        state: `step`, `made_on`, the keys of `IDENTITY`, and the rest of the loop's state; JSON.
        listed: add a line to `checkpoints.jsonl`; False if an interruption caused the checkpoint.
        log: the `bytes` and `sha256` of `train.jsonl` up to the step, for `state.json`; None: no log exists.
        checkpoint_list: the run's open `checkpoints.jsonl`; None: open it for this line.
    """
    step = int(state["step"])
    final = checkpoint_folder(checkpoints, step)
    partial = checkpoints / f".{final.name}.partial"
    try:
        hashes = _write_tensors(partial, dict(zip(CHECKPOINT_FILES, (model, optimizer), strict=True)))
        content = {"format": FORMAT, **state, "sha256": hashes}
        with nullcontext(checkpoint_list) if checkpoint_list else closing(open_list(checkpoints, step - 1)) as lines:
            line = _line(checkpoints, content, log) if listed else None
            # Includes the line that is written below: a run that resumes here finds the list with it.
            logs = {LOG: log, CHECKPOINTS: lines.facts(line)}
            write_state(partial, {**content, LOGS: {name: facts for name, facts in logs.items() if facts is not None}})
            sync_path(partial)
            kill_point("checkpoint-written")
            if line is not None:  # before the checkpoint can be resumed: resuming removes a surplus line
                lines.write(line)
                lines.sync()
                kill_point("checkpoint-listed")
        shutil.rmtree(final, ignore_errors=True)  # exists only if it was found damaged
        os.rename(partial, final)  # renamed last: a folder with its final name is complete after any kill or crash
        sync_path(checkpoints)
    except (OSError, RelmError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise RelmError(
            f"{final}: cannot write the checkpoint: {error.__cause__ or error}. Earlier ones are intact. Fix the cause "
            "(is the disk full?) and run the same command again"
        ) from error
    kill_point("checkpoint-renamed")
    for name in (LOG, CHECKPOINTS):  # the new checkpoint attests the accepted log
        acceptance_of(checkpoints.with_name(name)).unlink(missing_ok=True)
    _prune(checkpoints, step, keep, forever)
    return final


def _write_tensors(folder: Path, files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, str]:
    """Write the tensors of a checkpoint into a new folder, and return the sha256 of each file."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    hashes = {}
    for name, tensors in files.items():
        hashes[name] = write_tensors(folder / name, tensors)
        kill_point(f"checkpoint-{name}")
    return hashes


def _line(checkpoints: Path, state: Mapping[str, Any], attested: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a checkpoint's line of `checkpoints.jsonl`: its hashes, and that of the log since the last listed checkpoint."""
    line = {"step": state["step"], "sha256": state["sha256"], "state_sha256": state_sha256(state)}
    log, before = checkpoints.with_name(LOG), max((step for step in _listed(checkpoints) if step < state["step"]), default=0)
    size = attested["bytes"] if attested is not None else None
    lines = {"log": line_facts(lines_after(log, before, size))} if log.exists() else {}
    return {**line, **lines, "made_on": state["made_on"]}


def _step_folders(checkpoints: Path) -> dict[int, Path]:
    """Return the folder of each step, newest first."""
    found = {int(path.name.removeprefix("step-")): path for path in checkpoints.glob("step-" + "[0-9]" * 8)}
    return dict(sorted(found.items(), reverse=True))


def _prune(checkpoints: Path, step: int, keep: int, forever: int | None) -> None:
    folders = _step_folders(checkpoints)
    # Later checkpoints were damaged, or this run would have resumed from one of them; they are deleted.
    # A checkpoint that an interruption caused stays until the next one, and does not count towards `keep`.
    requested = _listed(checkpoints)
    newest = [step, *[known for known in folders if known <= step and known in requested][:keep]]
    for known, folder in folders.items():
        stays = forever is not None and known <= step and known % forever == 0
        if known not in newest and not stays:
            shutil.rmtree(folder, ignore_errors=True)
    for partial in checkpoints.glob(".step-*.partial"):
        shutil.rmtree(partial, ignore_errors=True)


def _listed(checkpoints: Path) -> set[int]:
    """Return the steps that `checkpoints.jsonl` lists."""
    path = checkpoints.with_name(CHECKPOINTS)
    return {line["step"] for line in lines_after(path, 0)} if path.exists() else set()


def newest_checkpoint(checkpoints: Path) -> Path | None:
    """Return the folder of the newest checkpoint without reading it; None: no checkpoint exists."""
    return next(iter(_step_folders(checkpoints).values()), None)


def load_checkpoint(checkpoints: Path, identity: Mapping[str, str]) -> Checkpoint | None:
    """Return the newest intact checkpoint, or None; skip damaged ones with a warning.

    Raise if its identity is not this run's `identity`.
    """
    folders = _step_folders(checkpoints).values()
    for folder in folders:
        try:
            state = _read_state(folder)
            _check_identity(folder, state, identity)
            files = [read_tensors(folder / name, state["sha256"].get(name)) for name in CHECKPOINT_FILES]
            return Checkpoint(folder, state, *files)
        except Damaged as error:  # retraining from the one before gives the same bytes
            logger.warning("%s; resuming from the checkpoint before it", error)
        except OSError as error:  # it may be readable later, and resuming from an older one would delete it
            raise RelmError(
                f"{folder}: the checkpoint cannot be read: {error}; fix the cause and run the same command again"
            ) from error
    if folders:
        logger.warning("%s: none of its checkpoints is intact; starting from step 0", checkpoints)
    return None


def _read_state(folder: Path) -> Mapping[str, Any]:
    try:
        state = read_state(folder)
    except RelmError as error:
        raise Damaged(str(error)) from None
    if not {"format", "loss", "seconds", *IDENTITY} <= set(state):
        raise Damaged(f"{folder / STATE}: damaged: keys are missing")
    if folder != checkpoint_folder(folder.parent, state["step"]):
        raise Damaged(f"{folder / STATE}: damaged: its step is {state['step']}")
    return state


def _check_identity(folder: Path, state: Mapping[str, Any], identity: Mapping[str, str]) -> None:
    # Not `Damaged`: training would resume from an older checkpoint, and the next save would delete this one.
    if state["format"] != FORMAT:
        raise RelmError(
            f"{folder}: the checkpoint has format {state['format']}, this version reads {FORMAT}; "
            "resume with the version that wrote it, or delete the folder to train from the beginning"
        )
    for key, words in IDENTITY.items():
        if state[key] != identity[key]:
            raise RelmError(
                f"{folder}: the checkpoint belongs to {words}: its {key} is {state[key]}, this run's is {identity[key]}; "
                f"restore the recipe and inputs it belongs to, or delete {folder.parent} to train from the beginning"
            )
