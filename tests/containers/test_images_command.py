"""`relm images build` and `run` by a real engine, podman or Docker: a step sees what it is given and nothing else."""

import datetime
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import Engine, docker, podman
from probe_image import make_probe_context

from relm.containers.build import build_context
from relm.containers.context import Context
from relm.containers.lock import OVERRIDE, Built, record_built
from relm.errors import RelmError

pytestmark = pytest.mark.containers
STARTED = {"podman": podman, "docker": docker}


@pytest.fixture(scope="module", params=["podman", pytest.param("docker", marks=[pytest.mark.full, pytest.mark.timeout(600)])])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A running engine; its folder has a short name, for a socket's path has at most 107 bytes."""
    with STARTED[request.param](Path(tempfile.mkdtemp(prefix="relm-images-", dir="/var/tmp"))) as running:
        yield running


@pytest.fixture(scope="module")
def probe(engine: Engine, tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Iterator[str]:
    """The id of an image in which the probe takes relm's part; this process has the engine's variables meanwhile."""
    context = make_probe_context(tmp_path_factory.mktemp("probe") / "context")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in engine.environment.items():
            patch.setenv(name, value)
        identifier, size = build_context(context, "cpu", checkout)
        assert size >= (context.folder / "relm").stat().st_size
        yield identifier


@pytest.fixture
def folder(tmp_path: Path, checkout: Path, probe: str) -> Path:
    """A folder with a lock whose cpu image is the probe."""
    made = tmp_path / "checkout"
    (made / "containers").mkdir(parents=True)
    (made / "containers/lock.yaml").write_bytes((checkout / "containers/lock.yaml").read_bytes())
    (made / "recipes/data").mkdir(parents=True)
    record(probe, made)
    return made


def record(identifier: str, folder: Path) -> None:
    """Record an image as the cpu image that was built here."""
    record_built("cpu", Built(id=identifier, bases={}, built=datetime.date(2026, 1, 1)), folder)


def start(engine: Engine, folder: Path, *step: str, **environment: str) -> subprocess.Popen[str]:
    """Start `relm images run cpu` in a folder."""
    command = [sys.executable, "-m", "relm", "images", "run", "cpu", "--", *step]
    kept = {name: value for name, value in os.environ.items() if name != "RELM_WORK"}
    variables = kept | engine.environment | environment
    return subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(engine: Engine, folder: Path, *step: str, **environment: str) -> tuple[int, str, str]:
    """Run a step in the image to its end; return its status and its two streams."""
    process = start(engine, folder, *step, **environment)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_a_step_sees_the_checkout_and_nothing_else(engine: Engine, folder: Path, probe: str) -> None:
    status, out, err = run(engine, folder, "held-out", "--model", "a b", HF_TOKEN="squeamish")
    assert status == 0, err
    lines = out.splitlines()
    assert lines[:5] == ["word held-out", "word --model", "word a b", f"image {probe}", f"user {os.getuid()}:{os.getgid()}"]
    container = {"podman": "container podman", "docker": "container -"}[engine.name]  # a variable that podman alone sets
    assert lines[5:] == ["secret -", "root 0", "scratch 1", "here 1", "beside 1", container, "network 0"]
    assert [path.name for path in folder.parent.iterdir()] == ["checkout"]  # what was written beside it is gone
    made = (folder / "made").stat()
    assert (made.st_uid, made.st_gid) == (os.getuid(), os.getgid())
    assert engine.run("ps", "--all", "--quiet").stdout == ""


def test_a_step_that_needs_the_network_has_it_and_its_token(engine: Engine, folder: Path) -> None:
    _, out, _ = run(engine, folder, "download", HF_TOKEN="squeamish")
    assert {"secret squeamish", "network 1"} <= set(out.splitlines())


def test_a_work_folder_elsewhere_is_there_too(engine: Engine, folder: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    status, _, err = run(engine, folder, "list", RELM_WORK=str(scratch), RELM_SHOW_COMMANDS="1")
    assert status == 0, err
    assert f"--volume {folder}:{folder} --volume {scratch}:{scratch} --workdir {folder}" in err
    assert scratch.stat().st_uid == os.getuid()


def test_a_failing_step_ends_with_its_own_status_after_its_message(engine: Engine, folder: Path) -> None:
    assert run(engine, folder, "fail") == (3, "", "it is broken\n")
    assert engine.run("ps", "--all", "--quiet").stdout == ""


def test_an_image_that_is_gone_is_named(engine: Engine, folder: Path) -> None:
    record("sha256:" + "0" * 64, folder)
    status, _, err = run(engine, folder, "list")
    assert status == 1
    assert err.startswith(f"relm images: {engine.name} has no image sha256:000000000000..., which containers/lock.local.yaml")
    assert "Build it again: make images" in err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 75), (signal.SIGINT, 76)])
def test_what_stops_the_command_stops_the_step_which_may_save(
    engine: Engine, folder: Path, number: signal.Signals, status: int
) -> None:
    process = start(engine, folder, "wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(1)  # podman passes signals on from some milliseconds after the start; before, they end podman alone
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == status
    assert engine.run("ps", "--all", "--quiet").stdout == ""


def test_only_the_image_with_compilers_has_the_network_while_it_is_built(
    engine: Engine, probe: str, tmp_path: Path, checkout: Path
) -> None:
    context = make_probe_context(tmp_path / "context")
    with open(context.folder / "Dockerfile", "a") as file:
        file.write('RUN ["/relm", "offline"]\n')
    if engine.name == "podman":  # the tests' Docker has no network to give
        with pytest.raises(RelmError, match="podman could not build relm/cuda"):
            build_context(context, "cuda", checkout)
    build_context(context, "ipu", checkout)


def test_a_failing_build_shows_the_engines_message_and_leaves_no_image(
    engine: Engine, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    context = folder / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM scratch\nCOPY absent /\n")
    before = (folder / OVERRIDE).read_text()
    with pytest.raises(RelmError, match=f"{engine.name} could not build relm/cuda:0.1.0; its message is above"):
        build_context(Context(context, {}, {}), "cuda", folder)
    assert "absent" in capfd.readouterr().err
    assert (folder / OVERRIDE).read_text() == before
    assert "cuda" not in engine.run("images").stdout
