"""Steps that move a run's files to another machine and back, through a bucket."""

import re

from relm.errors import RelmError
from relm.recipes.identity import work_folder
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.recipes.run_name import RUN_NAME, SMOKE
from relm.steps.contract import Arguments, Job, Step, argument, recipe_name

STORE = argument("store", metavar="STORE", help="gs://BUCKET/FOLDER, file:///FOLDER, or what else fsspec knows")
NAME = argument(
    "recipe",
    type=recipe_name,
    metavar="NAME",
    nargs="?",
    help="a recipe, smoke/NAME or NAME@MACHINE; default: every one with a run there",
)


def push_job(a: Arguments) -> Job:
    from relm.cluster.bucket.push import push

    project = Project()
    plans = [run for run in project.plan(a.recipe).runs if run.number == 0 or _has_begun(run)] if a.recipe else _begun(project)
    return Job(lambda: push(a.store, plans))


def _has_begun(run: Plan) -> bool:
    return run.run_folder.is_dir()


def _begun(project: Project) -> list[Plan]:
    """Return the plans of all runs, of each seed, that have a folder."""
    plans: list[Plan] = []
    for name in _names_of_runs():
        try:
            plans += [run for run in project.plan(name).runs if _has_begun(run)]
        except (RelmError, OSError):
            continue
    if not plans:
        raise RelmError("push: no recipe here has begun a run; give NAME to push its data alone")
    return plans


def _names_of_runs() -> list[str]:
    """Return the sorted names of the runs with a folder, whether their recipes are here or not."""
    runs = work_folder() / "runs"
    folders = [*runs.glob("*"), *runs.glob(f"{SMOKE}*")]
    return sorted(name for folder in folders if re.fullmatch(RUN_NAME, name := folder.relative_to(runs).as_posix()))


def pull_job(a: Arguments) -> Job:
    from relm.cluster.bucket.pull import pull

    return Job(lambda: pull(a.store, Project(), a.recipe))


STEPS: dict[str, Step] = {
    "push": Step(
        "copy a run's data, checkpoints and figures to a bucket, so that another machine can resume it",
        [
            STORE,
            NAME,
        ],
        push_job,
        records=False,
        epilog="Files that the store already has are not sent again. Credentials come from the environment alone: on a TPU VM "
        "those of its service account. gs:// needs gcsfs, which the TPU's environment has.",
        group="machines",
    ),
    "pull": Step(
        "copy a run from a bucket to this machine, so that the same commands resume it",
        [STORE, NAME],
        pull_job,
        records=False,
        epilog="Every file is compared with its sha256; files that are already here are not fetched again.",
        group="machines",
    ),
}
