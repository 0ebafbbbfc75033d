"""Logs of a phase that were deleted or changed while its checkpoints stayed: copied back from the published folder.

Deleted ones that are not there are written again.

A checkpoint has no lines of `train.jsonl` and `checkpoints.jsonl`, so a run that resumed without them would publish only their
end. Training of minutes begins again instead; hours of it are not thrown away unasked.
"""

import contextlib
import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from relm.artifact import atomic_file, read_json, sha256_of
from relm.devices.ranks import rank
from relm.errors import RelmError
from relm.formatting import format_duration
from relm.plan.products import published_name
from relm.plan.published_files import recorded_sha256
from relm.recipes.plan import Plan
from relm.recipes.run_folder import CHECKPOINTS, LOG, LOGS, acceptance_of
from relm.training.attested_hashes import find_log_fault, read_lines
from relm.training.checkpoint_state import read_state
from relm.training.checkpoints import newest_checkpoint
from relm.training.interruption import run_lock

# Seconds of training that are repeated without asking.
LONGEST = 3600.0

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def replaced_logs(plan: Plan, phase: str, folder: Path) -> Iterator[None]:
    """Before a phase is trained, bring back its lost logs, or set its checkpoints aside until it is trained again.

    Args:
        folder: where the phase is trained: that of the plan, or another that the user gave.

    Raises:
        RelmError: they are lost, and training them again would take over an hour.
    """
    aside = folder / "checkpoints.without_log"
    if rank() == 0 and (folder / "checkpoints").is_dir():
        with run_lock(folder / "lock"):
            _replace(plan, phase, folder, aside)
    yield
    if rank() == 0:
        shutil.rmtree(aside, ignore_errors=True)


def _replace(plan: Plan, phase: str, folder: Path, aside: Path) -> None:
    checkpoints = folder / "checkpoints"
    newest = newest_checkpoint(checkpoints)
    missing = [name for name in (LOG, CHECKPOINTS) if not (folder / name).exists()]
    lost = [name for name in missing if not acceptance_of(folder / name).exists()]
    if newest is None:
        return
    changed = [name for name, facts in _read_newest_state(newest).get(LOGS, {}).items() if find_log_fault(folder / name, facts)]
    if not (lost or changed) or _copy_back(plan, phase, folder, sorted({*lost, *changed}), newest) or not lost:
        return  # the trainer refuses one that was changed and is not accepted
    seconds = _read_newest_state(newest).get("seconds", 0.0)
    if seconds > LONGEST:
        raise RelmError(
            f"{folder / lost[0]}: no such file, and {plan.results} has none that belongs to {newest}, which is the result of "
            f"{format_duration(seconds)} of training. Bring the file back; or delete {checkpoints} to train again from step 1, "
            f"or make an empty file {acceptance_of(folder / lost[0])} to resume without the lines before"
        )
    logger.warning(
        "%s is lost, so phase %s is trained from the beginning; its checkpoints are in %s until then",
        *(folder / lost[0], phase, aside),
    )
    shutil.rmtree(aside, ignore_errors=True)
    checkpoints.rename(aside)


def _read_newest_state(checkpoint: Path) -> dict[str, Any]:
    """Return the state of a checkpoint; {}: it is damaged, so the checkpoint cannot be resumed."""
    try:
        return read_state(checkpoint)
    except RelmError:
        return {}


def _copy_back(plan: Plan, phase: str, folder: Path, lost: Sequence[str], newest: Path) -> bool:
    """Copy lost logs from the published folder if it attests the newest checkpoint; return whether it does."""
    published = {name: plan.results / published_name(name, phase, plan.phases) for name in (LOG, CHECKPOINTS)}
    try:
        if read_json(plan.results / "recipe.json")["fingerprint"] != plan.fingerprint:
            return False
        hashes = {name: recorded_sha256(plan.results, path.name) for name, path in published.items()}
        if any(sha256_of(path) != hashes[name] for name, path in published.items()):
            return False
        if any(find_log_fault(published[name], facts) for name, facts in _read_newest_state(newest).get(LOGS, {}).items()):
            return False
        attested = {line["step"]: line["sha256"] for line in read_lines(published[CHECKPOINTS])}
        state = read_state(newest)
        if attested.get(state["step"]) != state["sha256"]:
            return False
    except (RelmError, OSError, KeyError, TypeError):
        return False
    for name in lost:
        with atomic_file(folder / name) as file:
            file.write(published[name].read_bytes())
        logger.info("%s: copied back from %s", folder / name, published[name])
    return True
