"""The engine of this machine, Docker or podman.

A step runs by the command of the engine, on the line that is also printed and recorded (`run_line`): through Docker's
API podman 4 passes over GPUs. An image is built through that API, which both engines answer: Docker at its socket, podman by a
service that runs as long as the build.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from relm.containers.run_line import ContainerRun, Engine, run_line
from relm.errors import RelmError

ENGINES: tuple[Engine, ...] = ("podman", "docker")
DOCKER = Path("/var/run/docker.sock")
SHOW_COMMANDS = "RELM_SHOW_COMMANDS"
SERVICE_IDLE_SECONDS = 3600  # podman's service ends by itself after that, should this process be killed


def choose_engine(environment: Mapping[str, str] = os.environ) -> Engine:
    """Return RELM_ENGINE, or the engine that is installed.

    Raises:
        RelmError: there is none, or RELM_ENGINE names another program.
    """
    chosen = environment.get("RELM_ENGINE")
    for engine in ENGINES:
        if chosen in (None, engine) and shutil.which(engine, path=environment.get("PATH")):
            return engine
    if chosen is not None:
        fault = "is not installed" if chosen in ENGINES else "is no engine"
        raise RelmError(f"RELM_ENGINE: {chosen!r} {fault}; expected podman or docker")
    raise RelmError("neither podman nor docker is installed; install one (apt install podman), or use real Apptainer")


# --- by its command --------------------------------------------------------------------------------------------------------


def require_image(engine: Engine, reference: str) -> None:
    """Pull an image that the engine does not have.

    Raises:
        RelmError: it was built here and is gone, or it cannot be pulled.
    """
    found = subprocess.run(
        [engine, "image", "inspect", reference], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if found.returncode == 0:
        return
    if reference.startswith("sha256:"):
        *_, message = ["no message", *found.stderr.strip().splitlines()]
        raise RelmError(
            f"{engine} has no image {reference[:19]}..., which containers/lock.local.yaml names ({message[:200]}). It was "
            "removed, or another engine built it (RELM_ENGINE chooses one); build it again: make images"
        )
    if subprocess.run([engine, "pull", reference]).returncode:
        raise RelmError(f"{engine} could not pull {reference}; its message is above")


def execute(engine: Engine, run: ContainerRun, caller: Mapping[str, str]) -> NoReturn:
    """Run a step in its image in the place of this process: its output, its signals and its exit status are the engine's."""
    line = run_line(engine, run, caller)
    if caller.get(SHOW_COMMANDS):
        print(shlex.join(line), file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(line[0], line)


# --- by its API ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def connect(environment: Mapping[str, str] = os.environ) -> Iterator[Any]:
    """Yield the engine's `docker.DockerClient`: at DOCKER_HOST if that is set, else at Docker's socket or podman's service."""
    with contextlib.ExitStack() as stack:
        address = environment.get("DOCKER_HOST")
        if not address and choose_engine(environment) == "podman":
            address = stack.enter_context(podman_service(environment))
        client = stack.enter_context(contextlib.closing(open_client(address or f"unix://{DOCKER}", environment)))
        answering, chosen = name_engine(client), choose_engine(environment)
        if answering != chosen:
            raise RelmError(
                f"DOCKER_HOST: {answering} answers at {address}, but {chosen} runs the steps; "
                f"set RELM_ENGINE={answering}, or unset DOCKER_HOST"
            )
        yield client


@contextlib.contextmanager
def podman_service(environment: Mapping[str, str]) -> Iterator[str]:
    """Run podman's service, as the caller and on the caller's own images, and yield its address."""
    with tempfile.TemporaryDirectory(prefix="relm-podman-") as folder:
        path, log = Path(folder) / "socket", Path(folder) / "log"
        command = ["podman", "system", "service", "--time", str(SERVICE_IDLE_SECONDS), f"unix://{path}"]
        with open(log, "wb") as output, contextlib.ExitStack() as stack:
            # A session of its own: Ctrl-C ends the build, which then ends the service.
            service = subprocess.Popen(command, env=dict(environment), stdout=output, stderr=output, start_new_session=True)
            stack.callback(service.wait)
            stack.callback(service.terminate)
            while not path.is_socket():
                if service.poll() is not None:
                    *_, message = ["no message", *log.read_text(errors="replace").strip().splitlines()]
                    raise RelmError(f"podman does not start its service ({message[:200]}); see podman system service")
                time.sleep(0.02)
            yield f"unix://{path}"


def open_client(address: str, environment: Mapping[str, str]) -> Any:
    """Return a `docker.DockerClient` of what answers at an address."""
    import docker
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env

    try:
        return docker.DockerClient(**{**kwargs_from_env(dict(environment)), "base_url": address}, version="auto", timeout=60)
    except (DockerException, OSError, ValueError) as error:
        raise RelmError(f"{address}: {_explain_failure(error)}, or correct DOCKER_HOST") from None


def _explain_failure(error: BaseException) -> str:
    cause = error
    while cause.__context__ is not None:
        cause = cause.__context__
    if isinstance(cause, PermissionError):
        return "this user has no right to it; join its group (docker) and log in anew, choose podman (RELM_ENGINE=podman)"
    if isinstance(cause, FileNotFoundError | ConnectionRefusedError):
        return "no engine listens there; start Docker (systemctl start docker), choose podman (RELM_ENGINE=podman)"
    message = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return f"what answers there is neither Docker nor podman ({message}); start one"


def name_engine(client: Any) -> Engine:
    """Return which of the two engines answers a client."""
    parts = client.version().get("Components", [])
    return "podman" if any("podman" in str(part.get("Name", "")).lower() for part in parts) else "docker"


@contextlib.contextmanager
def report_engine_errors(action: str) -> Iterator[None]:
    """Turn what the `docker` package raises into one message that says what was being done."""
    import requests
    from docker.errors import APIError, DockerException

    try:
        yield
    except APIError as error:
        raise RelmError(f"{action}: the engine reports: {error.explanation or error}") from None
    except (DockerException, requests.RequestException) as error:
        raise RelmError(
            f"{action}: the engine does not answer any more ({type(error).__name__}); is it still running?"
        ) from None
