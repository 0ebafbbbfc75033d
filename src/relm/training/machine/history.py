"""The machines that trained a phase, each with the step after which it began.

A run may be taken over by another machine. Checkpoints keep the whole list, and a line of `train.jsonl` has it where a machine
begins.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relm.errors import RelmError
from relm.json_shapes import COUNT, LINE, Nullable, require_shape
from relm.recipes.run_folder import MACHINES

Stretch = dict[str, Any]
"""The steps of one machine: `after_step` and `machine`."""


def extend_history(state: Mapping[str, Any] | None, machine: str | None) -> list[Stretch]:
    """Return the machines of a phase that begins, or resumes after a checkpoint, on a machine.

    Args:
        state: the checkpoint's `state.json`; None: the phase begins. One of an earlier version lists no machines; its steps
            count as this machine's, because `relm continue` adds the list to such a checkpoint.
        machine: the name of the machine; None: it has none.
    """
    history = _checked(state.get(MACHINES, [])) if state else []
    if history and history[-1]["machine"] == machine:
        return history
    after = int(state["step"]) if state and history else 0
    return [*(stretch for stretch in history if stretch["after_step"] < after), {"after_step": after, "machine": machine}]


def _checked(machines: Any) -> list[Stretch]:
    """Return the list of a checkpoint."""
    for stretch in machines if isinstance(machines, list) else [machines]:
        steps, name = (stretch.get("after_step"), stretch.get("machine", 0)) if isinstance(stretch, dict) else (None, None)
        if type(steps) is not int or not isinstance(name, str | None):
            raise RelmError(
                f"the checkpoint's state.json: {MACHINES}: expected a list of objects with after_step and machine, found "
                f"{machines!r:.99}; delete this checkpoint, and the run resumes from the one before"
            )
    return list(machines)


def logged_history(log: Path) -> list[Stretch]:
    """Return the newest list of machines in a log; empty if no line has one."""
    with open(log, encoding="utf-8", errors="replace") as lines:
        marked = [line for line in lines if f'"{MACHINES}"' in line]
    try:
        history = json.loads(marked[-1])[MACHINES] if marked else []
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RelmError(
            f"{log}: expected a line of JSON with {MACHINES}, found {marked[-1][:80]!r}; bring the file back"
        ) from None
    require_shape(history, [{"after_step": COUNT, "machine": Nullable(LINE)}], f"{log}: {MACHINES}", "bring the file back")
    return list(history)


def machines_of(rows: Sequence[Mapping[str, Any]]) -> list[Stretch]:
    """Return the newest list of machines in the lines of a log; empty if no line has one."""
    return next((list(row[MACHINES]) for row in reversed(rows) if MACHINES in row), [])
