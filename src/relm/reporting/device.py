"""The counters of a device, for the report: summed over the processes of a phase, and of each process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from relm.formatting import format_bytes


def _count(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.2f}"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def _bytes(size: float) -> str:
    return format_bytes(round(size))


# Maps a key of device.json to its name, its format, and True if it is also shown per step.
KEYS: dict[str, tuple[str, Callable[[float], str], bool]] = {
    "compiles": ("Programs compiled", _count, False),
    "compile_seconds": ("Compiling", _seconds, False),
    "executions": ("Executions", _count, True),
    "execute_seconds": ("Executing", _seconds, True),
    "transfers_to_devices": ("Transfers to the devices", _count, True),
    "bytes_to_devices": ("Bytes to the devices", _bytes, True),
    "transfers_from_devices": ("Transfers from the devices", _count, True),
    "bytes_from_devices": ("Bytes from the devices", _bytes, True),
}


class DeviceFigure(NamedTuple):
    """One formatted figure."""

    name: str
    in_all: str
    a_step: str
    """The figure per step; empty where that means nothing."""


class DeviceSummary(NamedTuple):
    """The counters of one phase."""

    steps: int
    """The steps of all processes; a step that was lost and repeated counts twice."""
    figures: Sequence[DeviceFigure]
    """Sums over all processes."""
    names: Sequence[str]
    processes: Sequence[Sequence[str]]
    """A row for each process: its steps, then its figures, in the order of `names`."""


def summarise_device(processes: Sequence[Mapping[str, Any]]) -> DeviceSummary:
    """Return the summary of the processes in `device.json`: known counters first, then the others by key."""
    steps = sum(process["steps"] for process in processes)
    found = dict.fromkeys(key for process in processes for key in process if key not in ("after_step", "steps"))
    keys = {key: entry for key, entry in KEYS.items() if key in found}
    keys |= {key: (key.replace("_", " ").capitalize(), _count, False) for key in found if key not in KEYS}
    figures = []
    for key, (name, form, per_step) in keys.items():
        total = sum(process.get(key, 0) for process in processes)
        figures.append(DeviceFigure(name, form(total), form(total / steps) if per_step and steps else ""))
    rows = [[_steps(process), *(form(process.get(key, 0)) for key, (_, form, _) in keys.items())] for process in processes]
    return DeviceSummary(steps, figures, ["Steps", *(figure.name for figure in figures)], rows)


def _steps(process: Mapping[str, Any]) -> str:
    first, last = process["after_step"] + 1, process["after_step"] + process["steps"]
    return f"{first:,} to {last:,}" if process["steps"] else f"none from {first:,} on"
