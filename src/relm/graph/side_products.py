"""Files that a step writes beside its rule's outputs, and without which its run cannot be published.

They cannot be outputs: Snakemake deletes those before a job and when it fails, but a log of training must outlive an
interruption. So this module has Snakemake take a job's outputs for missing while one of these files is, wherever a job that is
to run needs them: any part of a run's files may be deleted, and the same command makes them again.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from relm.artifact import record_of
from relm.errors import RelmError
from relm.graph.runs import plan_of_run
from relm.recipes.plan import Plan
from relm.recipes.run_folder import CHECKPOINT_FILES, RECORDS, WEIGHTS


def _of_training(plan: Plan, wildcards: Any) -> list[Path]:
    folder = plan.run_folder / wildcards.phase
    parts = [folder / "model" / "generation_config.json"] if plan.recipe.model.generates else []
    return [
        *parts,
        *(folder / name for name in RECORDS),
        record_of(folder / "model" / WEIGHTS),
        *_kept_for_next(plan, wildcards),
    ]


def _kept_for_next(plan: Plan, wildcards: Any) -> list[Path]:
    """Return the checkpoint whose optimizer the next phase keeps, if that phase is not finished."""
    following = plan.phases[plan.phases.index(wildcards.phase) + 1 :][:1]
    for phase in following:
        kept = plan.kept_optimizer(phase)
        if kept is not None and not (plan.model_folder(phase) / WEIGHTS).is_file():
            return [kept / name for name in (*CHECKPOINT_FILES, "state.json")]
    return []


def _of_evaluation(plan: Plan, wildcards: Any) -> list[Path]:
    return [record_of(plan.run_folder / wildcards.of / f"{wildcards.task}.json")]


def _of_contamination(plan: Plan, wildcards: Any) -> list[Path]:
    return [record_of(path) for test, path in plan.contamination().items() if test == wildcards.test]


def _of_verdict(plan: Plan, wildcards: Any) -> list[Path]:
    return [record_of(plan.run_folder / "verify.json")]


# Rule -> the files that its step writes beside the rule's outputs.
SIDE_PRODUCTS: Mapping[str, Callable[[Plan, Any], list[Path]]] = {
    "pretrain": _of_training,
    "evaluate": _of_evaluation,
    "contamination": _of_contamination,
    "verify": _of_verdict,
}


def missing_side_products(rule: str, wildcards: Any) -> list[Path]:
    """Return the files that a job's step has written beside its outputs, and that are there no more."""
    list_files = SIDE_PRODUCTS.get(rule)
    try:
        return [path for path in list_files(plan_of_run(wildcards), wildcards) if not path.exists()] if list_files else []
    except RelmError:  # the rule's own functions report it
        return []


def _missing_indexes(job: Any) -> list[Path]:
    """Return the indexes of documents among a job's outputs that are there no more; readers of tokens name the tokens alone."""
    return [path for output in job.output if (path := Path(str(output))).suffix == ".idx" and not path.exists()]


def count_as_outputs() -> None:
    """Have Snakemake run a job whose outputs are needed and exist, while one of its side products does not."""
    from snakemake.io import IOFile
    from snakemake.jobs import Job

    find_missing = Job.missing_output

    async def missing_output(self: Any, requested: Any) -> AsyncIterator[Any]:
        found = False
        async for file in find_missing(self, requested):
            found = True
            yield file
        if requested and not found:
            for path in (*missing_side_products(self.rule.name, self.wildcards), *_missing_indexes(self)):
                yield IOFile(str(path), rule=self.rule)

    Job.missing_output = missing_output
