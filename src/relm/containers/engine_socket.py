"""The engine of this machine, Docker or podman, through its socket: found, and its refusals told in one sentence each.

Both answer Docker's API, so the `docker` package speaks to either.
"""

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from relm.errors import RelmError

DOCKER, PODMAN_OF_ROOT = Path("/var/run/docker.sock"), Path("/run/podman/podman.sock")
START = "start Docker (systemctl start docker) or podman's socket (systemctl --user start podman.socket)"


def sockets(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Where engines listen on this machine, in the order they are tried."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    of_user = [Path(runtime) / "podman" / "podman.sock"] if runtime else []
    return [DOCKER, *of_user, PODMAN_OF_ROOT]


def address(environment: Mapping[str, str] = os.environ) -> str:
    """Of the engine: `DOCKER_HOST` or else the first socket at which one listens, as ``unix://PATH``.

    Raises:
        RelmError: none listens, or this user may not speak to it; tells of each socket that is there why not.
    """
    if given := environment.get("DOCKER_HOST"):
        if given.startswith("unix://") and (why := refusal(Path(given.removeprefix("unix://")))):
            raise RelmError(f"DOCKER_HOST: {why}")
        return given
    refusals = []
    for path in sockets(environment):
        if not path.exists():
            continue
        why = refusal(path)
        if why is None:
            return f"unix://{path}"
        refusals.append(why)
    if refusals:
        raise RelmError("; ".join(refusals))
    tried = ", ".join(str(path) for path in sockets(environment))
    raise RelmError(f"no engine is running here: there is none of {tried}; {START}, or set DOCKER_HOST")


def refusal(path: Path) -> str | None:
    """Why nobody can speak to an engine at a socket; None if something listens there and lets us in."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(10)
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return f"{path}: there is no such socket; {START}"
        except PermissionError:
            return f"{path}: this user has no right to it; join its group (docker) and log in anew, or use podman's own socket"
        except ConnectionRefusedError:
            kind = "no engine listens there any more" if path.is_socket() else "this is a file and no socket"
            return f"{path}: {kind}; {START}"
        except OSError as error:  # a path too long for a socket, a loop of links, a time-out
            return f"{path}: {error.strerror or error}; {START}"
    return None


def connected(environment: Mapping[str, str] = os.environ) -> Any:
    """A `docker.DockerClient` of the engine.

    Raises:
        RelmError: there is no engine, no right to it, or what answers is none.
    """
    import docker
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env

    where = address(environment)
    try:
        return docker.DockerClient(**{**kwargs_from_env(dict(environment)), "base_url": where}, version="auto", timeout=60)
    except (DockerException, OSError, ValueError) as error:
        said = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise RelmError(f"{where}: what answers there is neither Docker nor podman ({said}); correct DOCKER_HOST") from None


@contextlib.contextmanager
def in_words(doing: str) -> Iterator[None]:
    """Turn what the `docker` package raises into one message that says what was being done.

    Raises:
        RelmError: in the stead of the package's own errors.
    """
    import requests
    from docker.errors import APIError, DockerException, ImageNotFound

    try:
        yield
    except ImageNotFound as error:
        raise RelmError(f"{doing}: the engine does not have the image: {error.explanation or error}") from None
    except APIError as error:
        raise RelmError(f"{doing}: the engine says: {error.explanation or error}") from None
    except (DockerException, requests.RequestException) as error:
        raise RelmError(
            f"{doing}: the engine does not answer any more ({type(error).__name__}); is it still running?"
        ) from None
