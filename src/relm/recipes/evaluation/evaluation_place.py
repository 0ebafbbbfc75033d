"""Choose the device of an evaluation, and the pipeline on which it fine-tunes."""

from relm.recipes.devices import DEVICES, find_evaluation_device
from relm.recipes.machine.pipeline import Pipeline, split_tuning_batch
from relm.recipes.plan import Plan


def evaluation_device(plan: Plan, task: str) -> str:
    """Return the device of an evaluation; fine-tuning leaves accelerators of several hosts or instances of a pipeline idle."""
    pipeline = plan.recipe.run.pipeline
    has_one_host = plan.machine is None or plan.machine.host_count == 1
    is_alone = has_one_host and (pipeline is None or pipeline.instances == 1)
    return find_evaluation_device(plan.recipe.run.device, plan.evaluation(task).fine_tunes and is_alone)


def tuning_pipeline(plan: Plan, task: str) -> Pipeline | None:
    """Return the pipeline on which an evaluation fine-tunes the model; None if it does not, or on a device without one."""
    test = plan.tests.get(task)
    pipelined = DEVICES[evaluation_device(plan, task)].pipelined
    if not pipelined or test is None or test.tuning is None or plan.recipe.run.pipeline is None:
        return None
    return split_tuning_batch(plan.recipe.run.pipeline, test.tuning.batch_size)
