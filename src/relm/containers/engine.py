"""Run Docker or podman, whichever this machine has."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from relm.containers.run_line import ContainerRun, Engine, run_line
from relm.errors import RelmError

ENGINES: tuple[Engine, ...] = ("podman", "docker")
SHOW_COMMANDS = "RELM_SHOW_COMMANDS"
# The time of our layers' files and of the image, so that the same content gives the same bytes in any build. Podman sets it;
# Docker's builder without BuildKit does not. 1980 is the first year of a zip archive.
TIMESTAMP = 315532800


def choose_engine(environment: Mapping[str, str] = os.environ) -> Engine:
    """Return RELM_ENGINE, or the installed engine; raise RelmError if there is none."""
    chosen = environment.get("RELM_ENGINE")
    for engine in ENGINES:
        if chosen in (None, engine) and shutil.which(engine, path=environment.get("PATH")):
            return engine
    if chosen is not None:
        fault = "is not installed" if chosen in ENGINES else "is not an engine"
        raise RelmError(f"RELM_ENGINE: {chosen!r} {fault}; expected podman or docker")
    raise RelmError("podman and docker are not installed; install one (apt install podman), or use real Apptainer")


def require_image(engine: Engine, reference: str) -> None:
    """Pull an image unless the engine has it; raise RelmError for one that was built here and is gone."""
    found = subprocess.run(
        [engine, "image", "inspect", reference], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if found.returncode == 0:
        return
    if reference.startswith("sha256:"):
        *_, message = ["no message", *found.stderr.strip().splitlines()]
        raise RelmError(
            f"{engine} has no image {reference[:19]}..., which containers/lock.local.yaml names ({message[:200]}). It was "
            "removed, or another engine built it (see RELM_ENGINE). Build it again: make images"
        )
    if subprocess.run([engine, "pull", reference]).returncode:
        raise RelmError(f"{engine} could not pull {reference}; its message is above")


def build_image(engine: Engine, folder: Path, tag: str, arguments: Mapping[str, str], network: bool) -> tuple[str, int]:
    """Build a folder's Dockerfile, with output on stderr; return the image's id, ``sha256:...``, and its size in bytes."""
    words = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    words += ["--timestamp", str(TIMESTAMP)] if engine == "podman" else []
    words += [] if network else ["--network", "none"]
    if subprocess.run([engine, "build", "--force-rm", "--tag", tag, *words, str(folder)], stdout=sys.stderr).returncode:
        raise RelmError(f"{engine} could not build {tag}; its message is above")
    shown = [engine, "image", "inspect", "--format", "{{.Id}} {{.Size}}", tag]
    identifier, size = subprocess.run(shown, capture_output=True, text=True, check=True).stdout.split()
    return f"sha256:{identifier.removeprefix('sha256:')}", int(size)


def execute(engine: Engine, run: ContainerRun, caller: Mapping[str, str]) -> NoReturn:
    """Replace this process by the engine, which runs a step in its image."""
    line = run_line(engine, run, caller)
    if caller.get(SHOW_COMMANDS):
        print(shlex.join(line), file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(line[0], line)
