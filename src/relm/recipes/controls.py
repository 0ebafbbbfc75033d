"""The recipes of a paper that have a control: another recipe that differs in one thing."""

from pathlib import Path

from relm.errors import RelmError
from relm.recipes.identity import REVISIONS, digest, work_folder
from relm.recipes.plan import TRAINED, Plan
from relm.recipes.project import Project


def plan_controlled(project: Project, key: str) -> dict[str, tuple[Plan, Plan]]:
    """Return name -> plans of a paper's recipe with a control, and of the control, a recipe of the same paper."""
    found = {}
    for name in project.names():
        if project.paper_and_control(name) != (key, True):
            continue
        plan = project.plan(name)
        assert plan.recipe.control is not None, "the key is there"
        other = plan.recipe.control.recipe
        if project.paper_and_control(other)[0] != key:
            raise RelmError(f"{project.recipe_path(name)}: control.recipe: expected a recipe of paper {key}, found {other}")
        found[name] = plan, project.plan(other)
    return found


def list_compared(project: Project, key: str) -> list[Plan]:
    """Return the plans of all runs of a paper's recipes that have a control, and of their controls."""
    plans = {plan.name: plan for pair in plan_controlled(project, key).values() for plan in pair}
    return [run for plan in plans.values() for run in plan.runs]


def differences_table(project: Project, key: str) -> Path | None:
    """Return the path of a paper's table of differences; None without controls. The key in it covers what the table shows."""
    pairs = plan_controlled(project, key)
    sections = {name: plan.recipe.model_dump(mode="json", include={"control"}) for name, (plan, _) in pairs.items()}
    figures = {run.fingerprint: run.evaluation_keys(TRAINED) for run in list_compared(project, key)}
    folder = work_folder() / "papers" / key / digest([REVISIONS["report"], sections, figures])
    return folder / "differences.md" if pairs else None
