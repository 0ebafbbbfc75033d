"""Commands on the runs of the work folder: list and remove them."""

from pathlib import Path

from relm.errors import RelmError
from relm.recipes.identity import work_folder
from relm.recipes.project import Project
from relm.steps.contract import ANY_RECIPE, Arguments, Job, Step, argument, require_checkout

# Seconds; a process of another host, which cannot be seen from here, writes more often than once an hour.
SHORTEST, DAY = 3600.0, 86400.0


def runs_job(a: Arguments) -> Job:
    from relm.reporting.runs_table import describe_stored_runs

    if not work_folder().is_dir():
        require_checkout()
    return Job(lambda: describe_stored_runs(Project(), a.recipe, as_json=a.json))


def gc_job(a: Arguments) -> Job:
    from relm.cleaning.removal import clean

    age = SHORTEST if a.older_than is None else a.older_than * DAY
    if absent := next((root for root in (Path(), *a.also) if not (root / "recipes").is_dir()), None):
        raise RelmError(f"{absent}: has no folder `recipes`; give the command in a checkout, and --also the folder of another")
    projects = [Project(root) for root in (Path(), *a.also)]
    return Job(lambda: clean(work_folder(), projects, age, a.keep, removes=a.yes))


def days(text: str) -> float:
    """Return a number of days."""
    if not (number := float(text)) >= 0:
        raise ValueError(text)
    return number


STEPS: dict[str, Step] = {
    "runs": Step(
        "list all runs in the work folder: state, step, figures, size, and what differs from the recipe as it is now",
        [ANY_RECIPE, argument("--json", action="store_true", help="print JSON")],
        runs_job,
        records=False,
        group="overview",
        epilog="`old` marks a run that its recipe does not ask for now. Beneath it are the keys that differ, with the run's "
        "value and the recipe's. Runs whose recipe no longer exists are listed too. `relm gc` removes old ones.",
    ),
    "gc": Step(
        "show what nothing needs in the work folder: old runs, their data, unfinished files; remove it with --yes",
        [
            argument("--yes", "--delete", dest="yes", action="store_true", help="remove it; without this nothing is changed"),
            argument(
                "--older-than",
                type=days,
                metavar="DAYS",
                help="only what has not changed for so many days; default: for an hour; 0: everything",
            ),
            argument(
                "--keep",
                nargs="+",
                default=[],
                metavar="NAME",
                help="keep these runs: NAME, NAME/FINGERPRINT or FINGERPRINT, and the data that they need",
            ),
            argument(
                "--also",
                nargs="+",
                default=[],
                type=Path,
                metavar="CHECKOUT",
                help="keep what recipes and results of these checkouts need as well, which share the work folder",
            ),
        ],
        gc_job,
        records=False,
        group="project",
        epilog="Removed are runs whose fingerprint no recipe asks for; documents, examples, tokenizers and converted weights "
        "that no recipe, twin, published result or kept run needs; what a killed process left half-written. Downloads stay. "
        "Nothing is removed that a published result names, that a process of this machine has open, or that a symbolic link "
        "leads to.",
    ),
}
