"""References in declarations of devices point to existing code and files."""

from pathlib import Path

import pytest

from relm.recipes.declaration import load
from relm.recipes.devices import (
    DEVICES,
    HOST,
    DeviceDeclaration,
    find_evaluation_device,
    list_evaluation_devices,
    list_fine_tuning_devices,
)

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("declaration", list(DEVICES), ids=lambda declaration: declaration.name)
def test_functions_lock_and_image_of_a_device_exist(declaration: DeviceDeclaration) -> None:
    assert load(declaration.check)().startswith(("yes", "no: "))
    assert callable(load(declaration.open))
    assert (CHECKOUT / "envs" / declaration.lock).exists()


def test_a_device_with_an_environment_uses_its_lock() -> None:
    locked = {lock.stem.removeprefix("torch-") for lock in (CHECKOUT / "envs").glob("torch-*.txt")}
    assert {declaration.name for declaration in DEVICES if declaration.lock == f"torch-{declaration.name}.txt"} == locked


def test_evaluations_follow_only_to_a_gpu() -> None:
    assert list_evaluation_devices() == [HOST, "cuda"]
    assert [find_evaluation_device(name) for name in DEVICES.names] == ["cpu", "cuda", "cpu", "cpu", "cpu"]


def test_fine_tuning_follows_to_every_device() -> None:
    assert list_fine_tuning_devices() == list(DEVICES.names)
    assert [find_evaluation_device(name, fine_tunes=True) for name in DEVICES.names] == list(DEVICES.names)
