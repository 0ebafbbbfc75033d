"""The engine is chosen once, and whatever keeps relm from it is one clear sentence."""

import contextlib
import os
import re
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from relm.cli import main
from relm.containers import engine
from relm.containers.engine import ENGINES, choose_engine, connect
from relm.errors import RelmError
from small_project import Commands


@contextlib.contextmanager
def answering(path: Path, answer: bytes) -> Iterator[None]:
    """Listen at a socket, and answer every request with the same bytes."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):  # one that only looks whether somebody listens
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def install_programs(folder: Path, *names: str) -> str:
    """Make programs that do nothing, and return the PATH that has them alone."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_podman_comes_before_docker_and_relm_engine_before_both(tmp_path: Path) -> None:
    both, docker = install_programs(tmp_path / "both", *ENGINES), install_programs(tmp_path / "one", "docker")
    assert choose_engine({"PATH": both}) == "podman"
    assert choose_engine({"PATH": docker}) == "docker"
    assert choose_engine({"PATH": both, "RELM_ENGINE": "docker"}) == "docker"


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({}, "neither podman nor docker is installed; install one"),
        ({"RELM_ENGINE": "rkt"}, "RELM_ENGINE: 'rkt' is no engine; expected podman or docker"),
        ({"RELM_ENGINE": "podman"}, "RELM_ENGINE: 'podman' is not installed; expected podman or docker"),
    ],
)
def test_no_engine_and_a_strange_engine_are_named(chosen: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(RelmError, match=message):
        choose_engine({"PATH": str(tmp_path), **chosen})


def refused(address: str | None, **environment: str) -> str:
    """Return the message about an engine that cannot be reached."""
    with pytest.raises(RelmError) as caught, connect(environment | ({"DOCKER_HOST": address} if address else {})):
        pass
    return str(caught.value)


def test_docker_is_sought_at_its_socket_and_at_docker_host_alone_where_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "DOCKER", tmp_path / "docker.sock")
    path = install_programs(tmp_path / "bin", "docker")
    nobody = "no engine listens there; start Docker (systemctl start docker), choose podman"
    assert refused(None, PATH=path).startswith(f"unix://{tmp_path}/docker.sock: {nobody}")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(tmp_path / "docker.sock"))
    assert refused(None, PATH=path).startswith(f"unix://{tmp_path}/docker.sock: {nobody}")
    assert refused("unix:///no/such", PATH=path).startswith(f"unix:///no/such: {nobody}")


def test_a_podman_that_starts_no_service_is_quoted(tmp_path: Path) -> None:
    path = install_programs(tmp_path / "bin", "podman")
    (tmp_path / "bin/podman").write_text('#!/bin/sh\necho "begin"; echo "unknown command: $*" >&2; exit 125\n')
    with (
        pytest.raises(RelmError, match=r"podman does not start its service \(unknown command: system service"),
        connect({"PATH": path}),
    ):
        pass


def test_a_socket_of_others_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """As somebody who may not: root may everything, so another process drops its rights first."""
    path = tmp_path / "docker.sock"
    for folder in (tmp_path, *tmp_path.parents):
        with contextlib.suppress(PermissionError):
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH | stat.S_IXGRP)
    with answering(path, b""):
        path.chmod(0)
        program = "import docker, os, sys; from relm.containers.engine import open_client\n"
        program += "os.getuid() or os.setuid(65534)\nopen_client(sys.argv[1], {})"
        done = subprocess.run([sys.executable, "-c", program, f"unix://{path}"], capture_output=True, text=True)
    assert f"unix://{path}: this user has no right to it; join its group (docker)" in done.stderr


@pytest.mark.parametrize(
    "answer",
    [b"", b"what do you want?\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"HTTP/1.1 404 Not Found\r\n\r\n"],
    ids=["nothing", "nonsense", "text", "another server"],
)
def test_what_answers_otherwise_is_not_taken_for_an_engine(tmp_path: Path, answer: bytes) -> None:
    with answering(tmp_path / "s", answer):
        message = refused(f"unix://{tmp_path}/s")
    assert message.startswith(f"unix://{tmp_path}/s: what answers there is neither Docker nor podman (")
    assert message.endswith("); start one, or correct DOCKER_HOST")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("tcp://127.0.0.1:9", "no engine listens there"),
        ("nonsense://x", "what answers there is neither"),
        ("tcp://", "what answers there is neither"),
        (f"unix:///{'x' * 200}", "what answers there is neither Docker nor podman (.*too long"),
    ],
)
def test_another_address_without_an_engine_is_one_sentence_too(host: str, message: str) -> None:
    assert re.match(f"{host}: {message}".replace("podman (", r"podman \("), refused(host))


def test_the_command_reports_it_without_a_traceback(project: Commands) -> None:
    done = project.relm("images", "build", "cpu", "--base", "x", DOCKER_HOST=f"unix://{project.folder}/none")
    assert done.returncode == 1
    assert done.stderr.startswith(f"relm images: unix://{project.folder}/none: no engine listens there")
    assert done.stderr.count("\n") == 1
    assert os.listdir(project.folder / "containers") == os.listdir(Path("containers").resolve())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "run needs a role, one of cpu, cuda, tpu, ipu; found none"),
        (["build", "gpu"], "build needs a role, one of cpu, cuda, tpu, ipu; found gpu"),
        (["run", "cpu"], "no step was given; expected: relm images run cpu -- STEP ARGUMENTS"),
        (["run", "cpu", "list", "--log", "x"], "--log belongs to the step that runs in the image; put it after --"),
        (["build", "cpu", "--write"], "--write belongs to `relm images resolve`; leave it out"),
        (["resolve", "cpu", "--base", "x"], "--base belongs to `relm images build`; leave it out"),
        (["resolve", "cpu", "list"], "a step belongs to `relm images run`; leave it out"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_in_the_command_is_named(
    arguments: list[str], message: str, project: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.folder)
    assert main(["images", *arguments]) == 1
    assert capsys.readouterr().err == f"relm images: {message}\n"
