"""The files that Snakemake makes again: those of another version of the recipe; and the parameters that count for that.

Most products have their identity in their path. A published folder, and the figures of a test file or of the authors' weights,
do not. Without its records, as after `.snakemake` was removed or in another checkout with the same work folder, Snakemake takes
them for finished and never compares their inputs. Therefore this module compares them with the recipe, and has them made again
if they differ.
"""

from pathlib import Path
from typing import Any

from relm.artifact import read_json, sidecar_of
from relm.cluster.supervision import is_main_process
from relm.errors import RelmError
from relm.graph.asking import report_faults, stop_at_faults
from relm.graph.evaluations import evaluation_inputs
from relm.graph.runs import plan_of_run, published
from relm.graph.side_products import count_as_outputs
from relm.recipes.identity import work_folder
from relm.recipes.plan import REFERENCE, Plan
from relm.recipes.run_folder import CHECKSUMS
from relm.replay.published_files import DAMAGED, MISSING
from relm.reporting.known_hashes import find_differences, knows_file
from relm.reporting.replaced_results import describe_replaced, find_replaced

# Changed files of a result up to this size are hashed while the graph is built, which must stay fast; else the size counts.
LARGEST_HASHED = 2**24
DAMAGED_RESULTS = "damaged"
"""Folder in the work folder whose files the rule `check_damaged` never makes."""


class Reruns:
    """Input functions that also have Snakemake make products of another version of the recipe again."""

    def __init__(self, workflow: Any) -> None:
        """Store Snakemake's workflow, whose graph has the set of files that are made in any case.

        From then on, Snakemake compares parameters with its records only for rules that declare some.
        """
        self.workflow = workflow
        self.warned: set[str] = set()
        self.damaged: set[str] = set()
        """The requested results that have damaged files."""
        _compare_no_absent_parameters()
        _compare_no_inputs_of_published_folders()
        count_as_outputs()

    @stop_at_faults
    def published(self, wildcards: Any) -> dict[str, Any]:
        """Return the inputs of a published folder."""
        plan = plan_of_run(wildcards)
        seeds = [run.recipe.seed for run in plan.runs]
        self._compare(plan.run_folder / "verify.json", seeds, "seeds")
        if is_main_process(self.workflow) and plan.results.is_dir() and self._is_damaged(plan):
            return {"damaged": str(work_folder() / DAMAGED_RESULTS / wildcards.recipe)}
        return published(wildcards)

    def _is_damaged(self, plan: Plan) -> bool:
        """Return whether a folder has damaged files; have one of another fingerprint, or that lacks files, made again.

        A file that differs is not replaced unasked, since somebody may have edited it. The one input of a damaged folder is
        made by `relm check`, which fails: the folder stays, and the command ends with 1 once its other targets are made. A
        dry-run, which also lists all commands of a recipe, only warns.
        """
        recipe = plan.results / "recipe.json"
        if recipe.is_file() and _value(recipe, "fingerprint") != plan.fingerprint:
            self.workflow.dag.forcefiles |= {str(plan.results), str(plan.run_folder / "report" / "report.html")}
            replaced = find_replaced(plan)
            if replaced is not None:
                self._warn(describe_replaced(plan, replaced))
            return False
        try:
            differences = find_differences(plan.results, largest=LARGEST_HASHED, keeps=False)[0]
        except RelmError:  # neither list of hashes is there
            self.workflow.dag.forcefiles.add(str(plan.results))
            return False
        damaged = [found.name for found in differences if found.state == DAMAGED]
        if damaged:
            self._warn(
                f"{plan.results}: DAMAGED: {', '.join(damaged)}; `relm check {plan.results}` says more. Delete the folder, and "
                "the same command publishes it again"
            )
        if damaged:
            self.damaged.add(str(plan.results))
        will_fail = bool(damaged) and not self.workflow.dryrun
        if will_fail or any(found.state == MISSING and _was_published(plan, found.name) for found in differences):
            self.workflow.dag.forcefiles.add(str(plan.results))
        return will_fail

    def _warn(self, line: str) -> None:
        """Show a line, once."""
        from snakemake.logging import logger

        if line not in self.warned:
            self.warned.add(line)
            logger.warning(line)

    @report_faults
    def evaluation_inputs(self, wildcards: Any) -> dict[str, Any]:
        """Return the inputs of an evaluation."""
        plan = plan_of_run(wildcards)
        figures = plan.run_folder / wildcards.of / f"{wildcards.task}.json"
        if wildcards.of == REFERENCE:
            self._compare(figures, reference_sha256(plan), "model_sha256")
        if test := plan.tests.get(wildcards.task):
            for key, name in test.inputs.items():
                if name in test.sha256:  # of others the sidecar, which is an input, has the hash
                    self._compare(figures, test.sha256[name], "protocol", f"{key.removesuffix('_file')}_sha256")
        return evaluation_inputs(wildcards)

    def _compare(self, path: Path, expected: object, *keys: str, output: Path | None = None) -> None:
        """Have `output`, or else the file, made again if the file exists with another value than the expected one."""
        if is_main_process(self.workflow) and path.is_file() and _value(path, *keys) != expected:
            self.workflow.dag.forcefiles.add(str(output or path))


def _was_published(plan: Plan, name: str) -> bool:
    """Return whether a missing file was there before: an earlier version wrote no list beside the crate."""
    return name != CHECKSUMS or knows_file(plan.results, name)


def _compare_no_absent_parameters() -> None:
    """Have Snakemake compare parameters with its records only for rules that declare some.

    A rule whose products have their whole identity in their path declares none; parameters that depend on resources do not
    count. An edit then changes the path, and never a parameter of the same path. Without this change, Snakemake would make
    everything again that an earlier version of the rule, with parameters, has made.
    """
    from snakemake.persistence import NO_PARAMS_CHANGE, PersistenceBase

    compare = PersistenceBase.params_changed

    def compare_declared(self: Any, job: Any, file: Any = None) -> Any:
        return compare(self, job, file) if job.non_derived_params else NO_PARAMS_CHANGE

    PersistenceBase.params_changed = compare_declared


def _compare_no_inputs_of_published_folders() -> None:
    """Have Snakemake not compare the names of the files that a folder was published from with its records.

    Another set of figures changes the verdict and the report, and so the folder. Without this change, a folder that an earlier
    version published, whose rule named fewer files, would be made again, with all training where the work folder is gone.
    A job without inputs is not compared either: its sources were deleted after use.
    """
    from snakemake.persistence import PersistenceBase

    compare = PersistenceBase.input_changed

    def compare_others(self: Any, job: Any, file: Any = None) -> Any:
        return () if job.rule.name == "publish" or not job.input else compare(self, job, file)

    PersistenceBase.input_changed = compare_others


def reference_sha256(plan: Plan) -> str | None:
    """Return the sha256 of the authors' weights: the recipe's, or that of converted ones; None: they are not converted yet."""
    weights = plan.evaluated_model(REFERENCE)[0]
    return plan.evaluated_sha256(REFERENCE).get(weights.name) or _value(sidecar_of(weights), "sha256")


def _value(path: Path, *keys: str) -> Any:
    """Return the value at a path of keys in a JSON file; None: there is no such value."""
    try:
        found = read_json(path)
        for key in keys:
            found = found[key]
    except (OSError, RelmError, KeyError, TypeError):
        return None
    return found
