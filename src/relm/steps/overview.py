"""Commands that show what there is, and the one that writes a new recipe."""

from relm.recipes.identity import work_folder
from relm.recipes.project import Project
from relm.steps.contract import ANY_RECIPE, Arguments, argument, command, plan_of, recipe_name, require_checkout


@command("list the runs by paper with device, size and hours, done or not")
def list_(a: Arguments) -> str:
    from relm.reporting import run_list

    require_checkout()
    return run_list.describe_runs(Project())


@command(
    "list all runs in the work folder: state, step, figures, size, and what differs from the recipe as it is now",
    ANY_RECIPE,
    epilog="`old` marks a run that its recipe does not ask for now. Beneath it are the keys that differ, with the run's "
    "value and the recipe's. Runs whose recipe no longer exists are listed too. `relm gc` removes old ones.",
)
def runs(a: Arguments) -> str:
    from relm.reporting.runs_table import describe_stored_runs

    if not work_folder().is_dir():
        require_checkout()
    return describe_stored_runs(Project(), a.recipe)


@command(
    "show the finished, running and remaining steps of a recipe, or what runs now",
    ANY_RECIPE,
    epilog="Without a name: the runs that a step works on now, with its process; of a trainer, step, loss, rate and time "
    "left. Only processes of this machine are seen.",
)
def status(a: Arguments) -> str:
    from relm.reporting.runs_table import describe_stored_runs
    from relm.reporting.status import describe_progress

    if a.recipe is not None:
        return describe_progress(plan_of(a))
    if not work_folder().is_dir():
        require_checkout()
    return describe_stored_runs(Project(), None, only_running=True)


@command("show what this machine can run, and the reasons why not")
def doctor(a: Arguments) -> str:
    from relm.forecast.doctor import describe_machine

    return describe_machine()


@command(
    "write a new recipe with comments, and with --data a dataset of a folder of texts; no file is overwritten",
    argument(
        "name",
        nargs="?",
        type=recipe_name,
        metavar="NAME",
        help="of the recipe, which becomes recipes/NAME.yaml; with --data, default: that of FOLDER",
    ),
    argument("--from", dest="extended", type=recipe_name, metavar="RECIPE", help="that it extends; default: quickstart"),
    argument("--data", metavar="FOLDER", help="with .txt files: also writes recipes/data/NAME.yaml"),
    argument("--pattern", metavar="GLOB", help="the files of FOLDER that are read; default: '**/*.txt'"),
)
def new(a: Arguments) -> str:
    from relm.recipes.new_recipe import name_after_folder, write_new

    return write_new(Project(), a.name or name_after_folder(a.data), a.extended, a.data, a.pattern)
