"""The image of each rule with `--sdm apptainer`. Without that option no image is looked up, and the lock may be absent."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from relm.cluster.supervision import is_main_process
from relm.containers.apptainer import describe_surroundings
from relm.containers.engine import choose_engine, require_image
from relm.containers.lock import OVERRIDE, Role, find_reference, read_override
from relm.containers.placement import evaluation_role, step_role, training_role
from relm.errors import RelmError
from relm.graph.asking import PROJECT, report_faults, stop_at_faults
from relm.recipes.devices import HOST

SHIM = ("containers", "bin", "apptainer")
NO_FILE = (  # Apptainer would look for a registry of this name
    "{id} is an image of Docker or podman, which Apptainer ({found}) cannot run; make a file of it and write its path next to "
    "the id, as `apptainer:` (docs/containers.md), or put containers/bin first in PATH"
)


class Images:
    """Values of the `container:` directives."""

    def __init__(self, workflow: Any) -> None:
        """Read from Snakemake's workflow whether images are requested."""
        methods = workflow.deployment_settings.deployment_method
        self.requested = any(method.name == "APPTAINER" for method in methods)
        self._found: dict[Role, str | None] = {}
        self.faults: dict[Role, str] = {}
        """Role -> why it has no image. The user's own command reports them with all other faults before the first job."""
        self._collects_faults = is_main_process(workflow)

    @stop_at_faults
    def prepare(self) -> None:
        """Set the variables that make real Apptainer mount the folders of steps, in the user's command and in each job."""
        if self.requested:
            os.environ.update(describe_surroundings(Path.cwd()))

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
        return self._of(evaluation_role(PROJECT.plan(wildcards["recipe"]), wildcards["task"]))

    @report_faults
    def of_compiling(self, wildcards: Any) -> str | None:
        """Return the image with the TPU's compiler, which needs no TPU."""
        return self._of(step_role("compile")) if self.requested else None

    def _of(self, role: Role) -> str | None:
        """Return the image of a role, looked up once because Snakemake asks for every job."""
        if role not in self._found:
            try:
                self._found[role] = find_apptainer_image(role)
            except RelmError as error:
                if not self._collects_faults:
                    raise
                self.faults[role], self._found[role] = str(error), None
        return self._found[role]

    def find_faults(self, jobs: Iterable[Any], here: bool, asks_engine: bool) -> list[str]:
        """Return why some jobs have no image.

        `here`: the images run on this machine, so local ones are looked for; `asks_engine`: Docker or podman may be started.
        """
        if not self.requested:
            return []
        used = {job.container_img_url for job in jobs}
        lost = [find_lost_image(role, asks_engine) for role, image in self._found.items() if here and image and image in used]
        return [*dict.fromkeys(self.faults.values()), *dict.fromkeys(filter(None, lost))]


def find_lost_image(role: Role, asks_engine: bool, checkout: Path = Path()) -> str | None:
    """Return a fault if a role's image that was built on this machine is gone; None if it exists or is published."""
    built = read_override(checkout).images.get(role)
    if built is None:
        return None
    again = f"build it again: make images ROLES={role}"
    if built.apptainer is not None and not built.apptainer.exists():
        return f"{OVERRIDE}: images.{role}.apptainer: {built.apptainer} is not there; {again}"
    found = shutil.which("apptainer")
    if found is None:
        return None
    program = Path(found).resolve()
    if program.parts[-3:] != SHIM:
        return None if built.apptainer is not None else f"{OVERRIDE}: images.{role}: {NO_FILE.format(id=built.id, found=found)}"
    if not asks_engine or program != checkout.joinpath(*SHIM).resolve():
        return None
    try:
        require_image(choose_engine(), built.id)
    except RelmError as error:
        return f"{OVERRIDE}: images.{role}: {error}"
    return None


def find_apptainer_image(role: Role, checkout: Path = Path()) -> str:
    """Return ``docker://IMAGE``, or the path of Apptainer's image if one was built on this machine."""
    built = read_override(checkout).images.get(role)
    if built is not None and built.apptainer is not None:
        return str(built.apptainer)
    return f"docker://{find_reference(role, checkout)}"
