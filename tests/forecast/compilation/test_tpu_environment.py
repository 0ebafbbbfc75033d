"""Processes of the TPU's environment, with shell scripts instead of its interpreter."""

import threading
import time
from pathlib import Path

import pytest

from relm.errors import RelmError
from relm.forecast.compilation import tpu_environment
from relm.forecast.compilation.tpu_environment import run_module
from relm.recipes.declaration import EXTENSIONS, load_extensions


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that is run as the interpreter, with a module and a folder as arguments."""
    path = tmp_path / "environment" / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.touch(0o755)
    monkeypatch.setenv(tpu_environment.FOLDER, str(path.parents[1]))
    return path


def run(folder: Path, stop: threading.Event | None = None) -> int:
    return run_module("a.module", [folder], {"SAID": "variable"}, folder / "log", "doing this", stop)


def test_it_is_given_its_arguments_and_variables_and_its_output_is_kept(interpreter: Path, tmp_path: Path) -> None:
    interpreter.write_text('#!/bin/sh\necho "$@" "$SAID"\nexit 3\n')
    assert run(tmp_path) == 3
    assert (tmp_path / "log").read_text() == f"-m a.module {tmp_path} variable\n"


def test_it_finds_the_package_and_then_the_modules_that_its_caller_finds(
    interpreter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/extensions")
    interpreter.write_text('#!/bin/sh\necho "$PYTHONPATH"\n')
    run(tmp_path)
    assert (tmp_path / "log").read_text().endswith("/src:/of/extensions\n")


def test_the_tracer_loads_extensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch_xla")
    from relm.forecast.compilation import tracing

    monkeypatch.setenv(EXTENSIONS, "relm_extension_that_is_absent")
    load_extensions.cache_clear()
    (tmp_path / "requests.json").write_text("[]")
    assert tracing.main(tmp_path / "requests.json", tmp_path) == 1
    assert "cannot import relm_extension_that_is_absent" in (tmp_path / tracing.REFUSED).read_text()


def test_one_that_the_system_kills_is_reported(interpreter: Path, tmp_path: Path) -> None:
    interpreter.write_text("#!/bin/sh\nkill -KILL $$\n")
    with pytest.raises(RelmError, match="doing this: killed by the system, usually for lack of memory"):
        run(tmp_path)


def test_those_that_run_side_by_side_are_stopped_together(interpreter: Path, tmp_path: Path) -> None:
    interpreter.write_text('#!/bin/sh\necho $$ > "$3/begun"\nmv "$3/begun" "$3/process"\nexec sleep 100\n')
    stop = threading.Event()

    def stop_when_it_runs() -> None:
        while not (tmp_path / "process").exists():
            time.sleep(0.05)
        stop.set()

    threading.Thread(target=stop_when_it_runs, daemon=True).start()
    with pytest.raises(RelmError, match="doing this: stopped"):
        run(tmp_path, stop)
    assert not Path(f"/proc/{int((tmp_path / 'process').read_text())}").exists()


def test_without_the_environment_no_beginning_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(tpu_environment.FOLDER, str(tmp_path / "nowhere"))
    with pytest.raises(RelmError, match=r"make it with `make \.venv-tpu/made-from`"):
        run(tmp_path)
    assert capsys.readouterr().err == ""
