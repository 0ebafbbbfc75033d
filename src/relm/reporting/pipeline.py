"""A run's pipeline for the report: the arithmetic of `relm estimate`, and a table of each phase's IPUs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from relm.forecast.expected_tokenizer import vocabulary
from relm.forecast.pipeline_memory import list_stages, pipeline_memory
from relm.forecast.pipeline_table import COLUMNS, describe_facts, format_sizes, name_segments
from relm.recipes.devices import DEVICES
from relm.recipes.plan import Plan
from relm.training.architecture import configuration
from relm.training.machine.fitting_micro_batch import memory_of_device


class PhaseThroughPipeline(NamedTuple):
    """One phase's part of the section."""

    facts: Mapping[str, str]
    table: Sequence[Sequence[str]]
    """Titles, and a row for each IPU: its stages with their numbers in the order of execution, and its sizes."""


def report_pipeline(plan: Plan) -> dict[str, PhaseThroughPipeline]:
    """Return the section of a run's pipeline by phase; {}: the run has none."""
    if plan.recipe.run.pipeline is None:
        return {}
    config = configuration(plan.recipe, vocabulary(plan)[0])
    memory = None if DEVICES[plan.recipe.run.device].in_main_memory else memory_of_device(plan)
    found = {}
    for name in plan.phases:
        pipeline = plan.recipe.run.pipeline.of_phase(name)
        ipus = pipeline_memory(config, plan.recipe.pretrain[name], pipeline)
        rows = [["IPU", "forward stages, in order of execution", *COLUMNS]]
        for number, ipu in enumerate(ipus):
            stages = [(at, stage) for at, stage in enumerate(list_stages(pipeline), 1) if stage.ipu == number]
            named = "; ".join(f"{at}: {', '.join(name_segments(stage.segments))}" for at, stage in stages)
            rows.append([str(number), named, *format_sizes(ipu)])
        found[name] = PhaseThroughPipeline(describe_facts(pipeline, ipus, memory), rows)
    return found
