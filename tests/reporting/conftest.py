"""The fixtures of runs that are finished by hand, see `finished_runs`."""

from finished_runs import copied_run, finished_run, in_project, published, recipe, run, run_made_once

__all__ = ["copied_run", "finished_run", "in_project", "published", "recipe", "run", "run_made_once"]
