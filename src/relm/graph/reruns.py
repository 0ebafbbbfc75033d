"""Products with fixed names, which Snakemake must make again if they are of another version of the recipe.

Most products have their identity in their path. Published folders and `compile.json` do not: where they differ from the recipe,
their rules get an input that is newer than they are. Only files decide this, so `.snakemake` may be deleted.
"""

import functools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from snakemake.io import ancient, local
from snakemake_interface_executor_plugins.settings import SharedFSUsage

from relm.artifact import read_json
from relm.cluster.supervision import is_main_process
from relm.errors import RelmError
from relm.graph.asking import PROJECT, report_faults, stop_at_faults, strings
from relm.graph.jobs import find_job, inputs_of, plan_of_run
from relm.plan.published_files import DAMAGED, MISSING
from relm.plan.run_jobs import list_records
from relm.recipes.controls import differences_table
from relm.recipes.identity import work_folder
from relm.recipes.plan import REFERENCE, Plan
from relm.recipes.resolved import differing_keys, resolve
from relm.recipes.run_folder import CHECKSUMS, DIFFERENCES, PAPERS, TABLE
from relm.reporting.known_hashes import find_differences, knows_file
from relm.reporting.replaced_results import describe_replaced, find_replaced

# Larger changed files of a result are compared by size, since hashing them would slow the graph down.
LARGEST_HASHED = 2**24
AGAIN = "relm-again-"
"""Beginning of the name of the temporary folder with files that are newer than all products."""
DAMAGED_RESULTS = "damaged"
"""Folder in the work folder whose files the rule `check_damaged` never makes."""


class Reruns:
    """Input functions of the rules whose products have fixed names."""

    def __init__(self, workflow: Any) -> None:
        """Store Snakemake's workflow."""
        self.workflow = workflow
        self.shares_files = SharedFSUsage.INPUT_OUTPUT in workflow.storage_settings.shared_fs_usage
        """True if every job finds all files at their paths; otherwise Snakemake carries those that rules name."""
        self.warned: set[str] = set()
        self.damaged: set[str] = set()
        """The requested results that have damaged files."""

    @functools.cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix=AGAIN)

    def _make_again(self, why: str) -> dict[str, Any]:
        """Return an input that is newer than every product, with the reason as its name; a job's own process needs none."""
        if not is_main_process(self.workflow):
            return {}
        path = Path(self._folder.name, why)
        path.touch()
        return {"again": local(str(path))}

    @report_faults
    def reported(self, wildcards: Any) -> dict[str, Any]:
        """Return the inputs of a report; a report on a run that replaces another result says so.

        The records of all earlier steps are named where Snakemake carries files between machines. On a shared file system they
        are found without that, and thousands of names would slow every command down.
        """
        plan, inputs = plan_of_run(wildcards), inputs_of(find_job("report", wildcards))
        if not self.shares_files:
            inputs["steps"] = ancient(strings(list(list_records(plan))))
        return inputs | (self._make_again("another-fingerprint") if find_replaced(plan) else {})

    @stop_at_faults
    def published(self, wildcards: Any) -> dict[str, Any]:
        """Return the inputs of a published folder.

        The one input of a damaged folder is made by `relm check`, which fails: the folder stays, since somebody may have edited
        it, and the command ends with 1 once its other targets are made. A dry-run, which also lists all commands of a recipe,
        only warns.
        """
        plan, inputs = plan_of_run(wildcards), inputs_of(find_job("publish", wildcards))
        if not is_main_process(self.workflow) or not plan.results.is_dir():
            return inputs
        why = self.find_reason(plan)
        if why == DAMAGED and not self.workflow.dryrun:
            return {"damaged": str(work_folder() / DAMAGED_RESULTS / wildcards.recipe)} | self._make_again(why)
        return inputs | (self._make_again(why) if why and why != DAMAGED else {})

    def find_reason(self, plan: Plan) -> str | None:
        """Return why a published folder differs from what the recipe would publish; None if nothing shows that it does."""
        stated = _read(plan.results / "recipe.json")
        if stated.get("fingerprint", plan.fingerprint) != plan.fingerprint:
            replaced = find_replaced(plan)
            if replaced is not None:
                self._warn(describe_replaced(plan, replaced))
            return "another-fingerprint"
        try:
            differences = find_differences(plan.results, largest=LARGEST_HASHED, keeps=False)[0]
        except RelmError:  # neither list of hashes is there
            return "no-list-of-hashes"
        if damaged := [found.name for found in differences if found.state == DAMAGED]:
            self.damaged.add(str(plan.results))
            self._warn(
                f"{plan.results}: DAMAGED: {', '.join(damaged)}; `relm check {plan.results}` says more. Delete the folder; "
                "the same command publishes it again"
            )
            return DAMAGED
        if any(found.state == MISSING and _was_published(plan, found.name) for found in differences):
            return "missing-files"
        if not _is_of_another_report(plan, stated):
            return None
        if plan.run_folder.is_dir():
            return "another-report"
        self._warn(
            f"{plan.results}: the recipe's words or expectations changed after its report. The run's work folder is gone, so "
            "only training again would update the report. Delete the folder to do that"
        )
        return None

    @stop_at_faults
    def published_reference(self, wildcards: Any) -> dict[str, Any]:
        """Return the inputs of the published figures of the authors' released weights."""
        plan, inputs = plan_of_run(wildcards), inputs_of(find_job("publish_reference", wildcards))
        key = plan.verdict(REFERENCE).parent.name
        is_other = _read(plan.reference_results / "verify.json").get("key", key) != key
        return inputs | (self._make_again("another-verdict") if is_other else {})

    def paper(self, key: str, results: list[str]) -> Callable[[Any], dict[str, Any]]:
        """Return the input function of a paper's page: the results of its recipes, and the table of those with a control."""

        @report_faults
        def inputs(wildcards: Any) -> dict[str, Any]:
            table = differences_table(PROJECT, key)
            stated, wanted = _read(PAPERS / key / TABLE), table.parent.name if table else None
            is_other = stated.get(DIFFERENCES, wanted) != wanted
            files = {"results": results, "differences": [str(table)] if table else []}
            return files | (self._make_again("other-differences") if is_other else {})

        return inputs

    def _warn(self, line: str) -> None:
        """Show a line, once."""
        from snakemake.logging import logger

        if line not in self.warned:
            self.warned.add(line)
            logger.warning(line)

    @report_faults
    def compiled(self, wildcards: Any) -> dict[str, Any]:
        """Return no input of `compile.json`, unless it is of other settings."""
        from relm.forecast.compilation.compiling import recipe_facts, topology_of

        plan = plan_of_run(wildcards)
        wanted = {"topology": topology_of(plan), **recipe_facts(plan)}
        found = _read(plan.compilation)
        is_other = any(found.get(key, value) != value for key, value in wanted.items())
        return self._make_again("other-settings") if is_other else {}


def _is_of_another_report(plan: Plan, stated: Mapping[str, Any]) -> bool:
    """Return whether a published `recipe.json` belongs to another report than the recipe's.

    An earlier version stated no key there; its recipe is compared instead.
    """
    if "report" in stated:
        return bool(stated["report"] != plan.report_key)
    return isinstance(stated.get("recipe"), dict) and bool(differing_keys(stated, resolve(plan)))


def _was_published(plan: Plan, name: str) -> bool:
    """Return whether a missing file was there before: an earlier version wrote only the crate."""
    return name != CHECKSUMS or knows_file(plan.results, name)


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a JSON object; empty if it is damaged or missing."""
    try:
        found = read_json(path)
    except (OSError, RelmError):
        return {}
    return found if isinstance(found, dict) else {}
