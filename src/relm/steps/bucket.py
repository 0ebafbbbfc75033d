"""A run's files to another machine and back, by a bucket."""

from relm.errors import RelmError
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.steps.contract import Arguments, Job, Step, argument, positive, recipe_name

STORE = argument("store", metavar="STORE", help="gs://BUCKET/FOLDER, file:///FOLDER, or what else fsspec knows")
NAME = argument(
    "recipe", type=recipe_name, metavar="NAME", nargs="?", help="a recipe, or smoke/NAME; default: every one with a run there"
)


def push_job(a: Arguments) -> Job:
    from relm.cluster.bucket.push import push

    project = Project()
    plans = [project.plan(a.recipe)] if a.recipe else _begun(project)
    return Job(lambda: push(a.store, plans, a.watch))


def _begun(project: Project) -> list[Plan]:
    """Plans of all recipes whose run has a folder."""
    plans = []
    for name in [*project.names(), *(f"smoke/{name}" for name in project.names())]:
        try:
            if (plan := project.plan(name)).run_folder.is_dir():
                plans.append(plan)
        except (RelmError, OSError):
            continue
    if not plans:
        raise RelmError("push: no recipe here has begun a run; give NAME to push its data alone")
    return plans


def pull_job(a: Arguments) -> Job:
    from relm.cluster.bucket.pull import pull

    return Job(lambda: pull(a.store, Project(), a.recipe))


STEPS: dict[str, Step] = {
    "push": Step(
        "send what a run needs to go on elsewhere to a bucket: data, checkpoints, results",
        [
            STORE,
            NAME,
            argument(
                "--watch", type=positive, metavar="SECONDS", help="push again and again, so many seconds apart, until Ctrl-C"
            ),
        ],
        push_job,
        records=False,
        epilog="What the store has is not sent again. Credentials come from the environment alone: on a TPU VM those of its "
        "service account. gs:// needs gcsfs, which the TPU's environment has.",
    ),
    "pull": Step(
        "bring a run from a bucket here, so that the same commands go on with it",
        [STORE, NAME],
        pull_job,
        records=False,
        epilog="Every file is compared with its sha256; what is here already is not fetched again.",
    ),
}
