"""The recipes of a paper that have a control, from which each differs in one thing."""

from relm.errors import RelmError
from relm.recipes.plan import Plan
from relm.recipes.project import Project


def plan_controlled(project: Project, key: str) -> dict[str, tuple[Plan, Plan]]:
    """Return name -> plans of a recipe of a paper that has a control, and of the control, which is of the same paper.

    Raises:
        RelmError: a recipe has faults, or its control is of another paper.
    """
    found = {}
    for name in project.names():
        if project.paper_and_control(name) != (key, True):
            continue
        plan = project.plan(name)
        assert plan.recipe.control is not None, "the key is there"
        other = plan.recipe.control.recipe
        if project.paper_key(other) != key:
            raise RelmError(f"{project.recipe_path(name)}: control.recipe: expected a recipe of paper {key}, found {other}")
        found[name] = plan, project.plan(other)
    return found
