"""The fixtures of runs that are finished by hand, see `finished_runs`."""

from finished_runs import finished_run, in_project, recipe

__all__ = ["finished_run", "in_project", "recipe"]
