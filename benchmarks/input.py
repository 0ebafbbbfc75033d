"""Compare the rate of the input with the rate of the steps: `python benchmarks/input.py masked` (or another objective).

A reader makes the inputs of steps from stored examples, as the loop's thread does, with nothing else to do: order, gathering,
masks, counts of labels, staging. In turns with it, bare steps (forward, backward, clipping, AdamW) are taken of the
model of `benchmarks/loop.py`, 4 layers of width 256. The ratio of the two rates is what the reader has to spare on this
machine; the rate itself says how fast a device it could feed.
"""

import argparse
import logging
import tempfile
from pathlib import Path

import loop
import torch

from models import clocks, our_loss, our_model, spread
from relm.devices.contract import open_device
from relm.training.phase_run import open_reader


def measure(given: argparse.Namespace, folder: Path) -> None:
    """Print the rates and their ratio."""
    recipe = loop.recipe_of(given)
    reader = open_reader(recipe, "main", loop.write_examples(folder, recipe), "train", open_device(recipe.run))
    batch = reader.step_input(1).micro_batches[0]
    masked = batch["masked_positions"].shape[1] if given.objective == "masked" else 0
    model = our_model(loop.setting_of(given, masked))
    take = loop.bare_steps(model, our_loss, batch, given.steps)
    reading, taking = [], []
    for turn in range(1 + given.repeats):
        before = clocks()
        for number in range(given.inputs):
            reader.step_input(1 + turn * given.inputs + number)
        between = clocks()
        take()
        after = clocks()
        if turn:
            reading.append([given.inputs * given.batch / (b - a) for a, b in zip(before, between, strict=True)])
            taking.append([given.steps * given.batch / (b - a) for a, b in zip(between, after, strict=True)])
    print(f"{given.objective}: {len(reader.examples):,} examples of {given.length} tokens, {given.batch} a step")
    for clock, label in enumerate(("clock", "processor")):
        fed, taken = ([rates[clock] for rates in side] for side in (reading, taking))
        ratios = [a / b for a, b in zip(fed, taken, strict=True)]
        print(f"{label}: read {format_spread(fed)} examples/s, taken {format_spread(taken)} examples/s, ratio {spread(ratios)}")
        print(f"{label}: read {format_spread([rate * given.length for rate in fed])} tokens/s")


def format_spread(values: list[float]) -> str:
    """Return a median with its spread."""
    low, middle, high = min(values), sorted(values)[len(values) // 2], max(values)
    return f"{middle:,.0f} ({low:,.0f} to {high:,.0f})"


def settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("objective", choices=list(loop.MODELS))
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--batch", type=int, default=16, help="sequences of a step")
    parser.add_argument("--inputs", type=int, default=50, help="steps read in each turn")
    parser.add_argument("--steps", type=int, default=2, help="steps taken in each turn")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.set_defaults(tiny=False)
    return parser.parse_args()


def main() -> None:
    given = settings()
    logging.disable(logging.WARNING)
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        measure(given, Path(folder))


if __name__ == "__main__":
    main()
