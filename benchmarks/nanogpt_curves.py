"""Loss curves of nanoGPT's own program, one run for each seed: the source of two files in `recipes/`.

    python benchmarks/nanogpt_curves.py run --nanogpt FOLDER --output RUNS [--seeds 1337 1 2] [--steps 2000]
    python benchmarks/nanogpt_curves.py join --output RUNS > recipes/curves/shakespeare_char_nanogpt.tsv
    python benchmarks/nanogpt_curves.py figures --output RUNS > recipes/reference_runs/shakespeare_char_nanogpt.yaml

FOLDER is a checkout of karpathy/nanoGPT (3adf61e1) in which data/shakespeare_char/prepare.py has run. Its train.py runs
unchanged with the command of its README for a CPU, one thread, and float32. From outside, the seed is replaced, and learning
rate, gradient norm (before clipping) and loss are recorded; what train.py prints is compared with them.
"""

import argparse
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

OPTIONS = (
    "--device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 "
    "--n_embd=128 --dropout=0.0"
)
PRINTED = re.compile(r"^iter (\d+): loss ([0-9.]+),", re.MULTILINE)
VALIDATED = re.compile(r"^step (\d+): train loss [0-9.]+, val loss ([0-9.]+)$", re.MULTILINE)
HEADER = """\
# Training losses of nanoGPT's own program on the characters of Shakespeare: its README's run on a CPU, once for each seed.
# source: github.com/karpathy/nanoGPT
# commit: 3adf61e154c3fe3fca428ad6bc3818b27a3b8291
# path: train.py with config/train_shakespeare_char.py, run by benchmarks/nanogpt_curves.py with torch {torch}, one thread
# licence: MIT
# smoothing: none; each row is one update, and update u of nanoGPT, counted from 0, is step u + 1
# runs: seeds {seeds}, as loss_1 and gradient_norm_1 and so on; loss and gradient_norm are their means
# columns: nats per character; learning rate; norm of the gradient before clipping; nats per character of 20 validation batches
"""
FIGURES = """\
# yaml-language-server: $schema=../../envs/reference_runs.schema.json
# nanoGPT's own program on the characters of Shakespeare, its README's run on a CPU: the validation loss after update 2,000,
# from 20 random batches, as train.py prints it. Made on one thread of a CPU, in float32, with torch {torch}.
program: github.com/karpathy/nanoGPT
commit: 3adf61e154c3fe3fca428ad6bc3818b27a3b8291
command: python benchmarks/nanogpt_curves.py figures --output RUNS > recipes/reference_runs/shakespeare_char_nanogpt.yaml
metric: random_windows.loss
runs:
"""


def run_all(checkout: Path, output: Path, seeds: list[int], steps: int) -> None:
    """Run the seeds that have no curve yet, one process each."""
    output.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        if not (output / f"{seed}.tsv").exists():
            arguments = [
                "one",
                "--nanogpt",
                str(checkout),
                "--output",
                str(output),
                "--seeds",
                str(seed),
                "--steps",
                str(steps),
            ]
            printed = subprocess.run(
                [sys.executable, __file__, *arguments], env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE,
                text=True, check=True,
            ).stdout  # fmt: skip
            write_run(output, seed, printed)


@contextmanager
def recorded_updates(seed: int) -> Iterator[list[list[float]]]:
    """Replace the seed of a program's torch.manual_seed(1337), and record the loss, learning rate and norm of its updates.

    Yields:
        three lists, to which each update adds a value; the norm is that before clipping.
    """
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    losses: list[float] = []
    rates: list[float] = []
    norms: list[float] = []
    set_seed, clip, backward = torch.manual_seed, torch.nn.utils.clip_grad_norm_, torch.Tensor.backward

    def recorded(function: Callable[..., Any], record: Callable[[Any, Any], None]) -> Callable[..., Any]:
        def call(first: Any, *arguments: Any, **options: Any) -> Any:
            result = function(first, *arguments, **options)
            record(first, result)
            return result

        return call

    def as_seeded(wanted: int) -> Any:
        assert wanted == 1337
        return set_seed(seed)

    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: rates.append(float(optimizer.param_groups[0]["lr"])))
    with (
        patch.object(torch, "manual_seed", as_seeded),
        patch.object(torch.nn.utils, "clip_grad_norm_", recorded(clip, lambda _, norm: norms.append(float(norm)))),
        patch.object(torch.Tensor, "backward", recorded(backward, lambda loss, _: losses.append(float(loss.detach())))),
    ):
        yield [losses, rates, norms]
    hook.remove()


def train_once(checkout: Path, output: Path, seed: int, steps: int) -> None:
    """Run train.py in this process with another seed, and write what its updates had to OUTPUT/SEED.npy."""
    output = output.resolve()
    os.chdir(checkout)
    sys.path.insert(0, str(Path.cwd()))
    # Each seed has a folder of its own, so that several may run side by side.
    lengths = [f"--max_iters={steps}", f"--lr_decay_iters={steps}", f"--out_dir={output / f'out_{seed}'}"]
    sys.argv = ["train.py", "config/train_shakespeare_char.py", *OPTIONS.split(), *lengths]
    with recorded_updates(seed) as updates:
        runpy.run_path("train.py", run_name="__main__")
    np.save(output / f"{seed}.npy", np.array(updates).T)


def write_run(output: Path, seed: int, printed: str) -> None:
    """Write OUTPUT/SEED.tsv from the recorded figures and what the program printed."""
    table = np.load(output / f"{seed}.npy")
    shown = [float(loss) for _, loss in PRINTED.findall(printed)]
    assert len(shown) == len(table)
    assert np.abs(np.array(shown) - table[:, 0]).max() < 1e-4
    validated = {int(update): loss for update, loss in VALIDATED.findall(printed)}
    lines = ["step\tloss\tlearning_rate\tgradient_norm\tvalidation_loss"]
    for update, (loss, rate, norm) in enumerate(table):
        # The validation before update u, which is counted from 0, is that after step u.
        lines.append(f"{update + 1}\t{loss:.4f}\t{rate:.6g}\t{norm:.4g}\t{validated.get(update + 1, '')}")
    (output / f"{seed}.tsv").write_text("\n".join(lines) + "\n")


def join(output: Path, seeds: list[int], steps: int) -> None:
    """Print the curve of all seeds: their means, and the loss and the gradient's norm of each."""
    import torch

    seeds = [seed for seed in seeds if (output / f"{seed}.tsv").exists()]
    runs = np.array([np.genfromtxt(output / f"{seed}.tsv", delimiter="\t", skip_header=1)[:steps] for seed in seeds])
    print(HEADER.format(torch=torch.__version__.split("+")[0], seeds=", ".join(map(str, seeds))), end="")
    numbers = range(1, len(seeds) + 1)
    names = ["step", "loss", "learning_rate", "gradient_norm", "validation_loss"]
    print("\t".join([*names, *(f"loss_{n}" for n in numbers), *(f"gradient_norm_{n}" for n in numbers)]))
    for rows in runs.transpose(1, 0, 2):
        step, loss, rate, norm, validation = rows.mean(axis=0)
        mean = f"{step:.0f}\t{loss:.4f}\t{rate:.6g}\t{norm:.4g}\t" + (f"{validation:.4f}" if validation == validation else "")
        print("\t".join([mean, *(f"{loss:.3f}" for loss in rows[:, 1]), *(f"{norm:.3g}" for norm in rows[:, 3])]))


def print_figures(output: Path, seeds: list[int], steps: int) -> None:
    """Print the last validation loss of each seed, as reference runs of a recipe."""
    import torch

    print(FIGURES.format(torch=torch.__version__.split("+")[0]), end="")
    for seed in seeds:
        if (output / f"{seed}.tsv").exists():
            rows = (output / f"{seed}.tsv").read_text().splitlines()
            print(f"  - {{seed: {seed}, value: {rows[steps].split()[-1]}}}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "one", "join", "figures"])
    parser.add_argument("--nanogpt", type=Path, metavar="FOLDER")
    parser.add_argument("--output", type=Path, required=True, metavar="RUNS")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1337, *range(1, 10)])
    parser.add_argument("--steps", type=int, default=2000)
    given = parser.parse_args()
    if given.what == "join":
        join(given.output, given.seeds, given.steps)
    elif given.what == "figures":
        print_figures(given.output, given.seeds, given.steps)
    elif given.what == "run":
        run_all(given.nanogpt, given.output, given.seeds, given.steps)
    else:
        train_once(given.nanogpt, given.output, given.seeds[0], given.steps)


if __name__ == "__main__":
    main()
