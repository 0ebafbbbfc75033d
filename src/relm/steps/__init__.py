"""The steps, each as a command with its arguments and its job, in the order of the data flow."""

from relm.steps import (
    beginning,
    bucket,
    contamination,
    data,
    evaluation,
    examples,
    generation,
    images,
    removal,
    reporting,
    runs,
    short_forms,
    start,
    surroundings,
    takeover,
    training,
)
from relm.steps.contract import Step


def list_steps() -> dict[str, Step]:
    """Return every step by its name; each evaluation that is declared by now has one."""
    before = {**data.STEPS, **removal.STEPS, **examples.STEPS, **training.STEPS, **evaluation.STEPS, **contamination.STEPS}
    after = {
        **generation.STEPS,
        **reporting.STEPS,
        **runs.STEPS,
        **bucket.STEPS,
        **takeover.STEPS,
        **images.STEPS,
    }
    after |= {**surroundings.STEPS, **start.STEPS, **beginning.STEPS}
    return {**before, **short_forms.list_short_forms({*before, *after}), **after}
