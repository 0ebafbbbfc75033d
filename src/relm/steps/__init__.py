"""The steps, each as a command with its arguments and its job, in the order of the data flow."""

from relm.steps import bucket, data, evaluation, examples, images, reporting, surroundings, training
from relm.steps.contract import Step

STEPS: dict[str, Step] = {
    **data.STEPS,
    **examples.STEPS,
    **training.STEPS,
    **evaluation.STEPS,
    **reporting.STEPS,
    **bucket.STEPS,
    **images.STEPS,
    **surroundings.STEPS,
}
