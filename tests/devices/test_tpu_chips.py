"""TPU chips on a PCI bus."""

import importlib.util
from pathlib import Path

import pytest

from relm.devices import tpu_chips
from relm.devices.detection import describe_tpu
from relm.devices.peaks import find_peak_flops
from relm.devices.tpu_chips import UNKNOWN_V2_OR_V3, V2_OR_V3, chip_count, chips_here
from small_pci import NUMBERS, pci_bus


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PCI bus in place of this machine's."""
    monkeypatch.setattr(tpu_chips, "DEVICES", tmp_path / "devices")
    return tmp_path / "devices"


@pytest.mark.parametrize(
    ("there", "name", "devices"),
    [("v2", "TPU v2", 8), ("v3", "TPU v3", 8), ("v4", "TPU v4", 4), ("v5e", "TPU v5e", 4), ("v6e", "TPU v6e", 4)],
)
def test_chips_are_googles_devices_that_are_tpus(there: str, name: str, devices: int, bus: Path) -> None:
    pci_bus(bus, "a disk", there, there, "google's network card", there, there)
    found = chips_here()
    assert [chip.name for chip in found] == [name] * 4
    assert chip_count(devices, found[0]) == 4
    assert find_peak_flops(found[0].name, "bfloat16") is not None, "the name is not one that the table of peaks knows"


def test_without_a_tpu_or_a_bus_there_are_no_chips(bus: Path) -> None:
    assert chips_here() == []
    pci_bus(bus, "a disk", "google's network card")
    assert chips_here() == []


def test_one_core_of_a_v3_is_half_a_chip(bus: Path) -> None:
    (chip,) = pci_bus(bus, "v3") and chips_here()
    assert chip_count(1, chip) == 0.5


def test_an_unknown_subsystem_is_taken_for_neither_v2_nor_v3(bus: Path) -> None:
    pci_bus(bus, "v3")
    (bus / "0000:00:00.0" / "subsystem_device").write_text("0x0050\n")
    assert chips_here() == [UNKNOWN_V2_OR_V3]
    assert find_peak_flops(UNKNOWN_V2_OR_V3.name, "bfloat16") is None


def test_a_device_that_cannot_be_read_is_passed_over(bus: Path) -> None:
    pci_bus(bus, "v4", "v4")
    (bus / "0000:00:00.0" / "device").unlink()
    assert len(chips_here()) == 1


@pytest.mark.skipif(importlib.util.find_spec("tpu_info") is None, reason="tpu_info is in the TPU's environment alone")
def test_ids_names_and_devices_of_a_chip_equal_those_of_googles_tools(bus: Path) -> None:
    import torch_xla._internal.tpu as tpu
    from tpu_info.device import TpuChip

    for vendor, device, subsystem in NUMBERS.values():
        theirs = TpuChip.from_pci_device_id(device, subsystem) if vendor == tpu_chips.GOOGLE else None
        ours = tpu_chips.SUBSYSTEMS[subsystem] if device == V2_OR_V3 else tpu_chips.GENERATIONS.get(device)
        if theirs is not None:
            assert ours == (f"TPU {theirs.value.name}", theirs.value.devices_per_chip)
    assert {V2_OR_V3, *tpu_chips.GENERATIONS} == set(tpu._TPU_PCI_DEVICE_IDS) - {"0x0056"}, "0x0056 is for Google's own tests"
    assert {number for _, number, _ in list(NUMBERS.values())[:7]} == {V2_OR_V3, *tpu_chips.GENERATIONS}


def test_doctor_counts_chips_and_not_whatever_vfio_has(bus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda package: "2.9.0")
    pci_bus(bus, "google's network card")
    assert describe_tpu() == "no: the PCI bus of this machine has no TPU chip"
    (bus / "0000:00:00.0" / "device").write_text("0x0063\n")
    assert describe_tpu() == "yes: TPU v5e, chips on this machine: 1, torch_xla 2.9.0"
