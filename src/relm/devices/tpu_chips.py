"""The TPU chips of this machine, as its PCI bus lists them.

Under SPMD PyTorch/XLA has one virtual device, and does not report its kind or memory (torch_xla 2.9). Reading the bus works
without runtime, network and TPU package.
"""

import contextlib
from pathlib import Path
from typing import NamedTuple

DEVICES = Path("/sys/bus/pci/devices")
GOOGLE = "0x1ae0"


class Generation(NamedTuple):
    """A kind of TPU chip."""

    name: str
    """The name in the table of peaks."""
    devices: int
    """The count of XLA devices on one chip."""


# PCI device id -> generation, as in torch_xla._internal.tpu and tpu_info.device; a test compares them. Google's network cards
# have the same vendor id.
GENERATIONS = {
    "0x005e": Generation("TPU v4", 1),
    "0x0062": Generation("TPU v5p", 1),
    "0x0063": Generation("TPU v5e", 1),
    "0x006f": Generation("TPU v6e", 1),
    "0x0076": Generation("TPU 7x", 2),
}
# v2 and v3 share the device id, and differ in the subsystem's.
V2_OR_V3 = "0x0027"
SUBSYSTEMS = {"0x004e": Generation("TPU v2", 2), "0x004f": Generation("TPU v3", 2)}
# Named so that the table of peaks matches neither.
UNKNOWN_V2_OR_V3 = Generation("TPU v2/v3", 2)


def chips_here() -> list[Generation]:
    """Return the generation of each TPU chip of this machine, without those of a TPU's other hosts."""
    found = []
    for device in sorted(DEVICES.glob("*")):
        with contextlib.suppress(OSError):  # unplugged meanwhile, or not ours to read
            if _read(device, "vendor") == GOOGLE and (generation := _generation(device)):
                found.append(generation)
    return found


def chip_count(devices: int, generation: Generation) -> float:
    """Return the count of chips of this many devices: one core of a v3 is half a chip.

    >>> chip_count(8, SUBSYSTEMS["0x004f"]), chip_count(1, SUBSYSTEMS["0x004f"])
    (4, 0.5)
    """
    chips, rest = divmod(devices, generation.devices)
    return chips if not rest else devices / generation.devices


def _generation(device: Path) -> Generation | None:
    number = _read(device, "device")
    if number == V2_OR_V3:
        return SUBSYSTEMS.get(_read(device, "subsystem_device"), UNKNOWN_V2_OR_V3)
    return GENERATIONS.get(number)


def _read(device: Path, attribute: str) -> str:
    return (device / attribute).read_text(encoding="ascii").strip()
