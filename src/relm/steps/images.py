"""Steps that build images, compare them with their registry, and run other steps in them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from relm.errors import RelmError
from relm.recipes.devices import list_image_roles
from relm.recipes.project import Project
from relm.steps.contract import Arguments, Job, Step, argument, unite_values

# Option -> the action that it belongs to, and its name in messages.
BELONGS = {
    "write": ("resolve", "--write"),
    "update": ("resolve", "--update"),
    "base": ("build", "--base"),
    "loggers": ("build", "--loggers"),
    "snapshot": ("build", "--snapshot"),
    "inner": ("run", "a step"),
}


def images_job(a: Arguments) -> Job:
    for name, (action, words) in BELONGS.items():
        if getattr(a, name) and a.action != action:
            raise RelmError(f"{words} belongs to `relm images {action}`; leave it out")
    return Job({"build": _build, "resolve": _resolve, "run": _run}[a.action](a))


def _require_role(a: Arguments) -> Any:
    if a.role not in (roles := list_image_roles()):
        raise RelmError(f"{a.action} needs a role, one of {', '.join(roles)}; found {a.role or 'none'}")
    return a.role


def _resolve(a: Arguments) -> Callable[[], str]:
    from relm.containers.resolution import resolve

    return lambda: resolve(a.role, a.write, a.update)


def _build(a: Arguments) -> Callable[[], str]:
    from relm.containers.build import build

    role, bases = _require_role(a), unite_values("--base", map(_parse_base, a.base))
    return lambda: build(role, bases or None, loggers=a.loggers, snapshot=a.snapshot)


def _parse_base(word: str) -> tuple[str, str]:
    """Split ARGUMENT=IMAGE; an image alone stands for the Dockerfile's BASE."""
    name, given, image = word.rpartition("=")
    return (name, image) if given else ("BASE", word)


def _run(a: Arguments) -> Callable[[], str]:
    from relm.containers.engine import choose_engine, execute, require_image
    from relm.containers.lock import find_reference
    from relm.containers.placement import place_step
    from relm.containers.run_line import prepare_run

    role = _require_role(a)
    if not a.inner:
        raise RelmError(f"no step was given; expected: relm images run {role} -- STEP ARGUMENTS")
    if a.log is not None:
        raise RelmError("--log belongs to the step that runs in the image; put it after --")

    def run() -> NoReturn:
        image, engine = find_reference(role), choose_engine()
        require_image(engine, image)
        placed = place_step(a.inner, Project())
        execute(engine, prepare_run(role, image, placed, a.inner, checkout=Path.cwd()), os.environ)

    return run


STEPS: dict[str, Step] = {
    "images": Step(
        "build the image of a role, ask registries for the digests in the lock, or run a step in its image",
        [
            argument("action", choices=("build", "resolve", "run"), metavar="build|resolve|run"),
            argument("role", nargs="?", metavar="ROLE", help="cpu, cuda, tpu or ipu; of resolve any entry; default: all"),
            argument("inner", nargs="*", metavar="STEP ...", help="run: the step and its arguments, after --"),
            argument(
                "--base", action="append", default=[], metavar="[ARGUMENT=]IMAGE", help="build: instead of the lock's base"
            ),
            argument("--loggers", action="store_true", help="build: with TensorBoard and Weights & Biases, for run.loggers"),
            argument(
                "--snapshot",
                metavar="MOMENT",
                help="build: Debian's packages as of 20261120T000000Z; none: of the base's sources",
            ),
            argument("--write", action="store_true", help="resolve: write confirmed digests to the lock"),
            argument("--update", action="store_true", help="resolve: replace the lock's digest if the registry's differs"),
        ],
        images_job,
        records=False,
        epilog="`relm images run cpu -- held-out --model ...`. RELM_ENGINE chooses podman or docker.",
        group="machines",
    ),
}
