"""The smoke twin of a recipe: the same graph, code paths, objective, optimizer and evaluation, small enough for any CPU.

Its figures are never compared with the paper's. `tests/twin_keys.py` lists the keys that may differ.
"""

import math
import os
from typing import Any

from relm.recipes.architectures import TWIN_HEADS, TWIN_LAYERS, TWIN_WIDTH, Architecture
from relm.recipes.datasets import Dataset
from relm.recipes.devices import DEVICES, HOST
from relm.recipes.evaluation.published_tests import PublishedTest
from relm.recipes.machine.pipeline import Pipeline, PipelineOfFineTuning, PipelineOfPhase, least_micro_batches
from relm.recipes.objectives import OBJECTIVES
from relm.recipes.recipe import Recipe

SEQUENCE_LENGTH, GLOBAL_BATCH_SIZE, STEPS, UPDATES_PER_STEP = 64, 8, 20, 4
DOCUMENTS, VOCABULARY_SIZE = 200, 1000
IPUS, REPLICAS, MICRO_BATCH_SIZE, LOSS_CHUNK = 4, 2, 2, 32
# Runs of a twin: two run everything that several seeds need.
SEEDS = 2
# Updates of a twin with a pipeline, which needs more micro-batches than other twins.
PIPELINE_STEPS = 12


def smoke_twin(recipe: Recipe, dataset: Dataset) -> Recipe:
    """Return the small twin of `recipe`, whose dataset is `dataset`."""
    twin = recipe.model_dump()
    twin["title"] = f"Smoke twin of: {recipe.title}"
    reads_tokens = dataset.is_tokenized and dataset.smoke is None
    twin["data"] = {
        "dataset": dataset.smoke or recipe.data.dataset,
        "documents": None if reads_tokens else min(recipe.data.documents or DOCUMENTS, DOCUMENTS),
    }
    if recipe.tokenizer.vocabulary_size:
        twin["tokenizer"] |= {
            "vocabulary_size": min(recipe.tokenizer.vocabulary_size, VOCABULARY_SIZE),
            "training_bytes": 2_000_000,
        }
    twin["model"] |= _small_model(recipe.model)
    twin["init_from"] = twin["expect_reference"] = None
    twin["seeds"] = min(recipe.seeds, SEEDS)
    for phase in twin["pretrain"].values():
        schedule = phase["schedule"]
        warmup, length = schedule["warmup_steps"], math.ceil(phase["steps"] / schedule["updates_per_step"])
        phase["sequence_length"] = min(phase["sequence_length"], SEQUENCE_LENGTH)
        phase["global_batch_size"] = min(phase["global_batch_size"], GLOBAL_BATCH_SIZE)
        phase["steps"] = min(phase["steps"], STEPS)
        if phase["loss_shares"] > 1:
            phase["loss_shares"] = phase["global_batch_size"] if phase["global_batch_size"] % 2 else 2
        if phase["as_published"] and phase["as_published"]["ranks"]:
            ranks = math.gcd(phase["as_published"]["ranks"], phase["global_batch_size"])
            phase["as_published"] |= {"ranks": ranks, "batch": phase["global_batch_size"] // ranks}
        for name, key in list_option_lengths():
            if phase[name][key]:
                phase[name][key] = min(phase[name][key], SEQUENCE_LENGTH)
        schedule["updates_per_step"] = min(schedule["updates_per_step"], UPDATES_PER_STEP)
        schedule["decay_end"] = None
        small = math.ceil(phase["steps"] / schedule["updates_per_step"])
        schedule["warmup_steps"] = min(max(round(warmup / length * small), min(warmup, 1)), small - 1)
    twin["run"] = {"device": _device(recipe), "threads": 2, "checkpoint_interval": 10, "log_interval": 1}
    if recipe.run.micro_batch_size and any(p.global_batch_size > recipe.run.micro_batch_size for p in recipe.pretrain.values()):
        # The original accumulates gradients, so the twin does as well.
        batch = math.gcd(*(phase["global_batch_size"] for phase in twin["pretrain"].values()))
        twin["run"]["micro_batch_size"] = 1 if batch % 2 else batch // 2
    twin["expect"], twin["expect_curve"], twin["on"] = [], None, {}
    if recipe.run.pipeline is not None:
        _split_twin(twin, recipe, small_pipeline(recipe.run.pipeline))
    return Recipe.model_validate(twin)


def smoke_test(test: PublishedTest, model: Architecture, pipeline: Pipeline | None) -> PublishedTest:
    """Return a published test whose fine-tuning, if any, fits the twin's model and fills its pipeline."""
    if test.tuning is None:
        return test
    longest = model.longest_sequence or test.tuning.sequence_length
    short = test.tuning.shorten(longest, GLOBAL_BATCH_SIZE, SEEDS)
    if pipeline is not None:
        micro_batches = least_micro_batches(pipeline) * pipeline.replicas
        short = short.model_copy(update={"batch_size": pipeline.fine_tuning.micro_batch_size * micro_batches})
    return test.model_copy(update={test.protocol: short})


def _split_twin(twin: dict[str, Any], recipe: Recipe, pipeline: Pipeline) -> None:
    """Give a twin a small pipeline, and the layers, batches and lengths that go with it."""
    twin["model"] |= {"layers": sum(pipeline.layers_per_ipu), "vocabulary_size": recipe.model.vocabulary_size}
    calls = pipeline.device_iterations
    for name, phase in twin["pretrain"].items():
        own = pipeline.of_phase(name)
        phase["global_batch_size"] = own.global_batch_size
        steps = min(phase["steps"], PIPELINE_STEPS)
        phase["steps"] = steps - steps % calls
        phase["schedule"]["warmup_steps"] = min(phase["schedule"]["warmup_steps"], PIPELINE_STEPS // 4)
        if phase["loss_shares"] > 1:
            phase["loss_shares"] = own.gradient_accumulation * own.replicas
    micro_batch_size = pipeline.common_micro_batch_size(twin["pretrain"])
    own_keys = {"pipeline": pipeline.model_dump(), "micro_batch_size": micro_batch_size}
    device = DEVICES[recipe.run.device].simulator or recipe.run.device
    interval = twin["run"]["checkpoint_interval"]
    twin["run"] |= {"device": device, **own_keys, "checkpoint_interval": max(calls, interval - interval % calls)}
    if recipe.run.machine is not None:  # so that smoke/NAME@MACHINE runs on the IPUs themselves
        twin["on"] = {recipe.run.machine: {"pipeline": pipeline.model_dump()}}


def small_pipeline(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline of the same shape, with one layer on each IPU that has layers and as few micro-batches as it needs."""
    count = min(pipeline.ipus_per_replica, IPUS)
    layers = [min(number, 1 if count > 1 else TWIN_LAYERS) for number in pipeline.layers_per_ipu[:count]]
    replicas = min(pipeline.replicas, REPLICAS)
    sizes = {
        "layers_per_ipu": layers,
        **{key: min(getattr(pipeline, key), count - 1) for key in ("token_embedding", "position_embedding", "head")},
        "replicas": replicas,
        "instances": 1,
        "device_iterations": min(pipeline.device_iterations, UPDATES_PER_STEP),
        "loss_chunk": None if pipeline.loss_chunk is None else min(pipeline.loss_chunk, LOSS_CHUNK),
        **_small_keys(pipeline, count),
    }
    stages = pipeline.model_copy(update=sizes).stages
    multiple = 1 if pipeline.stages_of_original is None else 2 * pipeline.stages_of_original
    sizes["gradient_accumulation"] = multiple * math.ceil((2 * stages - 1) / multiple)
    phases = {name: {**phase.model_dump(), **_small_keys(phase, count)} for name, phase in pipeline.phases.items()}
    for phase in phases.values():
        phase["gradient_accumulation"] = None
    fine_tuning = {**pipeline.fine_tuning.model_dump(), **_small_keys(pipeline.fine_tuning, count)}
    return Pipeline.model_validate({**pipeline.model_dump(), **sizes, "phases": phases, "fine_tuning": fine_tuning})


def _small_keys(pipeline: Pipeline | PipelineOfPhase | PipelineOfFineTuning, ipus: int) -> dict[str, Any]:
    """Return the keys that a phase may override, for a pipeline of `ipus` IPUs."""
    size, shares = pipeline.micro_batch_size, pipeline.available_memory_proportion
    return {
        "micro_batch_size": None if size is None else min(size, MICRO_BATCH_SIZE),
        "available_memory_proportion": None if shares is None else shares[:ipus],
    }


def _device(recipe: Recipe) -> str:
    """Return the recipe's device if an environment variable has the CPU emulate it, otherwise the CPU."""
    emulation = DEVICES[recipe.run.device].emulation
    return recipe.run.device if emulation and os.environ.get(emulation[0]) == emulation[1] else HOST


def _small_model(model: Architecture) -> dict[str, Any]:
    small: dict[str, Any] = {"layers": min(model.layers, TWIN_LAYERS), "heads": TWIN_HEADS, "hidden_size": TWIN_WIDTH}
    if model.longest_sequence is not None:
        small["positions"] = min(model.longest_sequence, SEQUENCE_LENGTH)
    return {**small, "vocabulary_size": None, **model.declaration.twin_sizes}


def list_option_lengths() -> list[tuple[str, str]]:
    """Return the objective and key of each option that is a length in tokens."""
    return [(objective.name, key) for objective in OBJECTIVES for key in objective.option_lengths]
