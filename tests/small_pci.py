"""A PCI bus in a folder, as Linux shows it of a machine with TPU chips."""

from pathlib import Path

# Generation -> numbers of vendor, device and subsystem.
NUMBERS = {
    "v2": ("0x1ae0", "0x0027", "0x004e"),
    "v3": ("0x1ae0", "0x0027", "0x004f"),
    "v4": ("0x1ae0", "0x005e", "0x0000"),
    "v5e": ("0x1ae0", "0x0063", "0x0000"),
    "v5p": ("0x1ae0", "0x0062", "0x0000"),
    "v6e": ("0x1ae0", "0x006f", "0x0000"),
    "7x": ("0x1ae0", "0x0076", "0x0000"),
    "google's network card": ("0x1ae0", "0x0042", "0x0058"),
    "a disk": ("0x8086", "0x005e", "0x0000"),
}


def pci_bus(folder: Path, *devices: str) -> Path:
    """Write a bus with these devices, and give its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for slot, device in enumerate(devices):
        (folder / f"0000:00:{slot:02x}.0").mkdir()
        for attribute, number in zip(("vendor", "device", "subsystem_device"), NUMBERS[device], strict=True):
            (folder / f"0000:00:{slot:02x}.0" / attribute).write_text(f"{number}\n")
    return folder
