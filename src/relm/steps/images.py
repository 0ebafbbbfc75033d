"""The images that steps run in: built, compared with their registry, and used."""

from collections.abc import Callable
from typing import Any

from relm.errors import RelmError
from relm.recipes.plan import Project
from relm.steps.contract import Arguments, Job, Step, argument

# Option -> the action that it belongs to, and what it is called.
BELONGS = {
    "write": ("resolve", "--write"),
    "update": ("resolve", "--update"),
    "base": ("build", "--base"),
    "inner": ("run", "a step"),
}


def images_job(a: Arguments) -> Job:
    for name, (action, words) in BELONGS.items():
        if getattr(a, name) and a.action != action:
            raise RelmError(f"{words} belongs to `relm images {action}`; leave it out")
    return Job({"build": _build, "resolve": _resolve, "run": _run}[a.action](a))


def _role(a: Arguments) -> Any:
    from relm.containers.lock import ROLES

    if a.role not in ROLES:
        raise RelmError(f"{a.action} needs a role, one of {', '.join(ROLES)}; found {a.role or 'none'}")
    return a.role


def _resolve(a: Arguments) -> Callable[[], str]:
    from relm.containers.resolution import resolve

    return lambda: resolve(a.role, a.write, a.update)


def _build(a: Arguments) -> Callable[[], str]:
    from relm.containers.engine_socket import connected
    from relm.containers.socket_build import build

    role, bases = _role(a), dict(_base(word) for word in a.base)
    return lambda: build(connected(), role, bases or None)


def _base(word: str) -> tuple[str, str]:
    """ARGUMENT=IMAGE; a name alone stands for the Dockerfile's BASE."""
    name, given, image = word.rpartition("=")
    return (name, image) if given else ("BASE", word)


def _run(a: Arguments) -> Callable[[], str]:
    from relm.containers.engine_socket import connected
    from relm.containers.socket_run import run_in_image, run_of

    role = _role(a)
    if not a.inner:
        raise RelmError(f"say which step runs in the image: relm images run {role} -- STEP ARGUMENTS")
    return lambda: run_in_image(connected(), run_of(role, a.inner, Project()))


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
            argument("--write", action="store_true", help="resolve: note in the lock what is confirmed"),
            argument("--update", action="store_true", help="resolve: take the registry's digest where it is another one"),
        ],
        images_job,
        records=False,
        epilog="`relm images run cpu -- held-out --model ...`. The engine is DOCKER_HOST's, else Docker's or podman's socket.",
    ),
}
