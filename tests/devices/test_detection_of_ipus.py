"""The check of this machine for IPUs names what is missing."""

import sys
from pathlib import Path

import pytest

from relm.devices.detection import describe_ipu, find_missing_ipu


@pytest.fixture(autouse=True)
def without_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POPLAR_SDK_ENABLED", "RELM_IPU_PYTHON", "IPUOF_VIPU_API_PARTITION_ID"):
        monkeypatch.delenv(name, raising=False)


def python_with(packages: dict[str, str], folder: Path) -> Path:
    """Return a Python in which these versions are installed."""
    for name, version in packages.items():
        (folder / f"{name}-{version}.dist-info").mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(metadata)
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return path


def test_a_machine_without_the_sdk_is_told_how_to_get_it() -> None:
    missing = find_missing_ipu()
    assert missing is not None
    assert "install it and `source SDK/enable`" in missing
    assert describe_ipu() == f"no: {missing}"


def test_an_absent_interpreter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELM_IPU_PYTHON", "/absent/python3.8")
    assert describe_ipu().startswith("no: RELM_IPU_PYTHON: there is no program /absent/python3.8")


def test_an_interpreter_without_poptorch_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = python_with({"torch": "2.0.1"}, tmp_path)
    monkeypatch.setenv("RELM_IPU_PYTHON", str(python))
    assert describe_ipu().startswith(f"no: {python} has no poptorch; set RELM_IPU_PYTHON")


def test_an_sdk_without_ipus_and_one_on_a_pod_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RELM_IPU_PYTHON", str(python_with({"poptorch": "3.4.0", "torch": "2.0.1"}, tmp_path)))
    assert find_missing_ipu() is None
    assert describe_ipu().startswith("no: poptorch 3.4.0, torch 2.0.1 in ")
    monkeypatch.setenv("IPUOF_VIPU_API_PARTITION_ID", "p")
    assert describe_ipu() == "yes: poptorch 3.4.0, torch 2.0.1, a Pod (IPUOF_VIPU_API_PARTITION_ID)"
