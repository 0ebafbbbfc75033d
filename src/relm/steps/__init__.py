"""The steps, each as a command with its arguments and its job, in a module for each group of `relm --help`."""

import importlib

from relm.steps.contract import GROUPS, STEPS, Step


def list_steps() -> dict[str, Step]:
    """Return every step by its name, in the order of `relm --help`; each evaluation that is declared by now has one."""
    for group in GROUPS:  # after extensions are loaded, whose objectives have arguments too
        importlib.import_module(f"relm.steps.{group}")
    from relm.steps.evaluation import list_evaluations

    steps = {**list_evaluations(STEPS), **STEPS}
    order = list(GROUPS)
    return dict(sorted(steps.items(), key=lambda item: order.index(item[1].group)))
