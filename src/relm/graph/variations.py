"""Variations of a recipe in Snakemake: names such as `results/tiny+seed=2`, and `--config set=run.threads=1`.

A setting that changes the run is part of its name. Snakemake passes the others, which say how runs are executed, to the
processes of its jobs with its configuration, and steps that read them get `--set`.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from relm.cluster.supervision import is_main_process
from relm.errors import RelmError
from relm.graph.asking import PROJECT, stop_at_faults
from relm.recipes.run_name import RunName, is_execution
from relm.recipes.variation import format_value

SET = re.compile(r"(--config=|-C)?set=")
SHARDS_ON_DISK = "shards_on_disk"
"""Key of Snakemake's configuration that `shards.py` reads."""
VARIED = "RELM_VARIED"
"""Environment variable with the names of varied runs. The Snakefile declares it, so that jobs on other machines get it."""
SEVERAL = "give several settings as a list: --config 'set=[run.threads=1, run.log_interval=5]'"


@stop_at_faults
def apply_settings(workflow: Any, config: Mapping[str, Any]) -> None:
    """Have plans follow the settings in Snakemake's configuration, which change how runs are executed and not what they are."""
    settings = read_settings(config.get("set"))
    PROJECT.execution = tuple(setting for setting in settings if is_execution(setting))
    if not is_main_process(workflow):
        PROJECT.varied = tuple(os.environ.setdefault(VARIED, "").split())
        return
    os.environ[VARIED] = ""
    if workflow.modifier.parent_modifier is None:  # not as a module of another workflow, which has other keys
        refuse_unread(config)
    if sum(map(bool, map(SET.match, sys.argv))) > 1:  # Snakemake would keep only the last one
        raise RelmError(f"--config: set is given twice; {SEVERAL}")
    if named := [setting for setting in settings if not is_execution(setting)]:
        target = shlex.quote(f"results/{RunName('NAME', False, None, tuple(named))}")
        raise RelmError(f"--config set: {named[0]} changes the run, so it belongs in its name; request {target}")


def pass_to_jobs(names: Iterable[str]) -> None:
    """Let the processes of jobs, on any machine, find the data of varied runs."""
    os.environ[VARIED] = " ".join(name for name in names if RunName.parse(name).settings)


def require_name(name: str) -> None:
    """Raise an error with the right name unless a run has the one name under which it is published."""
    unplaced, _, placed = name.partition("@")
    if "+" in placed:
        machine, _, settings = placed.partition("+")
        raise RelmError(f"results/{name}: settings come before the machine; request results/{unplaced}+{settings}@{machine}")
    if (right := PROJECT.plan(name).published_name) == name:
        return
    execution = ", ".join(filter(is_execution, RunName.parse(name).settings))
    reason = f"{execution} does not change the run" if execution else "this run is published under another name"
    config = f" --config {shlex.quote(f'set=[{execution}]')}" if execution else ""
    raise RelmError(f"results/{name}: {reason}; request {shlex.quote(f'results/{right}')}{config}")


def refuse_unread(config: Mapping[str, Any]) -> None:
    """Raise an error for a key of Snakemake's configuration that nothing reads, since the run would seem to follow it."""
    if unread := [key for key in config if key not in ("set", SHARDS_ON_DISK)]:
        raise RelmError(
            f"--config {unread[0]}: nothing reads this key; keys of the recipe are part of a run's name, such as "
            "results/NAME+pretrain.main.steps=600"
        )


def read_settings(given: Any) -> list[str]:
    """Return the settings in Snakemake's configuration: KEY=VALUE, a list of these, or a mapping of keys to values.

    >>> read_settings("run.threads=1"), read_settings(["run.threads=1", "seed=2"]), read_settings({"seed": 2})
    (['run.threads=1'], ['run.threads=1', 'seed=2'], ['seed=2'])
    """
    if isinstance(given, Mapping):
        return [f"{key}={value if isinstance(value, str) else format_value(value)}" for key, value in given.items()]
    settings = [] if given is None else given if isinstance(given, list) else [given]
    if not all(isinstance(setting, str) for setting in settings):
        raise RelmError(f"--config set={given}: expected KEY=VALUE; {SEVERAL}")
    return settings
