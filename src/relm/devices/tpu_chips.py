"""The TPU chips of this machine, as its PCI bus lists them.

Under SPMD PyTorch/XLA has one virtual device, of which it tells neither kind nor memory (torch_xla 2.9). The bus needs no
runtime, no network and no TPU package.
"""

import contextlib
from pathlib import Path
from typing import NamedTuple

DEVICES = Path("/sys/bus/pci/devices")
GOOGLE = "0x1ae0"


class Generation(NamedTuple):
    """A kind of TPU chip."""

    name: str
    """As `relm.devices.peaks` knows it."""
    devices: int
    """How many devices XLA sees on one chip."""


# PCI device number -> generation, as in torch_xla._internal.tpu and tpu_info.device; a test compares them. Google's vendor
# number is on its network cards as well.
GENERATIONS = {
    "0x005e": Generation("TPU v4", 1),
    "0x0062": Generation("TPU v5p", 1),
    "0x0063": Generation("TPU v5e", 1),
    "0x006f": Generation("TPU v6e", 1),
    "0x0076": Generation("TPU 7x", 2),
}
# v2 and v3 have one device number, and differ in that of the subsystem.
V2_OR_V3 = "0x0027"
SUBSYSTEMS = {"0x004e": Generation("TPU v2", 2), "0x004f": Generation("TPU v3", 2)}
# Written so that no table of peaks takes it for either.
UNKNOWN_V2_OR_V3 = Generation("TPU v2/v3", 2)


def chips_here() -> list[Generation]:
    """Return the generation of each TPU chip of this machine; of its host alone where a TPU has several."""
    found = []
    for device in sorted(DEVICES.glob("*")):
        with contextlib.suppress(OSError):  # unplugged meanwhile, or not ours to read
            if _read(device, "vendor") == GOOGLE and (generation := _generation(device)):
                found.append(generation)
    return found


def chip_count(devices: int, generation: Generation) -> float:
    """Return how many chips so many devices are: one core of a v3, trained on alone, is half a chip.

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
