"""The machines that trained a phase, each with the step after which it began.

Another machine may take over a run. Checkpoints keep the whole list, and so does the first line of `train.jsonl` of each
machine.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from relm.recipes.run_folder import MACHINES

Stretch = dict[str, Any]
"""The steps of one machine: `after_step` and `machine`."""


def extend_history(state: Mapping[str, Any] | None, machine: str | None) -> list[Stretch]:
    """Return the machines of a phase that begins, or resumes after a checkpoint with this state, on a machine.

    If the state, of an earlier version, lists none, its steps count as this machine's: `relm continue` adds the list.
    """
    history = list(state.get(MACHINES, [])) if state else []
    if history and history[-1]["machine"] == machine:
        return history
    after = int(state["step"]) if state and history else 0
    return [*(stretch for stretch in history if stretch["after_step"] < after), {"after_step": after, "machine": machine}]


def machines_of(rows: Sequence[Mapping[str, Any]]) -> list[Stretch]:
    """Return the newest list of machines in the lines of a log; empty if no line has one."""
    return next((list(row[MACHINES]) for row in reversed(rows) if MACHINES in row), [])
