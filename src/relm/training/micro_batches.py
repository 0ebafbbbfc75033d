"""The division of a global batch into micro-batches. Imports no torch."""

import math

from relm.recipes.phase import Phase
from relm.recipes.recipe import Recipe
from relm.recipes.run import Run


def micro_batch_size(settings: Phase, wanted: int | None, parts: int) -> int:
    """Return the sequences of a forward pass: `wanted`, or the most that divide a part of the batch and a share of the loss."""
    return wanted or math.gcd(settings.share_size, settings.global_batch_size // parts)


def wanted_micro_batch_size(run: Run, phase: str) -> int | None:
    """Return the sequences of a forward pass that a recipe requests for a phase, in its pipeline if it has one."""
    return run.micro_batch_size if run.pipeline is None else run.pipeline.of_phase(phase).micro_batch_size


def shorten_phase(recipe: Recipe, phase: str, most: int, parts: int) -> tuple[Recipe, Phase]:
    """Return a recipe and its phase with at most `most` micro-batches of unchanged size in each of a batch's `parts`."""
    settings = recipe.pretrain[phase]
    size = micro_batch_size(settings, recipe.run.micro_batch_size, parts)
    if settings.global_batch_size <= most * parts * size:
        return recipe, settings
    few = {"global_batch_size": most * parts * size, "loss_shares": 1, "loss_normalisation": "global_tokens"}
    run = recipe.run.model_copy(update={"micro_batch_size": size})  # otherwise a whole share would be one micro-batch
    return recipe.model_copy(update={"run": run}), settings.model_copy(update=few)
