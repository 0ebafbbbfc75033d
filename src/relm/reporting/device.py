"""What a device that compiles counted while it trained, as a reader sees it: over all processes of a phase, and of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from relm.formatting import format_bytes

# Key of device.json -> its name, how it is told ("count", "seconds" or "bytes"), and whether it is told of a step as well.
KEYS = {
    "compiles": ("Programs compiled", "count", False),
    "compile_seconds": ("Compiling", "seconds", False),
    "executions": ("Executions", "count", True),
    "execute_seconds": ("Executing", "seconds", True),
    "transfers_to_devices": ("Transfers to the devices", "count", True),
    "bytes_to_devices": ("Bytes to the devices", "bytes", True),
    "transfers_from_devices": ("Transfers from the devices", "count", True),
    "bytes_from_devices": ("Bytes from the devices", "bytes", True),
}


class Told(NamedTuple):
    """One figure, ready to be shown."""

    name: str
    in_all: str
    a_step: str
    """Empty where a figure of a step means nothing."""


@dataclass(frozen=True)
class OnDevice:
    """One phase of a run on such a device."""

    steps: int
    """Of all processes; steps that an interruption lost and that were taken again count twice."""
    figures: Sequence[Told]
    """Sums over all processes."""
    names: Sequence[str]
    """Of the columns of `processes`."""
    processes: Sequence[Sequence[str]]
    """Of each process, its steps and then its figures."""


def on_device(processes: Sequence[Mapping[str, Any]]) -> OnDevice:
    """The processes that `device.json` has."""
    steps = sum(process["steps"] for process in processes)
    figures = []
    for key, (name, kind, per_step) in KEYS.items():
        total = sum(process[key] for process in processes)
        figures.append(Told(name, _WRITTEN[kind](total), _WRITTEN[kind](total / steps) if per_step and steps else ""))
    rows = [[_steps(process), *(_WRITTEN[kind](process[key]) for key, (_, kind, _) in KEYS.items())] for process in processes]
    return OnDevice(steps, figures, ["Steps", *(name for name, _, _ in KEYS.values())], rows)


def _steps(process: Mapping[str, Any]) -> str:
    first, last = process["after_step"] + 1, process["after_step"] + process["steps"]
    return f"{first:,} to {last:,}" if process["steps"] else f"none from {first:,} on"


def _count(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.2f}"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def _bytes(size: float) -> str:
    return format_bytes(round(size))


_WRITTEN: dict[str, Callable[[float], str]] = {"count": _count, "seconds": _seconds, "bytes": _bytes}
