"""The worker answers, or one message says why it cannot."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from relm.devices.ipu.worker_process import INTERPRETER, WorkerProcess, find_interpreter
from relm.errors import RelmError


def interpreter(folder: Path, lines: str) -> Path:
    """Return the path of a shell script that stands for a Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return path


def refusal(monkeypatch: pytest.MonkeyPatch, python: Path | str, backend: str = "simulator") -> str:
    monkeypatch.setenv(INTERPRETER, str(python))
    with pytest.raises(RelmError) as caught:
        WorkerProcess(backend)
    return str(caught.value)


def test_what_the_worker_prints_does_not_disturb_its_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    noisy = "import os, sys; print('printed'); os.system('echo printed'); os.write(1, b'printed')"
    # The worker imports it after it has taken its pipes.
    real = f"import importlib; sys.path.remove({str(tmp_path)!r}); del sys.modules['numpy']"
    (tmp_path / "numpy.py").write_text(f"{noisy}\n{real}\nsys.modules['numpy'] = importlib.import_module('numpy')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker = WorkerProcess("simulator")
    assert worker.facts["name"]
    worker.close()


def test_the_worker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    import subprocess

    program = (
        "from relm.devices.ipu.worker_process import WorkerProcess; import time\n"
        "print(WorkerProcess('simulator').pid, flush=True); time.sleep(100)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 30
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.05)


def test_a_script_that_starts_no_python_is_not_the_python_of_the_sdk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pyenv puts such a script into PATH for each version, and it works only for those that are enabled."""
    inert = interpreter(tmp_path, 'echo "pyenv: python3.8: command not found" >&2; exit 127')
    monkeypatch.setattr("relm.devices.ipu.worker_process._OF_SDK", (str(inert), sys.executable))
    assert find_interpreter("poptorch", {}) == sys.executable
    interpreter(tmp_path, f'exec {sys.executable} "$@"')
    assert find_interpreter("poptorch", {}) == str(inert)


@pytest.mark.parametrize("lines", ["exec sleep 60", "printf relm; exec sleep 60", "sleep 5; exit 0"])
def test_a_python_that_hangs_is_ended_and_named(lines: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("relm.devices.ipu.worker_process._TIME_TO_START", 0.2)
    path = interpreter(tmp_path, lines)
    begun = time.monotonic()
    found = refusal(monkeypatch, path)
    assert found.startswith(f"{path}: the IPU worker did not answer 'hello' within 0.2 s and was ended. Try `{path} -c")
    assert time.monotonic() - begun < 30


def test_without_a_name_poptorch_needs_the_python_of_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INTERPRETER, raising=False)
    monkeypatch.setattr("relm.devices.ipu.worker_process._OF_SDK", ("python3.8-that-is-absent",))
    with pytest.raises(RelmError, match=r"python3.8-that-is-absent do not have it; install the SDK, or set RELM_IPU_PYTHON"):
        WorkerProcess("poptorch")
    assert find_interpreter("simulator", {}) == sys.executable


def test_a_python_without_poptorch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = refusal(monkeypatch, sys.executable, "poptorch")
    assert "cannot import poptorch: ModuleNotFoundError: No module named 'poptorch'; enable Graphcore's SDK 3.3 or 3.4" in found


@pytest.mark.parametrize(
    ("version", "message"),
    [("3.4.0+1234", r"has torch \S+, but its poptorch 3.4.0\+1234 needs torch 2.0.1; enable"),
     ("3.0.0", "has poptorch 3.0.0, expected 3.3 or 3.4; enable Graphcore's SDK")],
)  # fmt: skip
def test_another_version_of_the_sdk_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, message: str
) -> None:
    folder = tmp_path / f"poptorch-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: poptorch\nVersion: {version}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(INTERPRETER, sys.executable)
    with pytest.raises(RelmError, match=message):
        WorkerProcess("poptorch")


def test_relms_own_packages_are_not_put_before_the_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the image relm is installed next to a torch for another Python."""
    import shutil

    import relm

    installed = tmp_path / "site-packages"
    shutil.copytree(Path(relm.__file__).parent, installed / "relm", ignore=shutil.ignore_patterns("__pycache__"))
    (installed / "torch.py").write_text("raise ImportError('the torch of another Python')")
    monkeypatch.setattr(relm, "__file__", str(installed / "relm" / "__init__.py"))
    worker = WorkerProcess("simulator")
    assert worker.facts["torch"]
    worker.close()


def test_one_worker_reports_its_versions_and_survives_errors_and_signals_until_it_is_closed_or_killed() -> None:
    import torch

    worker = WorkerProcess("simulator")
    assert (worker.facts["torch"], bool(worker.facts["name"])) == (torch.__version__, True)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(worker.pid, number)
        with pytest.raises(RelmError, match=r"failed at the request 'save': AttributeError.* Report its messages above"):
            worker.request("save")
    with pytest.raises(RelmError, match="failed at the request 'dance': KeyError"):
        worker.request("dance")
    os.kill(worker.pid, signal.SIGKILL)
    message = r"the IPU worker \(process \d+\) was ended by SIGKILL; .* the same command resumes the run"
    with pytest.raises(RelmError, match=message):
        worker.request("sum", arrays={"values": np.zeros(1)})
    for _ in range(2):
        worker.close()
        assert not psutil.pid_exists(worker.pid)


def write_file(path: Path, content: bytes, mode: int = 0o755) -> None:
    path.write_bytes(content)
    path.chmod(mode)


# What is called python -> what makes it, and the beginning or a part of the refusal.
INTERPRETERS: dict[str, tuple[Any, str]] = {
    "absent": (lambda path: None, "RELM_IPU_PYTHON: program {path} not found; set it to the path of the Python"),
    "a folder": (Path.mkdir, "RELM_IPU_PYTHON: {path} is a folder; set it to the path of the Python"),
    "not to be executed": (lambda path: write_file(path, b"", 0o644), "{path} is not executable; set it"),
    "no program": (lambda path: write_file(path, b"\x7fELF no program"), "RELM_IPU_PYTHON: {path} cannot be started: "),
    "no numpy": (
        lambda path: interpreter(path.parent, f'exec {sys.executable} -S "$@"'),
        "cannot import numpy: ModuleNotFoundError: No module named 'numpy'; set RELM_IPU_PYTHON to a Python that",
    ),
    "no Python": (lambda path: interpreter(path.parent, "exit 3"), "{path}: the IPU worker ended with exit code 3 before its"),
    "a greeting": (
        lambda path: interpreter(path.parent, f'echo "Welcome to the Pod"; exec {sys.executable} "$@"'),
        "sent an invalid message",
    ),
    "killed": (lambda path: interpreter(path.parent, "kill -9 $$"), "was ended by SIGKILL before its first answer, by another"),
}


@pytest.mark.parametrize(("make", "message"), INTERPRETERS.values(), ids=INTERPRETERS)
def test_what_is_no_python_of_a_worker_is_named(
    make: Any, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make(tmp_path / "python")
    found = refusal(monkeypatch, tmp_path / "python")
    assert message.format(path=tmp_path / "python") in found
    assert "was ended by SIGKILL" not in found or "a Python 3.8" not in found, "its Python is not blamed"
