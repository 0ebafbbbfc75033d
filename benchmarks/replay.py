"""Measure how far a replayed segment is from the attested one: with only rounding, and with the smallest faults. The bands of
`relm.replay.resemblance` lie between the two.

    snakemake results/quickstart
    python benchmarks/replay.py --steps 50                          # figures of docs/trust.md
    python benchmarks/replay.py --steps 50 --precision bfloat16
    python benchmarks/replay.py --steps 50 --dropout 0.1
"""

import argparse
import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors import safe_open

from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe
from relm.recipes.run_folder import RECORDS, checkpoint_folder
from relm.recipes.section import merge
from relm.replay.resemblance import band_of, loss_difference, update_difference
from relm.training import input as training_input
from relm.training import loop, phase_run, updates

Fault = Callable[[], contextlib.AbstractContextManager[Any]]


def with_scale(factor: float) -> Fault:
    """Return the learning rate, times a factor."""
    scale = updates.learning_rate_scale
    return lambda: patch.object(updates, "learning_rate_scale", lambda *given: factor * scale(*given))


def with_batch(change: Callable[[Any, Any], Any], at: int) -> Fault:
    """In one step a batch that is made of the right one and the next."""
    read = training_input.Reader.batch

    def batch(self: Any, step: int) -> Any:
        right = read(self, step)
        if step != at:
            return right
        following = read(self, step + 1)
        return {name: change(array, following[name]) for name, array in right.items()}

    return lambda: patch.object(training_input.Reader, "batch", batch)


def with_seed(purpose: str) -> Fault:
    """Return another seed for one purpose."""
    drawn = phase_run.derived_seed

    @contextlib.contextmanager
    def changed() -> Iterator[None]:
        seeds = patch.object(phase_run, "derived_seed", lambda *words: drawn(*words, *(["other"] if purpose in words else [])))
        with seeds, patch.object(loop, "attest_order", lambda run: None):
            yield

    return changed


def trained(plan: Plan, recipe: Recipe, folder: Path, until: int) -> Path:
    """Train the first phase up to a step and return its folder."""
    phase = plan.phases[0]
    inputs = plan.manifest(phase), plan.tokenizer, None, folder / phase / "model"
    loop.pretrain(recipe, phase, *inputs, plan.fingerprint, until=until)
    return folder / phase


def measure(plan: Plan, start: int, steps: int, changes: dict[str, Any], only: list[str] | None) -> None:
    """Train a segment, then again in every way, and print a row for each."""
    phase, last = plan.phases[0], start + steps
    base = Recipe.model_validate(merge(plan.recipe.model_dump(), changes))
    size = base.pretrain[phase].global_batch_size
    ways: dict[str, tuple[dict[str, Any], Fault]] = {
        "the same": ({}, contextlib.nullcontext),
        "2 threads": ({"threads": 2}, contextlib.nullcontext),
        "half the micro-batch": ({"micro_batch_size": size // 2}, contextlib.nullcontext),
        "dropout of another seed": ({}, with_seed("dropout")),
        "learning rate + 0.1 %": ({}, with_scale(1.001)),
        "learning rate + 1 %": ({}, with_scale(1.01)),
        "one example of one batch": ({}, with_batch(lambda right, other: torch.cat(_first(other, right)).numpy(), start + 5)),
        "one batch": ({}, with_batch(lambda right, other: other, start + 5)),
        "another order": ({}, with_seed("order")),
    }
    with tempfile.TemporaryDirectory() as work:
        attested = trained(plan, base, Path(work) / "attested", start)
        trained(plan, base, Path(work) / "attested", last)
        print(f"{plan.name}, {changes}, steps {start + 1} to {last}; band {band_of(base.pretrain[phase])}")
        print(f"{'':26} {'distance':>9} {'length':>9} {'loss':>9}  of tensor")
        for name, (run, fault) in ways.items():
            if only and name not in only:
                continue
            place = Path(work) / "again" / phase
            shutil.copytree(checkpoint_folder(attested / "checkpoints", start), place / "checkpoints" / f"step-{start:08d}")
            for record in RECORDS:  # the checkpoint attests them up to its step
                shutil.copy(attested / record, place)
            with fault():
                trained(plan, Recipe.model_validate(merge(base.model_dump(), {"run": run})), place.parent, last)
            print(f"{name:26} {compared(attested, place, start, last)}", flush=True)
            shutil.rmtree(place.parent)


def _first(other: Any, right: Any) -> list[torch.Tensor]:
    return [torch.from_numpy(other[:1]), torch.from_numpy(right[1:])]


def compared(attested: Path, again: Path, start: int, last: int) -> str:
    """Return distance, length and loss, as a replay compares them."""
    with contextlib.ExitStack() as stack:

        def weights(folder: Path, step: int) -> Any:
            path = checkpoint_folder(folder / "checkpoints", step) / "model.safetensors"
            return stack.enter_context(safe_open(path, framework="pt"))

        read = [weights(attested, start), weights(attested, last), weights(again, last)]
        found = update_difference(list(read[0].keys()), *(file.get_tensor for file in read))
    lines = [[json.loads(text) for text in (folder / "train.jsonl").read_text().splitlines()] for folder in (attested, again)]
    losses = [{line["step"]: line for line in some if line["step"] > start} for some in lines]
    return f"{found.distance:9.1e} {found.length:+9.1e} {loss_difference(*losses):9.1e}  {found.tensor}"


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="quickstart", help="one whose examples lie in work/; its first phase is trained")
    parser.add_argument("--start", type=int, default=100, help="the last step before the segment")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--only", nargs="*", metavar="WAY", help="of all ways to train it again")
    given = parser.parse_args()
    plan = Project().plan(given.recipe)
    rates = {key: given.dropout for key in plan.recipe.model.model_dump() if key.endswith("dropout")}
    kept = {"checkpoint_interval": given.start, "keep_checkpoints": 2, "keep_every": 1}
    run = {"threads": 1, "log_interval": 5, "micro_batch_size": None, **kept}
    changes = {"model": rates, "run": run, "pretrain": {plan.phases[0]: {"precision": given.precision}}}
    measure(plan, given.start, given.steps, changes, given.only)


if __name__ == "__main__":
    main()
