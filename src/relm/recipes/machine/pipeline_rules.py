"""Rules that bind a pipeline to its model and phases; the section `pipeline` itself checks those of a pipeline alone."""

import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from relm.recipes.architectures import Sizes
from relm.recipes.machine.pipeline import Pipeline
from relm.recipes.optimization import LossScaling

if TYPE_CHECKING:
    from relm.recipes.phase import Phase
    from relm.recipes.run import OnMachine, Run

OPTIMIZERS = ("adamw", "adam", "lamb")
"""Optimizers that a worker of a pipeline computes."""


def find_broken_rule(
    place: str, keys: "Run | OnMachine", model: Sizes, phases: "Mapping[str, Phase]", checkpoint_interval: int | None = None
) -> str | None:
    """Return a sentence on the first rule that the pipeline of a section, whose key is `place`, breaks; None: it keeps all."""
    if (pipeline := keys.pipeline) is None:
        return None
    if found := next(_rules_of_pipeline(pipeline, model, phases, checkpoint_interval), None):
        return f"{place}.pipeline.{found}"
    of_phases = (found for name, phase in phases.items() for found in _rules_of_phase(place, pipeline, name, phase))
    return next(of_phases, None)


def _rules_of_pipeline(
    pipeline: Pipeline, model: Sizes, phases: "Mapping[str, Phase]", checkpoint_interval: int | None
) -> Iterator[str]:
    if strange := sorted(set(pipeline.phases) - set(phases)):
        yield f"phases.{strange[0]}: there is no such phase; the recipe has {', '.join(phases)}"
    yield from _rules_of_model(pipeline, model, all(phase.declaration.is_of_task for phase in phases.values()))
    for name, phase in phases.items():
        yield from _rules_of_pipeline_in_phase(pipeline.of_phase(name), name, phase)
    if checkpoint_interval is not None and checkpoint_interval % pipeline.device_iterations:
        yield (
            f"device_iterations: {pipeline.device_iterations} updates of one call must divide checkpoint_interval "
            f"({checkpoint_interval}), because checkpoints are saved between calls"
        )


def _rules_of_model(pipeline: Pipeline, model: Sizes, has_own_head: bool) -> Iterator[str]:
    """Yield the rules that a pipeline breaks with its model; the head of a task has weights of its own."""
    architecture = model.declaration
    if not architecture.has_segments:
        yield f"layers_per_ipu: a {architecture.name} cannot be split over IPUs; gpt2, llama and bert can"
    if (found := sum(pipeline.layers_per_ipu)) != model.layers:
        yield f"layers_per_ipu: {found} layers, but model.layers is {model.layers}; make the sum equal"
    if pipeline.head != pipeline.token_embedding and not has_own_head:
        yield (
            f"head: on IPU {pipeline.head}, but its weights are the token embedding's, on IPU {pipeline.token_embedding}; "
            "put both on one IPU"
        )
    slices = pipeline.vocabulary_serialisation
    if slices > 1 and (model.vocabulary_size is None or model.vocabulary_size % slices):
        found_size = "null, the tokenizer's" if model.vocabulary_size is None else f"{model.vocabulary_size:,}"
        yield (
            f"vocabulary_serialisation: {slices} slices must divide model.vocabulary_size, found {found_size}; give a padded "
            "vocabulary"
        )


def _rules_of_phase(place: str, pipeline: Pipeline, name: str, phase: "Phase") -> Iterator[str]:
    """Yield the keys of a phase that a pipeline cannot follow, each with its value and what is expected."""
    optimizer = phase.optimizer
    corrects = optimizer.bias_correction or optimizer.name == "lamb"
    uncorrected = optimizer.name == "adamw" and pipeline.device_iterations == 1
    has_float_norm = "float32" in (pipeline.accumulation_precision, pipeline.first_moment_precision)
    clips = optimizer.name != "lamb" and has_float_norm and not pipeline.replicated_tensor_sharding
    normalises = optimizer.lamb.normalise_gradient
    clipping = "null, or with adamw first_moment_precision: float32 and replicated_tensor_sharding: false"
    rules = [
        ("optimizer.name", "adamw, adam or lamb", optimizer.name in OPTIMIZERS),
        ("optimizer.state_precision", "float32", optimizer.state_precision == "float32"),
        ("optimizer.form", "pytorch", optimizer.form == "pytorch"),
        ("optimizer.groups", "none", not optimizer.groups),
        ("optimizer.bias_correction", "true, or with adamw device_iterations: 1", corrects or uncorrected),
        ("optimizer.lamb.normalise_gradient", "false", not normalises),
        ("optimizer.gradient_clipping", clipping, optimizer.gradient_clipping is None or clips),
        ("precision", "float32 or bfloat16, beside its own precision", phase.precision != "float16"),
        ("loss_scaling.scale", "1, beside its own loss_scaling", phase.loss_scaling == LossScaling()),
    ]
    for key, expected, kept in rules:
        if not kept:
            found = functools.reduce(getattr, key.split("."), phase)
            yield f"pretrain.{name}.{key}: {place}.pipeline needs {expected}; found {found}"


def _rules_of_pipeline_in_phase(pipeline: Pipeline, name: str, phase: "Phase") -> Iterator[str]:
    """Yield the rules that the pipeline of one phase breaks."""
    where, calls = f"pretrain.{name}", pipeline.device_iterations
    if pipeline.global_batch_size != phase.global_batch_size:
        yield (
            f"gradient_accumulation: micro_batch_size {pipeline.micro_batch_size} x gradient_accumulation "
            f"{pipeline.gradient_accumulation} x replicas {pipeline.replicas} = {pipeline.global_batch_size:,} sequences, but "
            f"{where}.global_batch_size is {phase.global_batch_size:,}"
        )
    if phase.steps % calls:
        yield f"device_iterations: {calls} updates of one call must divide {where}.steps ({phase.steps})"
    if phase.schedule.updates_per_step % calls:
        yield (
            f"device_iterations: all {calls} updates of one call have one learning rate, so {where}.schedule.updates_per_step "
            f"must be a multiple of {calls}, found {phase.schedule.updates_per_step}"
        )
    if pipeline.loss_chunk is not None and phase.objective != "causal":
        yield f"loss_chunk: needs objective causal, found {phase.objective} in {where}; leave it out"
    elif pipeline.loss_chunk is not None and phase.sequence_length % pipeline.loss_chunk:
        yield f"loss_chunk: {pipeline.loss_chunk} tokens must divide {where}.sequence_length ({phase.sequence_length})"
    shares = pipeline.gradient_accumulation * pipeline.replicas
    if phase.loss_normalisation == "per_micro_batch" and phase.loss_shares != shares:
        yield (
            f"gradient_accumulation: {shares} micro-batches of all replicas, but {where}.loss_shares is {phase.loss_shares}, "
            "and the loss is the mean of their means"
        )
