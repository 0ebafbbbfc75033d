"""Whatever keeps us from an engine is one clear sentence."""

import contextlib
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from relm.containers import engine_socket
from relm.containers.engine_socket import address, connected, refusal, sockets
from relm.errors import RelmError
from small_project import Commands


@contextlib.contextmanager
def talker(path: Path, says: bytes) -> Iterator[None]:
    """Something that listens at a socket and answers every request with the same bytes."""
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
                    connection.sendall(says)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_docker_is_tried_first_and_then_podman_of_the_user_and_of_root() -> None:
    assert [str(path) for path in sockets({"XDG_RUNTIME_DIR": "/run/user/7"})] == [
        "/var/run/docker.sock",
        "/run/user/7/podman/podman.sock",
        "/run/podman/podman.sock",
    ]
    assert len(sockets({})) == 2


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine on which no engine has a socket; the folder in which the user's podman would have one."""
    monkeypatch.setattr(engine_socket, "DOCKER", tmp_path / "docker.sock")
    monkeypatch.setattr(engine_socket, "PODMAN_OF_ROOT", tmp_path / "podman.sock")
    (tmp_path / "user" / "podman").mkdir(parents=True)
    return tmp_path


def test_without_any_engine_the_places_are_told_and_what_to_start(nowhere: Path) -> None:
    with pytest.raises(RelmError) as caught:
        connected({"XDG_RUNTIME_DIR": str(nowhere / "user")})
    places = f"{nowhere}/docker.sock, {nowhere}/user/podman/podman.sock, {nowhere}/podman.sock"
    assert str(caught.value) == (
        f"no engine is running here: there is none of {places}; start Docker (systemctl start docker) or podman's socket "
        "(systemctl --user start podman.socket), or set DOCKER_HOST"
    )


def test_a_socket_at_which_nobody_listens_is_passed_over_for_one_that_answers(nowhere: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(nowhere / "docker.sock"))
    with talker(nowhere / "user/podman/podman.sock", b""):
        assert address({"XDG_RUNTIME_DIR": str(nowhere / "user")}) == f"unix://{nowhere}/user/podman/podman.sock"
    with pytest.raises(RelmError, match=r"docker.sock: no engine listens there any more; start Docker .*; .*podman.sock: no"):
        address({"XDG_RUNTIME_DIR": str(nowhere / "user")})


def test_what_docker_host_names_is_the_only_one_tried(nowhere: Path) -> None:
    with (
        talker(nowhere / "docker.sock", b""),
        pytest.raises(RelmError, match=r"^DOCKER_HOST: /no/such: there is no such socket"),
    ):
        address({"DOCKER_HOST": "unix:///no/such"})


def test_a_file_in_the_place_of_a_socket_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(refusal(tmp_path / "file")).startswith(f"{tmp_path}/file: this is a file and no socket; start")
    assert "path too long" in str(refusal(tmp_path / ("x" * 200)))


def test_a_socket_of_others_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """As somebody who may not: root may everything, so another process drops its rights first."""
    path = tmp_path / "docker.sock"
    for folder in (tmp_path, *tmp_path.parents):
        with contextlib.suppress(PermissionError):
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH | stat.S_IXGRP)
    with talker(path, b""):
        path.chmod(0)
        program = "import os, sys; from pathlib import Path; from relm.containers.engine_socket import refusal\n"
        program += "os.getuid() or os.setuid(65534)\nprint(refusal(Path(sys.argv[1])))"
        done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{path}: this user has no right to it; join its group (docker)")


@pytest.mark.parametrize(
    "says",
    [b"", b"what do you want?\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"HTTP/1.1 404 Not Found\r\n\r\n"],
    ids=["nothing", "nonsense", "text", "another server"],
)
def test_what_answers_otherwise_is_said_to_be_no_engine(tmp_path: Path, says: bytes) -> None:
    with talker(tmp_path / "s", says), pytest.raises(RelmError) as caught:
        connected({"DOCKER_HOST": f"unix://{tmp_path}/s"})
    words = str(caught.value)
    assert words.startswith(f"unix://{tmp_path}/s: what answers there is neither Docker nor podman (")
    assert words.endswith("); correct DOCKER_HOST")
    assert "\n" not in words


@pytest.mark.parametrize("host", ["tcp://127.0.0.1:9", "nonsense://x", "tcp://"])
def test_another_address_without_an_engine_is_one_sentence_too(host: str) -> None:
    with pytest.raises(RelmError, match=f"^{host}: what answers there is neither"):
        connected({"DOCKER_HOST": host})


def test_the_command_says_it_without_a_traceback(project: Commands) -> None:
    for arguments in (["build", "cpu", "--base", "x"], ["run", "cpu", "--", "list"]):
        done = project.relm("images", *arguments, DOCKER_HOST=f"unix://{project.folder}/none")
        assert done.returncode == 1
        assert done.stderr.startswith("relm images: DOCKER_HOST: ")
        assert done.stderr.count("\n") == 1
        assert os.listdir(project.folder / "containers") == os.listdir(Path("containers").resolve())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "run needs a role, one of cpu, cuda, tpu, ipu; found none"),
        (["build", "gpu"], "build needs a role, one of cpu, cuda, tpu, ipu; found gpu"),
        (["run", "cpu"], "say which step runs in the image: relm images run cpu -- STEP ARGUMENTS"),
        (["build", "cpu", "--write"], "--write belongs to `relm images resolve`; leave it out"),
        (["resolve", "cpu", "--base", "x"], "--base belongs to `relm images build`; leave it out"),
        (["resolve", "cpu", "list"], "a step belongs to `relm images run`; leave it out"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_in_the_command_is_told(arguments: list[str], words: str, project: Commands) -> None:
    done = project.relm("images", *arguments)
    assert (done.returncode, done.stderr) == (1, f"relm images: {words}\n")
