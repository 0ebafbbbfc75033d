"""Commands on this checkout and its work folder."""

from pathlib import Path

from relm.errors import RelmError
from relm.recipes.identity import work_folder
from relm.recipes.project import Project
from relm.steps.contract import Arguments, argument, command, path

# Seconds; a process of another host, which cannot be seen from here, writes more often than once an hour.
SHORTEST, DAY = 3600.0, 86400.0


def days(text: str) -> float:
    """Return a number of days."""
    if not (number := float(text)) >= 0:
        raise ValueError(text)
    return number


@command(
    "show what nothing needs in the work folder: old runs, their data, unfinished files; remove it with --yes",
    argument("--yes", "--delete", dest="yes", action="store_true", help="remove it; without this nothing is changed"),
    argument(
        "--older-than",
        type=days,
        metavar="DAYS",
        help="only what has not changed for DAYS; default: an hour; 0: everything",
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
        help="also keep what recipes and results of these checkouts need, which share the work folder",
    ),
    epilog="Removed are runs whose fingerprint no recipe asks for; documents, examples, tokenizers and converted weights "
    "that no recipe, twin, published result or kept run needs; what a killed process left half-written. Downloads stay. "
    "Nothing is removed that a published result names, that a process of this machine has open, or that a symbolic link "
    "leads to.",
)
def gc(a: Arguments) -> str:
    from relm.cleaning.removal import clean

    age = SHORTEST if a.older_than is None else a.older_than * DAY
    if absent := next((root for root in (Path(), *a.also) if not (root / "recipes").is_dir()), None):
        raise RelmError(f"{absent}: has no folder `recipes`; give the command in a checkout, and --also the folder of another")
    projects = [Project(root) for root in (Path(), *a.also)]
    return clean(work_folder(), projects, age, a.keep, removes=a.yes)


@command(
    "write the JSON Schemas of recipes, datasets and models, for editors",
    path("--output", "folder, such as envs"),
)
def schema(a: Arguments) -> str:
    from relm.reporting.json_schema import write_schemas

    return write_schemas(a.output)
