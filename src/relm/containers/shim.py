"""The few calls that Snakemake 9 makes to Apptainer, carried out by Docker or podman.

With `containers/bin` first in PATH, `snakemake --sdm apptainer` runs each rule in its image, with the flags for the image's
device, the network only for steps that need it, and only the checkout and the work folder mounted. RELM_ENGINE chooses the
engine; by default it is podman or docker, whichever is installed. On a cluster, use real Apptainer.
"""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from relm.containers.engine import choose_engine, execute, require_image
from relm.containers.lock import find_role, read_override
from relm.containers.placement import STEP_COMMAND, parse_step_command, place_step
from relm.containers.run_line import ContainerRun, prepare_run
from relm.errors import RelmError
from relm.recipes.declaration import load_extensions
from relm.recipes.project import Project

# Snakemake reads the first and the last word.
VERSION = "apptainer version 1.4.0"


def pull(arguments: Sequence[str]) -> None:
    """Carry out ``pull --name FILE docker://IMAGE``: pull the image, and write its reference into the file."""
    file, reference = Path(arguments[arguments.index("--name") + 1]), arguments[-1].removeprefix("docker://")
    require_image(choose_engine(), reference)
    file.write_text(f"{reference}\n")


def parse_exec(arguments: Sequence[str]) -> ContainerRun:
    """Return ``exec --home FOLDER IMAGE SHELL -c COMMAND`` as a run: its image, its mounts, its network."""
    words, home = list(arguments), Path.cwd()
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "--home":
            home = Path(words.pop(0))
        elif option == "--bind":  # Snakemake's cache of scripts, which our rules do not use
            words.pop(0)
        else:
            raise RelmError(
                f"{option}: --apptainer-args need real Apptainer; set options of Docker and podman in containers/lock.yaml"
            )
    given, shell, _, command = words
    image = read_pulled(given)
    role, placed = find_role(image), place_step(parse_step_command(command), Project())
    built = read_override().images.get(role)
    if built is not None and image == str(built.apptainer):  # the engine knows it by its id
        image = built.id
    return prepare_run(role, image, placed, ["-c", replace_shell(command)], checkout=home, entry_point=shell)


def read_pulled(given: str) -> str:
    """Return the reference that `pull` wrote into a file; for real Apptainer, the path itself."""
    file = Path(given)
    return file.read_text().strip() if file.suffix == ".simg" and file.is_file() else given


def replace_shell(command: str) -> str:
    """Make the step replace its shell with `exec`, so that a signal to the container reaches the step."""
    found = STEP_COMMAND.search(command)
    if found is None or re.search(r"[|&;<>\n]", command[found.end() :].strip()):
        return command
    return f"{command[: found.start()]}exec {command[found.start() :]}"


def main(arguments: Sequence[str], caller: Mapping[str, str]) -> int:
    """Carry out one call of Snakemake, and return its exit status, unless the engine replaces this process."""
    words = [word for word in arguments if word not in ("--quiet", "--silent")]
    try:
        if words == ["--version"]:
            print(VERSION)
        elif words and words[0] == "pull":
            pull(words[1:])
        elif words and words[0] == "exec":
            load_extensions()
            execute(choose_engine(), parse_exec(words[1:]), caller)
        else:
            raise RelmError(f"expected one of Snakemake's calls: --version, pull or exec; found {shlex.join(words)!r}")
    except RelmError as error:
        print(f"relm: containers/bin/apptainer: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
