"""The command that writes a new recipe."""

from relm.recipes.project import Project
from relm.steps.contract import Arguments, Job, Step, argument, recipe_name


def new_job(a: Arguments) -> Job:
    from relm.recipes.new_recipe import name_after_folder, write_new

    return Job(lambda: write_new(Project(), a.name or name_after_folder(a.data), a.extended, a.data, a.pattern))


STEPS: dict[str, Step] = {
    "new": Step(
        "write a new recipe with comments, and with --data a dataset of a folder of texts; no file is overwritten",
        [
            argument(
                "name",
                nargs="?",
                type=recipe_name,
                metavar="NAME",
                help="of the recipe, which becomes recipes/NAME.yaml; with --data, default: that of FOLDER",
            ),
            argument(
                "--from", dest="extended", type=recipe_name, metavar="RECIPE", help="that it extends; default: quickstart"
            ),
            argument("--data", metavar="FOLDER", help="with .txt files: also writes recipes/data/NAME.yaml"),
            argument("--pattern", metavar="GLOB", help="the files of FOLDER that are read; default: '**/*.txt'"),
        ],
        new_job,
        records=False,
        group="overview",
    ),
}
