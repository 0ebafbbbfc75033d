"""The step that lets another machine resume from a run's checkpoint."""

from relm.recipes.project import Project
from relm.steps.contract import Arguments, Job, Step, argument, recipe_name


def continue_job(a: Arguments) -> Job:
    from relm.cluster.takeover import take_over_seeds

    project = Project()
    return Job(lambda: take_over_seeds(project.plan(a.recipe), project.plan(a.source)))


STEPS: dict[str, Step] = {
    "continue": Step(
        "take a run over from another machine: copy its finished phases and its newest checkpoint",
        [
            argument(
                "recipe", type=recipe_name, metavar="NAME@MACHINE", help="the run to continue with; it must not have begun"
            ),
            argument(
                "--from",
                dest="source",
                required=True,
                type=recipe_name,
                metavar="NAME@MACHINE",
                help="the run that was stopped; NAME: the one on the recipe's own machine",
            ),
        ],
        continue_job,
        records=False,
        epilog="For example, `relm continue roberta_base_v3-8@h100 --from roberta_base_v3-8@rtx4090`; then `snakemake "
        "results/roberta_base_v3-8@h100` resumes there. The run that was stopped is unchanged. Between two computers without a "
        "common work folder, `relm push` and `relm pull` move it first.",
        group="machines",
    ),
}
