"""A recorded step as lines for a shell, to be copied: plain, and as `docker run`.

They name nothing of the machine they were written on: the checkout is `$PWD`, a home folder `$HOME`, a work folder elsewhere
`$RELM_WORK`, the user `id -u`. What else a shell could read something into is quoted.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from relm.containers.lock import REFERENCE, Image, Role, image_of, reference
from relm.containers.placement import Placement, placement
from relm.containers.run_line import PASSED_WITH_NETWORK, Run, run_line
from relm.errors import RelmError
from relm.provenance.surroundings import shown
from relm.recipes.plan import Project

# Stands for a variable in a word, which has no NUL of its own: one that has is refused.
_VARIABLE = re.compile("\0([A-Z_]+)\0")
CHECKOUT, HOME, WORK = "\0PWD\0", "\0HOME\0", "\0RELM_WORK\0"
USER = '"$(id -u):$(id -g)"'
# Nothing of a machine that is not known: its mirror's folder would have to be mounted.
_PASSED = {name: "" for name in PASSED_WITH_NETWORK if name != "RELM_MIRROR"}


@dataclass(frozen=True)
class DockerLine:
    """The `docker run` of a step, or why there is none."""

    line: str | None
    image: str | None = None
    """As the line names it."""
    caveat: str | None = None
    """Why the image is not pinned by a digest of its registry, or why there is no line."""


def plain_line(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """A step's command for a shell in the checkout.

    Args:
        argv: as a record tells it: paths are `work/...`, `~/...` or relative to the checkout.
        environment: of the shell that the line is for; none: of one whose `RELM_WORK` is not set.
    """
    return _shell(_worded(argv, environment or {}))


def docker_line(
    argv: Sequence[str],
    project: Project,
    ran_in: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> DockerLine:
    """The same step in its image.

    Args:
        argv: as `plain_line` takes it.
        project: whose recipes the step names.
        ran_in: the image that it ran in, if it did: no other one is named then.
        environment: of the shell that the line is for, with this machine's own images; none: for any machine.
    """
    if argv[:1] not in (["relm"], ["torchrun"]) or "relm" not in argv:
        return DockerLine(None, caveat="what was recorded is no command of relm")
    if ran_in is not None and not REFERENCE.fullmatch(ran_in):
        return DockerLine(None, caveat=f"{ran_in!r} is no name of an image")
    words = argv[argv.index("relm") + 1 :]
    try:
        placed = placement(words, project)
        image = image_of(placed.role)
    except RelmError as error:
        return DockerLine(None, caveat=str(error))
    named, caveat = (ran_in, None) if ran_in else _named(placed.role, image, own=environment is not None)
    if named.startswith("sha256:"):
        again = f"what make images ROLES={placed.role} builds anew has another id"
        caveat = f"{named} was built where it ran and not published; {again}"
    line = run_line(
        "docker", _run(argv, placed, image, named, environment or {}), _PASSED if environment is None else environment
    )
    return DockerLine(f"{_engine_words(line)} {_shell(_worded(argv[1:], environment or {}))}", named, caveat)


def _named(role: Role, image: Image, own: bool) -> tuple[str, str | None]:
    """What a line calls a role's image, and what is to be said of that."""
    if own:
        try:
            return reference(role), None
        except RelmError as error:
            return f"{image.image}:{image.tag}", str(error)
    if image.digest and image.verified:
        return image.pinned, None
    tag = f"{image.image}:{image.tag}"
    why = "its digest is not verified" if image.digest else "it was never published"
    return tag, f"{tag} is not pinned by a digest, for {why}; make images ROLES={role} builds it"


def _run(argv: Sequence[str], placed: Placement, image: Image, named: str, environment: Mapping[str, str]) -> Run:
    """The step as `run_line` takes it, its folders by the variables that stand for them; the command follows apart."""
    elsewhere = os.path.isabs(environment.get("RELM_WORK", ""))
    return Run(
        image=image,
        reference=named,
        command=(),
        writable=[Path(CHECKOUT), *([Path(WORK)] if elsewhere else [])],
        read=[Path(word) for word in _worded([str(folder) if environment else shown(folder) for folder in placed.reads], {})],
        working_folder=Path(CHECKOUT),
        network=placed.network,
        user=(0, 0),
        devices=image.devices,
        entry_point=None if argv[0] == "relm" else argv[0],
    )


def _engine_words(line: Sequence[str]) -> str:
    """The engine's own words: the user is who calls, and device files are those that the machine has then."""
    told: list[str] = []
    for option, word in zip(["", *line], line, strict=False):
        if option == "--device" and "*" in word:
            told[-1] = f"$(printf -- '--device %s ' {word})"
        else:
            told.append(USER if option == "--user" else _quoted(word))
    return " ".join(told)


def _worded(argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Words in which folders that a record tells by a short name are variables."""
    if any("\0" in word for word in argv):
        raise RelmError("a word of the command has a NUL, which no command can have; it was not recorded by relm")
    names = {"~": HOME, **({"work": WORK} if environment.get("RELM_WORK") else {})}
    return [re.sub(r"^(~|work)(?=/|$)", lambda found: names.get(found[0], found[0]), word) for word in argv]


def _shell(words: Sequence[str]) -> str:
    return " ".join(_quoted(word) for word in words)


def _quoted(word: str) -> str:
    """A word for a shell, its variables to be expanded and nothing else."""
    pieces = _VARIABLE.split(word)
    if len(pieces) == 1:
        return shlex.quote(word)
    return "".join(f'"${piece}"' if number % 2 else shlex.quote(piece) if piece else "" for number, piece in enumerate(pieces))
