"""The worker answers, or one message says why it cannot."""

import os
import signal
import sys
import time
from pathlib import Path

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


@pytest.fixture
def worker() -> WorkerProcess:
    worker = WorkerProcess("simulator")
    yield worker
    worker.close()


def test_the_worker_reports_its_hardware_and_versions_before_a_model_is_known(worker: WorkerProcess) -> None:
    import torch

    assert worker.facts["torch"] == torch.__version__
    assert worker.facts["name"]


def test_an_error_of_a_request_leaves_the_worker_usable(worker: WorkerProcess) -> None:
    for _ in range(2):
        with pytest.raises(RelmError, match=r"failed at the request 'save': AttributeError.* report them with the recipe"):
            worker.request("save")
    with pytest.raises(RelmError, match="failed at the request 'dance': KeyError"):
        worker.request("dance")


def test_what_the_worker_prints_does_not_disturb_its_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    noisy = "import os, sys; print('printed'); os.system('echo printed'); os.write(1, b'printed')"
    # The worker imports it after it has taken its pipes.
    real = f"import importlib; sys.path.remove({str(tmp_path)!r}); del sys.modules['numpy']"
    (tmp_path / "numpy.py").write_text(f"{noisy}\n{real}\nsys.modules['numpy'] = importlib.import_module('numpy')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker = WorkerProcess("simulator")
    assert worker.facts["name"]
    worker.close()


def test_a_killed_worker_is_named(worker: WorkerProcess) -> None:
    os.kill(worker.pid, signal.SIGKILL)
    message = r"the IPU worker \(process \d+\) was ended by SIGKILL; .* the same command resumes the run"
    with pytest.raises(RelmError, match=message):
        worker.request("sum", arrays={"values": np.zeros(1)})


def test_term_and_int_do_not_end_the_worker(worker: WorkerProcess) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(worker.pid, number)
    with pytest.raises(RelmError, match="failed at the request 'save'"):
        worker.request("save")


def test_a_closed_worker_has_ended() -> None:
    worker = WorkerProcess("simulator")
    worker.close()
    assert not psutil.pid_exists(worker.pid)
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


def test_an_absent_interpreter_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = refusal(monkeypatch, tmp_path / "python3.8")
    assert found.startswith(f"{INTERPRETER}: there is no program {tmp_path / 'python3.8'}; set it to the path of the Python")


def test_a_folder_or_a_file_that_may_not_be_executed_is_no_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert refusal(monkeypatch, tmp_path).startswith(f"{INTERPRETER}: {tmp_path} is a folder; set it to the path of the Python")
    (tmp_path / "python").touch(mode=0o644)
    assert f"{tmp_path / 'python'} may not be executed; set it" in refusal(monkeypatch, tmp_path / "python")


def test_a_script_that_starts_no_python_is_not_the_python_of_the_sdk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pyenv puts such a script into PATH for each version, and it works for those that are enabled alone."""
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
    assert found.startswith(f"{path}: the IPU worker gave no answer to 'hello' within 0.2 s, and was ended; try `{path} -c")
    assert time.monotonic() - begun < 30


def test_a_worker_that_is_killed_at_its_start_is_not_blamed_on_its_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = refusal(monkeypatch, interpreter(tmp_path, "kill -9 $$"))
    assert "was ended by SIGKILL before its first answer, by another process or for want of memory; give the same" in found
    assert "Expected Python 3.8" not in found


def test_without_a_name_poptorch_needs_the_python_of_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INTERPRETER, raising=False)
    monkeypatch.setattr("relm.devices.ipu.worker_process._OF_SDK", ("python3.8-that-is-absent",))
    with pytest.raises(RelmError, match=r"python3.8-that-is-absent was found; install the SDK, or set RELM_IPU_PYTHON"):
        WorkerProcess("poptorch")
    assert find_interpreter("simulator", {}) == sys.executable


def test_a_file_that_is_no_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.write_bytes(b"\x7fELF no program")
    path.chmod(0o755)
    assert f"{INTERPRETER}: {path} cannot be started: " in refusal(monkeypatch, path)


def test_a_python_without_numpy_or_torch_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = refusal(monkeypatch, interpreter(tmp_path, f'exec {sys.executable} -S "$@"'))
    assert "cannot import numpy: ModuleNotFoundError: No module named 'numpy'; set RELM_IPU_PYTHON to a Python that" in found


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


def test_a_program_that_is_no_python_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = interpreter(tmp_path, "exit 3")
    found = refusal(monkeypatch, path)
    assert found.startswith(f"{path}: the IPU worker ended with exit code 3 before its first answer")


def test_a_program_that_writes_something_else_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = interpreter(tmp_path, f'echo "Welcome to the Pod"; exec {sys.executable} "$@"')
    found = refusal(monkeypatch, path)
    assert "sent something that is not a message" in found
    assert "b'Welcome '" in found


def test_relms_own_packages_are_not_put_before_the_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the image relm is installed beside a torch for another Python."""
    import shutil

    import relm

    installed = tmp_path / "site-packages"
    shutil.copytree(Path(relm.__file__).parent, installed / "relm", ignore=shutil.ignore_patterns("__pycache__"))
    (installed / "torch.py").write_text("raise ImportError('the torch of another Python')")
    monkeypatch.setattr(relm, "__file__", str(installed / "relm" / "__init__.py"))
    worker = WorkerProcess("simulator")
    assert worker.facts["torch"]
    worker.close()
