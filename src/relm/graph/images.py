"""The image of each rule with `--sdm apptainer`. Without that option no image is looked up, and the lock may be absent."""

from pathlib import Path
from typing import Any

from relm.containers.lock import Role, find_reference, read_override
from relm.containers.placement import evaluation_role, step_role, training_role
from relm.graph.asking import PROJECT, report_faults
from relm.recipes.devices import HOST


class Images:
    """Values of the `container:` directives."""

    def __init__(self, workflow: Any) -> None:
        """Read from Snakemake's workflow whether images are requested."""
        methods = workflow.deployment_settings.deployment_method
        self.requested = any(method.name == "APPTAINER" for method in methods)
        self._found: dict[Role, str] = {}

    @report_faults
    def of_step(self, wildcards: Any) -> str | None:
        """Return the image of a step without an accelerator; None if no images are requested."""
        return self._of(HOST) if self.requested else None

    @report_faults
    def of_training(self, wildcards: Any) -> str | None:
        """Return the image of the trainer, which is that of the recipe's device."""
        return self._of(training_role(PROJECT.plan(wildcards["recipe"]).recipe)) if self.requested else None

    @report_faults
    def of_evaluation(self, wildcards: Any) -> str | None:
        """Return the image of an evaluation: that of the recipe's device if it scores weights there, otherwise the CPU's."""
        if not self.requested:
            return None
        plan = PROJECT.plan(wildcards["recipe"])
        reads_log_alone = plan.evaluation(wildcards["task"]).reads_log_alone
        return self._of("cpu" if reads_log_alone else evaluation_role(plan.recipe))

    @report_faults
    def of_compiling(self, wildcards: Any) -> str | None:
        """Return the image with the TPU's compiler, which needs no TPU."""
        return self._of(step_role("compile")) if self.requested else None

    def _of(self, role: Role) -> str:
        """Return the image of a role, looked up once because Snakemake asks for every job."""
        if role not in self._found:
            self._found[role] = find_apptainer_image(role)
        return self._found[role]


def find_apptainer_image(role: Role, checkout: Path = Path()) -> str:
    """Return ``docker://IMAGE``, or the path of Apptainer's image if one was built on this machine."""
    built = read_override(checkout).images.get(role)
    if built is not None and built.apptainer is not None:
        return str(built.apptainer)
    return f"docker://{find_reference(role, checkout)}"
