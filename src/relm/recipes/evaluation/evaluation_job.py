"""The job of an evaluation: the identity document that the graph passes to its command."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self, get_args

from pydantic import Field, model_validator

from relm.recipes.declaration import NameIn
from relm.recipes.evaluation.evaluations import EVALUATIONS, Fact
from relm.recipes.job_documents import IN_JOB, require_revision
from relm.recipes.objectives import Objective
from relm.recipes.section import Section, Slug, validate


class PhaseLength(Section):
    """Length of a phase, in steps and sequences."""

    steps: int = Field(gt=0)
    """Number of optimizer steps."""
    global_batch_size: int = Field(gt=0)
    """Sequences per optimizer step."""


class EvaluationJob(Section):
    """The identity of an evaluation: everything that changes its figures except the files that it reads, from the recipe."""

    multi_line = frozenset({"options"})

    revision: int | None = None
    """Revision of the evaluations' code; the graph runs an evaluation again when it changes. null: whichever runs the job."""
    evaluation: Annotated[str, NameIn(EVALUATIONS)]
    """Name of the declaration."""
    task: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the result; null: the evaluation's."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the evaluation that differ from their defaults."""
    context: int | None = Field(default=None, gt=0)
    """Context length in tokens: the last phase's sequence length."""
    batch_size: int | None = Field(default=None, gt=0)
    """Sequences per batch: the last phase's global batch size."""
    phase: Objective | None = None
    """Objective of the last phase with its options, as a recipe's phase has them."""
    language: str | None = None
    """Language of the dataset, such as ro."""
    phases: dict[Slug, PhaseLength] | None = None
    """All phases, in order."""
    harness_task: str | None = None
    """Name of the task, as the harness calls it."""
    task_files: dict[str, str] | None = None
    """Path inside the folder of the harness's task files -> sha256."""

    @model_validator(mode="after")
    def has_the_facts_of_its_evaluation(self) -> Self:
        declaration, given = EVALUATIONS[self.evaluation], {fact for fact in get_args(Fact) if getattr(self, fact) is not None}
        if unread := sorted(given - {*declaration.facts}):
            raise ValueError("\n".join(f"{fact}: {self.evaluation} does not depend on it; remove it" for fact in unread))
        if missing := [fact for fact in declaration.facts if fact != "task_files" and fact not in given]:
            them = "it" if len(missing) == 1 else "them"
            raise ValueError(f"{self.evaluation} depends on {' and '.join(missing)}; give {them}")
        return self

    def arguments(self, source: Path) -> dict[str, Any]:
        """Return the keyword arguments of the evaluation's function that follow from the job; `source` names it in errors."""
        declaration = EVALUATIONS[self.evaluation]
        facts: dict[str, Any] = {fact: getattr(self, fact) for fact in declaration.facts if fact != "task_files"}
        options = validate(declaration.options or Section, self.options, source)
        return {"task": self.task or self.evaluation, **facts, **({"options": options} if declaration.options else {})}


def job_of_document(document: Mapping[str, Any]) -> EvaluationJob:
    """Return the job that the document of `--job` describes; one written by hand may have no revision."""
    if document.get("revision") is not None:
        require_revision(document, "evaluation")
    return validate(EvaluationJob, document, IN_JOB)
