"""The locked environment: everything by hash, no CUDA by accident, and a plain word where a device has none yet."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("ipu", "poptorch comes only with Graphcore's Poplar SDK"),
        ("tpu", "there is no lock for DEVICE=tpu yet"),
        ("gpu", "DEVICE=gpu is unknown; one of cpu, cuda, tpu, ipu"),
    ],
)
def test_a_device_without_an_environment_says_what_to_do(device: str, words: str, checkout: Path) -> None:
    command = [sys.executable, "envs/make_environment.py", "--device", device]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True)
    assert done.returncode != 0
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("lock", ["torch-cpu.txt", "torch-cuda.txt", "cpu.txt", "test.txt"])
def test_every_locked_package_has_one_version_and_hashes(lock: str, checkout: Path) -> None:
    text = (checkout / "envs" / lock).read_text().replace("\\\n", " ")
    packages = [line for line in text.splitlines() if line.strip() and not line.startswith(("#", "--"))]
    assert packages
    assert [line for line in packages if not re.match(r"^[\w.-]+(\[[\w,]+\])?==\S+.*--hash=sha256:[0-9a-f]{64}", line)] == []


def test_the_cpu_environment_holds_no_cuda_and_torch_stands_alone(checkout: Path) -> None:
    locked = (checkout / "envs" / "cpu.txt").read_text() + (checkout / "envs" / "test.txt").read_text()
    assert not re.search(r"^(torch|nvidia|triton|cuda)[\w-]*==", locked, re.M)
    torch = [line for line in (checkout / "envs" / "torch-cpu.txt").read_text().splitlines() if line[0] not in "#-"]
    assert len(torch) == 1
    assert torch[0].startswith("torch==2.13.0+cpu --hash=sha256:")


def test_this_environment_is_the_locked_one(checkout: Path) -> None:
    """Every version in the lock is the version that is imported here."""
    from importlib.metadata import version

    for name, wanted in re.findall(r"^([\w.-]+)==(\S+)", (checkout / "envs" / "cpu.txt").read_text(), re.M):
        assert version(name) == wanted, name
