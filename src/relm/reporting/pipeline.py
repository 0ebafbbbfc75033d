"""A run's pipeline for the report: drawings, and the same arithmetic as in `relm estimate`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relm.forecast.expected_tokenizer import vocabulary
from relm.forecast.machine_micro_batch import memory_of_device
from relm.forecast.pipeline_memory import IpuMemory, list_stages, pipeline_memory
from relm.forecast.pipeline_table import (
    NOT_COUNTED,
    describe_bubble,
    describe_off_chip,
    describe_pipeline,
    describe_update,
    judge_pipeline,
    name_segments,
)
from relm.recipes.devices import DEVICES
from relm.recipes.pipeline import Pipeline
from relm.recipes.plan import Plan
from relm.reporting.pipeline_drawing import SHOWN_MICRO_BATCHES, draw_pipeline, draw_schedule
from relm.training.architecture import configuration


@dataclass(frozen=True)
class Drawing:
    """An SVG for wide pages and one for phones, with a sentence for those who cannot see them."""

    wide: str
    narrow: str
    words: str


@dataclass(frozen=True)
class ReportedPipeline:
    """The section of the page on a pipeline."""

    introduction: str
    ring: Drawing
    schedule: Drawing
    shown: str
    """A phrase with the micro-batches in the schedule."""
    phases: Mapping[str, Sequence[tuple[str, str]]]
    """Phase -> rows of facts."""


def report_pipeline(plan: Plan) -> ReportedPipeline | None:
    """Return the section of a run's pipeline; None: the run has none."""
    whole = plan.recipe.run.pipeline
    if whole is None:
        return None
    config, simulated = configuration(plan.recipe, vocabulary(plan)[0]), DEVICES[plan.recipe.run.device].in_main_memory
    memory = None if simulated else memory_of_device(plan)
    pipelines = {name: whole.of_phase(name) for name in plan.phases}
    ipus = {name: pipeline_memory(config, plan.recipe.pretrain[name], each) for name, each in pipelines.items()}
    first = plan.phases[0]
    batches = pipelines[first].gradient_accumulation
    return ReportedPipeline(
        introduction=_introduce(simulated),
        ring=_draw_ring(pipelines[first], ipus[first]),
        schedule=_draw_schedule(pipelines[first]),
        shown=f"the first {min(batches, SHOWN_MICRO_BATCHES)} of {batches:,} micro-batches of an update",
        phases={name: _list_facts(pipelines[name], ipus[name], memory) for name in plan.phases},
    )


def _introduce(simulated: bool) -> str:
    where = "relm's simulator of a pipeline computed this run on a CPU. " if simulated else ""
    return f"{where}The sizes are arithmetic on the recipe, as relm estimate prints them: nothing here was measured."


def _draw_ring(pipeline: Pipeline, ipus: Sequence[IpuMemory]) -> Drawing:
    parameters = [ipu.parameters for ipu in ipus]
    order = "; ".join(
        f"stage {number} on IPU {stage.ipu}: {', '.join(name_segments(stage.segments))}"
        for number, stage in enumerate(list_stages(pipeline), 1)
    )
    words = f"{describe_pipeline(pipeline)}. In the order of execution: {order}."
    return Drawing(draw_pipeline(pipeline, parameters), draw_pipeline(pipeline, parameters, narrow=True), words)


def _draw_schedule(pipeline: Pipeline) -> Drawing:
    words = (
        "Each stage begins a micro-batch when the stage before it has finished it, and the backward passes come back in the "
        "opposite order, so that stages work on different micro-batches at the same time."
    )
    return Drawing(draw_schedule(pipeline), draw_schedule(pipeline, narrow=True), words)


def _list_facts(pipeline: Pipeline, ipus: Sequence[IpuMemory], memory: int | None) -> list[tuple[str, str]]:
    return [
        ("pipeline", describe_pipeline(pipeline)),
        ("update", describe_update(pipeline)),
        ("bubble", describe_bubble(pipeline)),
        ("memory", f"{judge_pipeline(ipus, memory).reason}; {NOT_COUNTED}"),
        ("off chip", describe_off_chip(pipeline, ipus)),
        ("precision", f"weights {pipeline.precision}, gradients {pipeline.accumulation_precision}"),
    ]
