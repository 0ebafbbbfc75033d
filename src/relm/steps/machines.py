"""Commands that move a run to another machine and back, and those of images."""

import os
import re
from pathlib import Path
from typing import NoReturn

from relm.errors import RelmError
from relm.recipes.devices import list_image_roles
from relm.recipes.identity import work_folder
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.recipes.run_name import RUN_NAME, SMOKE
from relm.steps.contract import Arguments, argument, command, recipe_name, unite_values

STORE = argument("store", metavar="STORE", help="gs://BUCKET/FOLDER, file:///FOLDER, or what else fsspec knows")
NAME = argument(
    "recipe",
    type=recipe_name,
    metavar="NAME",
    nargs="?",
    help="a recipe, smoke/NAME or NAME@MACHINE; default: every one with a run there",
)


@command(
    "copy a run's data, checkpoints and figures to a bucket, so that another machine can resume it",
    STORE,
    NAME,
    epilog="Files that the store already has are not sent again. Credentials come from the environment: on a TPU VM "
    "those of its service account. gs:// needs gcsfs, which the TPU's environment has.",
)
def push(a: Arguments) -> str:
    from relm.cluster.bucket.push import push

    project = Project()
    if a.recipe is not None:
        plans = [run for run in project.plan(a.recipe).runs if run.number == 0 or run.run_folder.is_dir()]
    elif not (plans := _list_begun(project)):
        raise RelmError("push: no run has begun here; give NAME to push only its data")
    return push(a.store, plans)


def _list_begun(project: Project) -> list[Plan]:
    """Return the plans of all runs, of each seed, that have a folder and still a recipe."""
    runs, plans = work_folder() / "runs", list[Plan]()
    folders = [*runs.glob("*"), *runs.glob(f"{SMOKE}*")]
    for name in sorted(folder.relative_to(runs).as_posix() for folder in folders):
        if re.fullmatch(RUN_NAME, name):
            try:
                plans += [run for run in project.plan(name).runs if run.run_folder.is_dir()]
            except (RelmError, OSError):
                continue
    return plans


@command(
    "copy a run from a bucket to this machine, so that the same commands resume it",
    STORE,
    NAME,
    epilog="Every file is compared with its sha256; files that are already here are not fetched again.",
)
def pull(a: Arguments) -> str:
    from relm.cluster.bucket.pull import pull

    return pull(a.store, Project(), a.recipe)


@command(
    "take a run over from another machine: copy its finished phases and its newest checkpoint",
    argument("recipe", type=recipe_name, metavar="NAME@MACHINE", help="the run to continue with; it must not have begun"),
    argument(
        "--from",
        dest="source",
        required=True,
        type=recipe_name,
        metavar="NAME@MACHINE",
        help="the run that was stopped; NAME: the one on the recipe's own machine",
    ),
    epilog="For example, `relm continue roberta_base_v3-8@h100 --from roberta_base_v3-8@rtx4090`; then `snakemake "
    "results/roberta_base_v3-8@h100` resumes there. The run that was stopped is unchanged. Between two computers without a "
    "common work folder, `relm push` and `relm pull` move it first.",
)
def continue_(a: Arguments) -> str:
    from relm.cluster.takeover import take_over_seeds

    project = Project()
    return take_over_seeds(project.plan(a.recipe), project.plan(a.source))


@command(
    "build the image of a role, or run a step in it",
    argument("action", choices=("build", "run"), metavar="build|run"),
    argument("role", choices=list_image_roles, metavar="ROLE", help="cpu, cuda, tpu or ipu"),
    argument("inner", nargs="*", metavar="STEP ...", help="run: the step and its arguments, after --"),
    argument("--base", action="append", default=[], metavar="[ARGUMENT=]IMAGE", help="build: instead of the lock's base"),
    argument("--loggers", action="store_true", help="build: with the loggers that run.loggers may name"),
    epilog="`relm images run cpu -- held-out --model ...`. RELM_ENGINE chooses podman or docker.",
)
def images(a: Arguments) -> str:
    from relm.containers.build import build

    if a.action == "build":
        return build(a.role, parse_bases(a.base), loggers=a.loggers)
    return run_in_image(a)


def parse_bases(words: list[str]) -> dict[str, str] | None:
    """Return the images of `[ARGUMENT=]IMAGE` by argument of the Dockerfile, BASE by default; None without any."""
    parts = (word.rpartition("=") for word in words)
    return unite_values("--base", ((name or "BASE", image) for name, _, image in parts)) or None


def run_in_image(a: Arguments) -> NoReturn:
    from relm.containers.engine import choose_engine, execute, require_image
    from relm.containers.lock import find_reference
    from relm.containers.placement import place_step
    from relm.containers.run_line import prepare_run

    if not a.inner:
        raise RelmError(f"no step was given; expected: relm images run {a.role} -- STEP ARGUMENTS")
    if a.log is not None:
        raise RelmError("--log belongs to the step that runs in the image; put it after --")
    image, engine = find_reference(a.role), choose_engine()
    require_image(engine, image)
    placed = place_step(a.inner, Project())
    execute(engine, prepare_run(a.role, image, placed, a.inner, checkout=Path.cwd()), os.environ)
