"""The few calls that Snakemake 9 makes of Apptainer, carried out by Docker or podman.

With `containers/bin` first in PATH, `snakemake --sdm apptainer` runs each rule in its image, with the flags that the image's
device needs, the network only for steps that need it, and the checkout and the work folder mounted and nothing else.
RELM_ENGINE says which engine; without it podman or docker, whichever is there. On a cluster real Apptainer takes its place.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from relm.containers.lock import image_of, read_override, role_of
from relm.containers.placement import STEP_COMMAND, placement, words_of
from relm.containers.run_line import Engine, Run, devices_here, run_line
from relm.errors import RelmError
from relm.recipes.identity import work_folder
from relm.recipes.plan import Project

# Snakemake reads the first word and the last.
VERSION = "apptainer version 1.4.0"
ENGINES: tuple[Engine, ...] = ("podman", "docker")
TRACE = "RELM_SHOW_COMMANDS"


def engine() -> Engine:
    """Which engine is asked: RELM_ENGINE, or the one that is installed.

    Raises:
        RelmError: there is none, or RELM_ENGINE names another program.
    """
    wanted = os.environ.get("RELM_ENGINE")
    for known in ENGINES:
        if wanted == known or (wanted is None and shutil.which(known)):
            return known
    if wanted is not None:
        raise RelmError(f"RELM_ENGINE: expected podman or docker, found {wanted!r}")
    raise RelmError("neither podman nor docker is installed; install one (apt install podman), or use real Apptainer")


def pull(arguments: Sequence[str]) -> int:
    """``pull --name FILE docker://IMAGE``: have the image, and note in the file which one it is."""
    name, reference = Path(arguments[arguments.index("--name") + 1]), arguments[-1].removeprefix("docker://")
    asked = engine()
    if subprocess.run([asked, "image", "inspect", reference], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        if reference.startswith("sha256:"):
            raise RelmError(
                f"{asked} has no image {reference[:19]}..., which containers/lock.local.yaml names: it was removed, or another "
                "engine built it (RELM_ENGINE says which one is asked); build it again: make images"
            )
        if (status := subprocess.run([asked, "pull", reference]).returncode) != 0:
            return status
    name.write_text(f"{reference}\n")
    return 0


def run_of(arguments: Sequence[str]) -> Run:
    """``exec --home FOLDER IMAGE SHELL -c COMMAND`` as a run: its image, its mounts, its network.

    Raises:
        RelmError: there is an option that would mount or allow more, or the image is not one of the lock's.
    """
    words, home = list(arguments), Path.cwd()
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "--home":
            home = Path(words.pop(0))
        elif option == "--bind":  # Snakemake's cache of scripts, which no rule here has
            words.pop(0)
        else:
            raise RelmError(f"{option}: --apptainer-args are for real Apptainer; what Docker and podman get stands in the lock")
    given, shell, _, command = words
    image = image_in(given)
    step = placement(words_of(command), Project())
    entry = image_of(role_of(image))
    return Run(
        image=entry,
        reference=built_id(image),
        command=["-c", as_last(command)],
        entry_point=shell,
        writable=writable_folders(home),
        read=step.reads,
        working_folder=home,
        network=step.network,
        devices=devices_here(entry),
    )


def image_in(given: str) -> str:
    """What `pull` noted, or the path of an image for real Apptainer."""
    file = Path(given)
    return file.read_text().strip() if file.suffix == ".simg" and file.is_file() else given


def built_id(image: str) -> str:
    """The image by the engine's name where the lock's override names it by Apptainer's."""
    for built in read_override().images.values():
        if image == str(built.apptainer):
            return built.id
    return image


def writable_folders(home: Path) -> list[Path]:
    """The checkout and, where it lies elsewhere, the work folder, which the engine must find there."""
    work = work_folder().resolve()
    work.mkdir(parents=True, exist_ok=True)
    return [home] if work.is_relative_to(home.resolve()) else [home, work]


def as_last(command: str) -> str:
    """A shell command in which the step takes the shell's place, so that a signal to the container reaches the step."""
    found = STEP_COMMAND.search(command)
    if found is None or re.search(r"[|&;<>\n]", command[found.end() :].strip()):
        return command
    return f"{command[: found.start()]}exec {command[found.start() :]}"


def main(arguments: Sequence[str], caller: Mapping[str, str]) -> int:
    """One call of Snakemake's; its exit status, where the engine has not taken this process's place."""
    words = [word for word in arguments if word not in ("--quiet", "--silent")]
    try:
        if words == ["--version"]:
            print(VERSION)
            return 0
        if words and words[0] == "pull":
            return pull(words[1:])
        if not words or words[0] != "exec":
            raise RelmError(f"only what Snakemake asks for is known: --version, pull and exec; found {shlex.join(words)!r}")
        asked = engine()
        line = run_line(asked, run_of(words[1:]), caller)
    except RelmError as error:
        print(f"relm: containers/bin/apptainer: {error}", file=sys.stderr)
        return error.exit_code
    if caller.get(TRACE):
        print(shlex.join(line), file=sys.stderr)
    return os.execvp(line[0], line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
