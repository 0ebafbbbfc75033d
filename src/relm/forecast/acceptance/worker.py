"""A process that `relm accept` starts: it trains a twin, or takes full-size steps, and writes its figures or its error.

python -m relm.forecast.acceptance.worker REQUEST ANSWER
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from relm.artifact import read_json, write_json
from relm.errors import RelmError
from relm.recipes.declaration import load_extensions
from relm.recipes.devices import DEVICES
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe
from relm.training.interruption import stop_with_parent

FINGERPRINT = "acceptance00"
"""The fingerprint of twins, whose checkpoints are resumed by nothing else."""


def train_twin(request: Mapping[str, Any]) -> dict[str, Any]:
    """Train a twin's first phase in the folder of the request, or resume it there."""
    from relm.training.loop import pretrain

    recipe, examples = Recipe.model_validate(request["recipe"]), Path(request["examples"])
    sentence = pretrain(
        recipe,
        next(iter(recipe.pretrain)),
        manifest=examples / "manifest.json",
        tokenizer=examples / "tokenizer.json",
        init_from=None,
        model_folder=Path(request["folder"], "model"),
        run_fingerprint=FINGERPRINT,
    )
    return {"sentence": sentence}


def take_full_size_steps(request: Mapping[str, Any]) -> dict[str, Any]:
    """Take steps of a recipe's first phase as `relm rehearse` does, and return their speed and memory."""
    from relm.forecast.expected_tokenizer import vocabulary
    from relm.forecast.prepared_run import Rehearsal, prepare
    from relm.forecast.rehearsal_lines import take_steps
    from relm.training.loop import WARM_UP
    from relm.training.machine.fitting_micro_batch import fill_in_micro_batch

    plan = Project().plan(request["name"])
    phase, (tokenizer, _) = plan.phases[0], vocabulary(plan)
    recipe, device = fill_in_micro_batch(plan, phase, tokenizer)[0].recipe, request["device"]
    compiled = {"compile": False} if DEVICES[device].runs_torch and not request["full"] else {}
    recipe = recipe.model_copy(update={"run": recipe.run.model_copy(update={"device": device, **compiled})})
    count = WARM_UP + (recipe.run.pipeline.device_iterations if recipe.run.pipeline else 1)
    with (
        prepare(Rehearsal(recipe, phase, tokenizer, count)) as ready,
        closing(ready.run.reader.rounds(1, count, lambda: False)) as given,
    ):
        steps = take_steps(ready, given, count)
        return {
            "tokens_per_second": ready.run.tokens_per_step / steps.seconds,
            "seconds_per_step": steps.seconds,
            "memory_bytes": steps.memory,
            "loss": steps.last_loss,
            "programs": steps.programs,
        }


TASKS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {"train": train_twin, "steps": take_full_size_steps}


def main(request: Path, answer: Path) -> int:
    """Do what the request asks for, and return the exit status."""
    stop_with_parent()
    load_extensions()
    content = read_json(request)
    try:
        write_json(answer, TASKS[content["task"]](content))
    except RelmError as error:
        write_json(answer, {"error": str(error)})
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
