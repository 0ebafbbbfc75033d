"""The image of each rule under `--sdm apptainer`. Without it nothing is looked up: the lock may be empty or absent."""

from pathlib import Path
from typing import Any

from relm.containers.lock import Role, find_reference, read_override
from relm.containers.placement import evaluation_role, step_role, training_role
from relm.graph.asking import PROJECT, report_faults
from relm.recipes.devices import HOST


class Images:
    """Answers to the `container:` directives."""

    def __init__(self, workflow: Any) -> None:
        """Take from Snakemake's workflow whether images are asked for."""
        methods = workflow.deployment_settings.deployment_method
        self.asked = any(method.name == "APPTAINER" for method in methods)
        self._found: dict[Role, str] = {}

    @report_faults
    def of_step(self, wildcards: Any) -> str | None:
        """Return that of a step without an accelerator; None if no images are wanted."""
        return self._of(HOST) if self.asked else None

    @report_faults
    def of_training(self, wildcards: Any) -> str | None:
        """Return that of the recipe's device, for the trainer."""
        return self._of(training_role(PROJECT.plan(wildcards["recipe"]).recipe)) if self.asked else None

    @report_faults
    def of_evaluation(self, wildcards: Any) -> str | None:
        """Return that of an evaluation, which follows its recipe to a GPU alone, and only if it scores weights."""
        if not self.asked:
            return None
        plan = PROJECT.plan(wildcards["recipe"])
        reads_log_alone = plan.evaluation(wildcards["task"]).reads_log_alone
        return self._of("cpu" if reads_log_alone else evaluation_role(plan.recipe))

    @report_faults
    def of_compiling(self, wildcards: Any) -> str | None:
        """Return that with the TPU's compiler, which needs no TPU."""
        return self._of(step_role("compile")) if self.asked else None

    def _of(self, role: Role) -> str:
        """Once a role: a graph asks for every job."""
        if role not in self._found:
            self._found[role] = in_snakemakes_words(role)
        return self._found[role]


def in_snakemakes_words(role: Role, checkout: Path = Path()) -> str:
    """``docker://IMAGE``, or the path of what Apptainer runs where one was made here."""
    built = read_override(checkout).images.get(role)
    if built is not None and built.apptainer is not None:
        return str(built.apptainer)
    return f"docker://{find_reference(role, checkout)}"
