"""The line of `relm doctor` on IPUs: what is missing, or which IPUs are reached."""

import sys
from pathlib import Path

import pytest

from relm.devices.detection import describe_ipu, describe_ipu_simulator, find_missing_ipu


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python in its own folder with an installed package named poptorch: only its metadata, since nothing else is read."""
    made = tmp_path / "sdk" / "python3"
    metadata = tmp_path / "sdk" / "packages" / "poptorch-3.3.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: poptorch\nVersion: 3.3.0\n")
    made.write_text(f'#!/bin/sh\nPYTHONPATH={metadata.parents[1]} exec {sys.executable} "$@"\n')
    made.chmod(0o755)
    return made


def test_a_machine_without_the_sdk_is_told_how_to_get_it() -> None:
    missing = find_missing_ipu({})
    assert missing is not None
    assert "install it and `source SDK/enable`" in missing
    assert describe_ipu({}) == f"no: {missing}"


def test_an_enabled_sdk_lacks_nothing(python: Path) -> None:
    assert find_missing_ipu({"RELM_IPU_PYTHON": str(python)}) is None


def test_without_a_python_of_the_sdk_the_line_says_what_to_set() -> None:
    line = describe_ipu({"RELM_IPU_PYTHON": "/opt/none/python3"})
    assert line.startswith("no: RELM_IPU_PYTHON: program /opt/none/python3 not found; set it to the path of the Python")


def test_a_python_without_poptorch_is_named() -> None:
    assert describe_ipu({"RELM_IPU_PYTHON": sys.executable}).startswith(f"no: {sys.executable} has no poptorch; install")


def test_a_python_that_does_not_start_has_no_poptorch(tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text("not a program")
    broken.chmod(0o755)
    assert describe_ipu({"RELM_IPU_PYTHON": str(broken)}).startswith(f"no: {broken} has no poptorch")


def test_without_an_ipu_the_line_names_what_was_looked_for(python: Path, tmp_path: Path) -> None:
    line = describe_ipu({"RELM_IPU_PYTHON": str(python)}, tmp_path)
    assert line.startswith(
        f"no: poptorch 3.3.0 ({python}) finds no IPU: /dev/ipu0 is missing, and neither IPUOF_VIPU_API_PARTI"
    )


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"IPUOF_VIPU_API_HOST": "10.1.5.10", "IPUOF_VIPU_API_PARTITION_ID": "mine"}, "partition mine of a Pod"),
        ({"IPUOF_CONFIG_PATH": "/etc/mine.conf"}, "the partition of a Pod that /etc/mine.conf describes"),
    ],
)
def test_a_pods_partition_is_named(variables: dict[str, str], found: str, python: Path, tmp_path: Path) -> None:
    line = describe_ipu({"RELM_IPU_PYTHON": str(python), **variables}, tmp_path)
    assert line == f"yes: {found}, poptorch 3.3.0 ({python})"


def test_the_ipus_of_cards_are_counted_and_not_their_other_files(python: Path, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("ipu0", "ipu0_ex", "ipu0_mailbox", "ipu0_mem", "ipu1", "ipu1_ex"):
        (tmp_path / "dev" / name).touch()
    line = describe_ipu({"RELM_IPU_PYTHON": str(python)}, tmp_path)
    assert line == f"yes: 2 in this machine, poptorch 3.3.0 ({python})"


def test_the_simulator_needs_only_a_python() -> None:
    assert describe_ipu_simulator({}) == f"yes: pipelines of any number of IPUs on the CPU, in {sys.executable}"
    assert describe_ipu_simulator({"RELM_IPU_PYTHON": "/opt/none"}).startswith("no: RELM_IPU_PYTHON: program /opt/none")
