"""`--config set=KEY=VALUE`: the variation of a recipe as Snakemake's target.

A variation is a run of its own, whose name has the settings: `snakemake results/tiny --config set=seed=2` makes
`results/tiny+seed=2`, and never replaces `results/tiny`. Settings of how a run is executed (`run.threads=1`) name no other run;
they are passed on to the steps that read them.
"""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from relm.cluster.supervision import is_main_process
from relm.errors import RelmError
from relm.graph.asking import PROJECT, stop_at_faults
from relm.graph.shards import SHARDS_ON_DISK
from relm.recipes.run_name import RUN_NAME, RunName, is_execution
from relm.recipes.variation import format_value, split_settings

TARGET = re.compile(rf"(?P<folder>results/(?:reference/)?)(?P<name>{RUN_NAME})/?")
# Key of Snakemake's configuration with the names of varied runs, for jobs in processes of their own.
VARIED = "varied"
SET_ONCE = "give all settings in one set=, separated by commas: --config set=seed=2,run.threads=1"


@stop_at_faults
def vary_targets(workflow: Any, config: Mapping[str, Any]) -> None:
    """Have Snakemake make the variations of its targets, with the settings in its configuration.

    Raises:
        SystemExit: the settings have faults.
    """
    settings = read_settings(config.get("set"))
    PROJECT.execution = tuple(setting for setting in settings if is_execution(setting))
    PROJECT.varied = tuple(str(config.get(VARIED) or "").split())
    if is_main_process(workflow):
        if workflow.modifier.parent_modifier is None:  # no module of another workflow, whose configuration is its own
            refuse_unread(config)
        if sum(word.startswith("set=") for word in sys.argv) > 1:  # Snakemake would keep the last one alone
            raise RelmError(f"--config: set is given twice; {SET_ONCE}")
        _replace_targets_later(workflow, settings)


def refuse_unread(config: Mapping[str, Any]) -> None:
    """Raise an error for a key of Snakemake's configuration that nothing reads, since the run would seem to follow it.

    Raises:
        RelmError: there is one.
    """
    if unread := [key for key in config if key not in ("set", VARIED, SHARDS_ON_DISK)]:
        raise RelmError(
            f"--config {unread[0]}: nothing reads this key; keys of the recipe stand in set=, such as "
            "--config set=pretrain.main.steps=600"
        )


def set_options(wildcards: Any, resources: Any) -> str:
    """Return `--set run.KEY=VALUE ...` for steps that read how a run is executed.

    As it depends on resources, Snakemake makes nothing again if it changes.
    """
    return " ".join(f"--set {shlex.quote(setting)}" for setting in PROJECT.execution)


def _replace_targets_later(workflow: Any, settings: Sequence[str]) -> None:
    """Have Snakemake replace its targets once it knows them, which is after the Snakefile was read."""
    prepare = workflow._prepare_dag
    named = [setting for setting in settings if not is_execution(setting)]

    @stop_at_faults
    def prepare_varied(*args: Any, **kwargs: Any) -> Any:
        targets = {target: vary_target(target, named) for target in workflow.dag_settings.targets}
        if settings and not targets:
            raise RelmError("--config set: varies a recipe, and none is given; give snakemake results/NAME --config set=...")
        _replace_targets(workflow, targets)
        return prepare(*args, **kwargs)

    workflow._prepare_dag = prepare_varied


def read_settings(given: Any) -> list[str]:
    """Return the settings in Snakemake's configuration: a text, a list of texts, or a mapping of keys to values.

    >>> read_settings("seed=2,run.threads=1"), read_settings({"seed": 2})
    (['seed=2', 'run.threads=1'], ['seed=2'])

    Raises:
        RelmError: it is something else.
    """
    if given is None:
        return []
    if isinstance(given, Mapping):
        return [f"{key}={value if isinstance(value, str) else format_value(value)}" for key, value in given.items()]
    texts = given if isinstance(given, list) else [given]
    if not all(isinstance(text, str) for text in texts):
        raise RelmError(f"--config set={given}: expected KEY=VALUE; {SET_ONCE}")
    return [setting for text in texts for setting in split_settings(_close_quote(text))]


def _close_quote(text: str) -> str:
    """Return a text with the quotation mark at its end, which Snakemake removes from a value."""
    return text + next((mark for mark in "'\"" if text.count(mark) % 2), "")


def vary_target(target: str, settings: Sequence[str]) -> str:
    """Return the target of a variation; one without settings is returned as it is, and its recipe is not read.

    Raises:
        RelmError: the settings have faults, or the target is no recipe's.
    """
    found = TARGET.fullmatch(target)
    if found is None:
        if settings:
            raise RelmError(
                f"--config set: varies results/NAME, and {target} is another target; give results/NAME, or leave set out"
            )
        return target
    run = RunName.parse(found["name"])
    if given := [setting for setting in run.settings if is_execution(setting)]:
        raise RelmError(
            f"{target}: {given[0]} names no other run; give snakemake {found['folder']}{run.published} --config set={given[0]}"
        )
    if not run.settings and not settings:
        return target
    return f"{found['folder']}{PROJECT.plan(str(run.vary(settings))).published_name}"


def _replace_targets(workflow: Any, targets: Mapping[str, str]) -> None:
    """Have Snakemake make other targets, and pass their names to jobs that it starts as processes of their own."""
    for target, varied in targets.items():
        if varied.rstrip("/") != target.rstrip("/"):
            print(f"relm: {target} with these settings is {shlex.quote(varied)}", file=sys.stderr)
    names = [varied.split("/", 1)[1].removeprefix("reference/") for varied in targets.values() if "+" in varied]
    if not names:
        return
    workflow.dag_settings.targets = frozenset(targets.values())
    execution = [f"set={','.join(PROJECT.execution)}"] if PROJECT.execution else []
    others = [word for word in workflow.config_settings.config_args or () if not word.startswith("set=")]
    workflow.config_settings.config_args = [*others, *execution, f"{VARIED}={' '.join(names)}"]
