"""A run's pipeline for the report: the arithmetic of `relm estimate`, and a table of each phase's IPUs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from relm.forecast.expected_tokenizer import vocabulary
from relm.forecast.machine_micro_batch import memory_of_device
from relm.forecast.pipeline_memory import list_stages, pipeline_memory
from relm.forecast.pipeline_table import (
    COLUMNS,
    NOT_COUNTED,
    describe_bubble,
    describe_off_chip,
    describe_pipeline,
    describe_update,
    format_sizes,
    judge_pipeline,
    name_segments,
)
from relm.recipes.devices import DEVICES
from relm.recipes.pipeline import Pipeline
from relm.recipes.plan import Plan
from relm.training.architecture import configuration


class PhaseThroughPipeline(NamedTuple):
    """One phase's part of the section."""

    facts: Mapping[str, str]
    ipus: Sequence[tuple[Sequence[str], Sequence[str]]]
    """For each IPU its stages with their numbers in the order of execution, and its sizes."""


class ReportedPipeline(NamedTuple):
    """The section of the page on a pipeline."""

    is_simulated: bool
    phases: Mapping[str, PhaseThroughPipeline]
    columns: Sequence[str] = COLUMNS
    """Names of the sizes."""


def report_pipeline(plan: Plan) -> ReportedPipeline | None:
    """Return the section of a run's pipeline; None: the run has none."""
    whole = plan.recipe.run.pipeline
    if whole is None:
        return None
    is_simulated = DEVICES[plan.recipe.run.device].in_main_memory
    return ReportedPipeline(is_simulated, {name: _report_phase(plan, name, whole.of_phase(name)) for name in plan.phases})


def _report_phase(plan: Plan, name: str, pipeline: Pipeline) -> PhaseThroughPipeline:
    memory = None if DEVICES[plan.recipe.run.device].in_main_memory else memory_of_device(plan)
    config = configuration(plan.recipe, vocabulary(plan)[0])
    ipus, stages = pipeline_memory(config, plan.recipe.pretrain[name], pipeline), list_stages(pipeline)
    facts = {
        "pipeline": describe_pipeline(pipeline),
        "update": describe_update(pipeline),
        "bubble": describe_bubble(pipeline),
        "memory": f"{judge_pipeline(ipus, memory).reason}; {NOT_COUNTED}",
        "off chip": describe_off_chip(pipeline, ipus),
        "precision": f"weights {pipeline.precision}, gradients {pipeline.accumulation_precision}",
    }
    named = [(stage.ipu, f"{number}: {', '.join(name_segments(stage.segments))}") for number, stage in enumerate(stages, 1)]
    return PhaseThroughPipeline(
        facts, [([text for at, text in named if at == number], format_sizes(ipu)) for number, ipu in enumerate(ipus)]
    )
