"""Shell lines to copy that repeat a recorded step, plain and as `docker run`.

They work on any machine: the checkout is `$PWD`, the home folder `$HOME`, a work folder elsewhere `$RELM_WORK`, the user
`id -u`. Everything else that a shell would expand is quoted.
"""

import dataclasses
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from relm.containers.extensions import find_extensions
from relm.containers.lock import REFERENCE, Image, Role, find_image, find_reference
from relm.containers.placement import Placement, place_step
from relm.containers.run_line import (
    PASSED_TO_LOGGERS,
    PASSED_WITH_NETWORK,
    ContainerRun,
    fit_image,
    list_configuration,
    run_line,
)
from relm.devices.ranks import words_of_step
from relm.errors import RelmError
from relm.recipes.files.own_folders import home_folder
from relm.recipes.identity import work_folder
from relm.recipes.project import Project
from relm.recipes.redaction import shorten_path

# A variable in a word is marked by NULs, which recorded words must not contain.
_VARIABLE = re.compile("\0([A-Z_]+)\0")
CHECKOUT, HOME, WORK = "\0PWD\0", "\0HOME\0", "\0RELM_WORK\0"
USER = '"$(id -u):$(id -g)"'
# Without RELM_MIRROR, whose folder would have to be mounted on an unknown machine.
_PASSED = {name: "" for name in (*PASSED_WITH_NETWORK, *PASSED_TO_LOGGERS) if name != "RELM_MIRROR"}


@dataclasses.dataclass(frozen=True)
class DockerLine:
    """The `docker run` line of a step, or the reason why there is none."""

    line: str | None
    image: str | None = None
    """The image on the line."""
    caveat: str | None = None
    """Why the line is absent, or its image has no digest from a registry."""


def plain_line(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Return a step's command for a shell in the checkout.

    Args:
        argv: as recorded: paths are `work/...`, `~/...` or relative to the checkout.
        environment: of the shell that the line is for; None: `RELM_WORK` is not set.
    """
    return _join(_insert_variables(argv, environment or {}))


def docker_line(
    argv: Sequence[str],
    project: Project,
    ran_in: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> DockerLine:
    """Return the `docker run` of the same step in its image.

    Args:
        argv: as `plain_line` takes it.
        project: the project whose recipes the step names.
        ran_in: the image that the step ran in, if any, which the line then names.
        environment: of the shell that the line is for, with this machine's images; None: for any machine.
    """
    if argv[:1] == ["srun"]:
        return DockerLine(None, caveat="srun starts it on several hosts, outside of images")
    if not (argv[:1] in (["relm"], ["torchrun"]) or argv[2:3] == ["poprun"]) or "relm" not in argv:
        return DockerLine(None, caveat="the recorded command is not a command of relm")
    if ran_in is not None and not REFERENCE.fullmatch(ran_in):
        return DockerLine(None, caveat=f"{ran_in!r} is not an image's name")
    words = words_of_step(argv)
    try:
        placed = place_step(words, project)
        image = find_image(placed.role) if environment is None else fit_image(find_image(placed.role))
        configuration = [] if environment is None else list_configuration(image, environment)
    except RelmError as error:
        return DockerLine(None, caveat=str(error))
    named, caveat = (ran_in, None) if ran_in else _name_image(placed.role, image, own=environment is not None)
    if named.startswith("sha256:"):
        caveat = f"{named} is a local image that was not published; make images ROLES={placed.role} builds one with another id"
    run = _prepare_run(argv, placed, image, named, environment or {})
    run = dataclasses.replace(run, read=[*run.read, *configuration])
    line = run_line("docker", run, _PASSED | dict.fromkeys(image.passed, "") if environment is None else environment)
    return DockerLine(f"{_format_engine_words(line)} {_join(_insert_variables(argv[1:], environment or {}))}", named, caveat)


def _name_image(role: Role, image: Image, own: bool) -> tuple[str, str | None]:
    """Return a role's image for a line, and a caveat if that does not pin it."""
    if own:
        try:
            return find_reference(role), None
        except RelmError as error:
            return f"{image.image}:{image.tag}", str(error)
    if image.digest and image.verified:
        return image.pinned, None
    tag = f"{image.image}:{image.tag}"
    why = "its digest is not verified" if image.digest else "it was never published"
    return tag, f"{tag} is not pinned by a digest, because {why}; make images ROLES={role} builds it"


def _prepare_run(
    argv: Sequence[str], placed: Placement, image: Image, named: str, environment: Mapping[str, str]
) -> ContainerRun:
    """Return the step's run for `run_line`, with variables as folders and without the command."""
    elsewhere = os.path.isabs(environment.get("RELM_WORK", ""))
    extensions = find_extensions(environment, (Path.cwd(), work_folder().resolve()))
    return ContainerRun(
        image=image,
        reference=named,
        command=(),
        writable=[Path(CHECKOUT), *([Path(WORK)] if elsewhere else [])],
        read=[
            Path(word)
            for word in _insert_variables([str(folder) if environment else shorten_path(folder) for folder in placed.reads], {})
        ]
        + list(extensions.files),
        home=(home_folder() if environment else Path(HOME)) if placed.reads else None,
        search_path=extensions.search_path,
        working_folder=Path(CHECKOUT),
        network=placed.network,
        logs=placed.logs,
        user=(0, 0),
        devices=image.devices,
        entry_point=None if argv[0] == "relm" else argv[0],
    )


def _format_engine_words(line: Sequence[str]) -> str:
    """Return the engine's words for a shell, with the caller as user and patterns of device files expanded there."""
    quoted: list[str] = []
    for option, word in zip(["", *line], line, strict=False):
        if option == "--device" and "*" in word:
            quoted[-1] = f"$(printf -- '--device %s ' {word})"
        else:
            quoted.append(USER if option == "--user" else _quote(word))
    return " ".join(quoted)


def _insert_variables(argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Replace the short names of folders in recorded words by variables."""
    if any("\0" in word for word in argv):
        raise RelmError("the recorded command contains a NUL, so relm did not write this record; do not run it")
    names = {"~": HOME, **({"work": WORK} if environment.get("RELM_WORK") else {})}
    return [re.sub(r"^(~|work)(?=/|$)", lambda found: names.get(found[0], found[0]), word) for word in argv]


def _join(words: Sequence[str]) -> str:
    return " ".join(_quote(word) for word in words)


def _quote(word: str) -> str:
    """Quote a word for a shell, which then expands only its variables."""
    pieces = _VARIABLE.split(word)
    if len(pieces) == 1:
        return shlex.quote(word)
    return "".join(f'"${piece}"' if number % 2 else shlex.quote(piece) if piece else "" for number, piece in enumerate(pieces))
