"""The counters of a device, for the report: over all processes of a phase, and for each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from relm.formatting import format_bytes

# Maps a key of device.json to its name, its unit ("count", "seconds" or "bytes"), and True if it is also shown per step.
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


class DeviceFigure(NamedTuple):
    """One formatted figure."""

    name: str
    in_all: str
    a_step: str
    """The figure per step; empty where it would mean nothing."""


@dataclass(frozen=True)
class DeviceSummary:
    """One phase of a run on such a device."""

    steps: int
    """The steps of all processes; steps that an interruption lost and that were taken again count twice."""
    figures: Sequence[DeviceFigure]
    """Sums over all processes."""
    names: Sequence[str]
    """The names of the columns of `processes`."""
    processes: Sequence[Sequence[str]]
    """A row for each process: its steps, then its figures."""


def summarise_device(processes: Sequence[Mapping[str, Any]]) -> DeviceSummary:
    """Return the summary of the processes in `device.json`."""
    steps, keys = sum(process["steps"] for process in processes), _describe_keys(processes)
    figures = []
    for key, (name, kind, per_step) in keys.items():
        total = sum(process.get(key, 0) for process in processes)
        figures.append(DeviceFigure(name, _WRITTEN[kind](total), _WRITTEN[kind](total / steps) if per_step and steps else ""))
    rows = [
        [_steps(process), *(_WRITTEN[kind](process.get(key, 0)) for key, (_, kind, _) in keys.items())] for process in processes
    ]
    return DeviceSummary(steps, figures, ["Steps", *(name for name, _, _ in keys.values())], rows)


def _describe_keys(processes: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, str, bool]]:
    """Return the entries of `KEYS` that a device counts, then those of its other counters, named by their keys."""
    found = {key: None for process in processes for key in process if key not in ("after_step", "steps")}
    known = {key: entry for key, entry in KEYS.items() if key in found}
    return known | {key: (key.replace("_", " ").capitalize(), "count", False) for key in found if key not in KEYS}


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
