"""Compare one step of each optimizer with its peer: `python benchmarks/optimizers.py [--layers 12] [--hidden 768]`.

The parameters are those of a BERT of this size, the gradients random. Contestants take turns on the same machine, so that both
see the same load; the figure is the median of the ratios of neighbouring turns, and their quartiles. Peak memory is measured in
a fresh process for each. Peers: torch's AdamW, one operation for all parameters (foreach) and one kernel (fused), and
transformers' Adafactor; for LAMB, torch's foreach AdamW, which it is built on.
"""

import argparse
import re
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import nn

from relm.recipes.optimization import Optimizer
from relm.training.optimizers import build_optimizer
from relm.training.optimizers.building import parameter_groups

Step = Callable[[], object]
RECIPES = {
    "relm adamw": {"name": "adamw"},
    "relm adamw, form transformers": {"name": "adamw", "form": "transformers"},
    "relm adamw, no correction": {"name": "adamw", "bias_correction": False},
    "relm lamb": {"name": "lamb", "epsilon": 1e-6},
    "relm lamb, no correction": {"name": "lamb", "epsilon": 1e-6, "bias_correction": False},
    "relm adafactor": {"name": "adafactor", "adafactor": {"scale_parameter": False}},
    "relm sgd, momentum": {"name": "sgd", "sgd": {"momentum": 0.9}},
}
PEERS = {
    "relm adamw": "torch adamw foreach",
    "relm adamw, form transformers": "torch adamw foreach",
    "relm adamw, no correction": "torch adamw foreach",
    "relm lamb": "torch adamw foreach",
    "relm lamb, no correction": "torch adamw foreach",
    "relm adafactor": "transformers adafactor",
    "relm sgd, momentum": "torch sgd foreach",
}


class Weights(nn.Module):
    """The shapes of a BERT's parameters."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        shapes = [(30_522, hidden), (512, hidden)]
        for _ in range(layers):
            shapes += (
                4 * [(hidden, hidden), (hidden,)] + [(4 * hidden, hidden), (4 * hidden,)] + [(hidden, 4 * hidden), (hidden,)]
            )
            shapes += 4 * [(hidden,)]
        self.tensors = nn.ParameterList(nn.Parameter(torch.randn(shape) * 0.02) for shape in shapes)
        for tensor in self.tensors:
            tensor.grad = torch.randn_like(tensor) * 1e-3


def contestant(name: str, model: Weights) -> Step:
    """Make an optimizer for the model's weights, and return its step."""
    if name in RECIPES:
        settings = Optimizer.model_validate({"learning_rate": 1e-5, "weight_decay": 0.01, **RECIPES[name]})
        return build_optimizer(model, settings).step
    groups = parameter_groups(model, Optimizer(learning_rate=1e-5, weight_decay=0.01))
    if name == "transformers adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(groups, lr=1e-5, scale_parameter=False, relative_step=False).step
    if name == "torch sgd foreach":
        return torch.optim.SGD(groups, lr=1e-5, momentum=0.9, foreach=True).step
    return torch.optim.AdamW(groups, lr=1e-5, foreach=name.endswith("foreach"), fused=name.endswith("fused")).step


def peak_megabytes(name: str | None, layers: int, hidden: int) -> int:
    """Return the peak memory of two steps in a separate process; None: of only the weights and gradients."""
    model = Weights(layers, hidden)
    if name is not None:
        step = contestant(name, model)
        step()
        step()
    # Not ru_maxrss: a process inherits that from the one that started it.
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) // 1024


def in_fresh_process(name: str | None, layers: int, hidden: int) -> int:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(peak_megabytes, name, layers, hidden).result()


def milliseconds(step: Step) -> float:
    started = time.perf_counter()
    step()
    return (time.perf_counter() - started) * 1000


def compare(name: str, peer: str, layers: int, hidden: int, repeats: int) -> None:
    """Print times, ratio and peak memory of an optimizer and its peer."""
    model = Weights(layers, hidden)
    ours, theirs = contestant(name, model), contestant(peer, model)
    for _ in range(2):
        ours(), theirs()
    times = [(milliseconds(ours), milliseconds(theirs)) for _ in range(repeats)]
    low, middle, high = statistics.quantiles([b / a for a, b in times], n=4)
    us, them = (statistics.median(column) for column in zip(*times, strict=True))
    memory = [in_fresh_process(contender, layers, hidden) for contender in (name, peer)]
    print(
        f"{name}: {us:.1f} ms, {memory[0]} MB; {peer}: {them:.1f} ms, {memory[1]} MB; "
        f"{middle:.2f} times as fast ({low:.2f} to {high:.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the optimizers.")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--repeats", type=int, default=15, help="at least 2, for quartiles")
    given = parser.parse_args()
    if given.repeats < 2:
        parser.error(f"--repeats: expected 2 or more, found {given.repeats}")
    count = sum(tensor.numel() for tensor in Weights(given.layers, given.hidden).tensors)
    weights = in_fresh_process(None, given.layers, given.hidden)
    print(f"{count / 1e6:.0f} million parameters, {torch.get_num_threads()} threads; weights and gradients alone: {weights} MB")
    for name, peer in PEERS.items():
        compare(name, peer, given.layers, given.hidden, given.repeats)


if __name__ == "__main__":
    main()
