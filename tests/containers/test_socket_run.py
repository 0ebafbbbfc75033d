"""`relm images build` and `run` through a real engine's socket, podman's or Docker's: a step sees what it is given alone."""

import datetime
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_engine import SOCKETS, probe_context

from relm.containers.engine_socket import connected
from relm.containers.lock import Built, image_of, read_override, record_built
from relm.containers.socket_build import run_build
from relm.containers.socket_run import StepFailed, engine_of, run_in_image, run_of
from relm.errors import RelmError
from relm.recipes.plan import Project

pytestmark = pytest.mark.containers
TODAY = datetime.date(2026, 1, 1)


@pytest.fixture(scope="module", params=["podman", pytest.param("docker", marks=[pytest.mark.full, pytest.mark.timeout(600)])])
def name(request: pytest.FixtureRequest) -> str:
    """Of the engine."""
    return str(request.param)


@pytest.fixture(scope="module")
def engine(name: str) -> Iterator[Path]:
    """An engine's socket; its folder has a short name, for a socket's path has at most 107 bytes."""
    with SOCKETS[name](Path(tempfile.mkdtemp(prefix="relm-socket-", dir="/var/tmp"))) as path:
        yield path


@pytest.fixture(scope="module")
def client(engine: Path) -> Any:
    return connected({"DOCKER_HOST": f"unix://{engine}"})


@pytest.fixture(scope="module")
def probe(client: Any, tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> str:
    """The id of an image in which the probe stands for relm."""
    context = probe_context(tmp_path_factory.mktemp("probe") / "context")
    return run_build(client, context, {}, image_of("cpu", checkout), "cpu")


@pytest.fixture
def in_checkout(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch, probe: str) -> Path:
    """A folder with a lock whose cpu image is the probe; the current folder."""
    folder = tmp_path / "checkout"
    (folder / "containers").mkdir(parents=True)
    (folder / "containers/lock.yaml").write_bytes((checkout / "containers/lock.yaml").read_bytes())
    (folder / "recipes/data").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("RELM_WORK", raising=False)
    record_built("cpu", Built(id=probe, bases={}, built=TODAY), folder)
    return folder


def test_the_engine_says_which_one_it_is(client: Any, name: str) -> None:
    assert engine_of(client) == name


def test_a_step_sees_the_checkout_and_nothing_else(
    client: Any,
    name: str,
    in_checkout: Path,
    probe: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "squeamish")
    said = run_in_image(client, run_of("cpu", ["held-out", "--model", "a b"], Project()))
    assert said == f"held-out ran in the image {probe}"
    out = capfd.readouterr().out.splitlines()
    assert out[:5] == ["word held-out", "word --model", "word a b", f"image {probe}", f"user {os.getuid()}:{os.getgid()}"]
    container = {"podman": "container podman", "docker": "container -"}[name]  # a variable that podman alone sets
    assert out[5:] == ["secret -", "root 0", "scratch 1", "here 1", "beside 1", container, "network 0"]
    assert [path.name for path in in_checkout.parent.iterdir()] == ["checkout"]  # what was written beside it is gone
    made = (in_checkout / "made").stat()
    assert (made.st_uid, made.st_gid) == (os.getuid(), os.getgid())
    assert client.containers.list(all=True) == []


def test_a_step_that_needs_the_network_has_it_and_its_token(
    client: Any, in_checkout: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "squeamish")
    run_in_image(client, run_of("cpu", ["download"], Project()))
    out = capfd.readouterr().out.splitlines()
    assert "secret squeamish" in out
    assert "network 1" in out


def test_a_work_folder_elsewhere_is_there_too(
    client: Any, in_checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELM_WORK", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    assert run_of("cpu", ["list"], Project()).writable == [in_checkout, tmp_path / "scratch"]
    run_in_image(client, run_of("cpu", ["list"], Project()))


def test_a_failing_step_ends_with_its_own_status_after_it_said_why(
    client: Any, in_checkout: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StepFailed, match="fail ended with 3 in the image sha256:") as caught:
        run_in_image(client, run_of("cpu", ["fail"], Project()))
    assert caught.value.exit_code == 3
    assert capfd.readouterr().err == "it is broken\n"
    assert client.containers.list(all=True) == []


def test_an_image_that_is_gone_is_named(client: Any, in_checkout: Path) -> None:
    record_built("cpu", Built(id="sha256:" + "0" * 64, bases={}, built=TODAY), in_checkout)
    with pytest.raises(RelmError, match=r"running sha256:000.*: the engine does not have the image"):
        run_in_image(client, run_of("cpu", ["list"], Project()))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 75), (signal.SIGINT, 76)])
def test_what_stops_the_command_stops_the_step_which_may_save(
    engine: Path, client: Any, in_checkout: Path, number: signal.Signals, status: int
) -> None:
    environment = {**os.environ, "DOCKER_HOST": f"unix://{engine}"}
    command = [sys.executable, "-m", "relm", "images", "run", "cpu", "--", "wait"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == status
    assert err.startswith(f"relm images: wait ended with {status} in the image sha256:")
    assert client.containers.list(all=True) == []


def test_a_failing_build_has_the_engines_last_words_and_leaves_no_image(client: Any, tmp_path: Path, in_checkout: Path) -> None:
    (tmp_path / "context").mkdir()
    (tmp_path / "context/Dockerfile").write_text("FROM scratch\nCOPY absent /\n")
    before = read_override(in_checkout)
    with pytest.raises(RelmError, match=r"the build failed; the engine's last words:\n(.*\n)*.*absent"):
        run_build(client, tmp_path / "context", {}, image_of("cuda"), "cuda")
    assert read_override(in_checkout) == before
    assert not [tag for image in client.images.list() for tag in image.tags if "cuda" in tag]
