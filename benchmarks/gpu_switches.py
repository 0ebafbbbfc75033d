"""Measure the switches that are written for GPUs on the CPU: `python benchmarks/gpu_switches.py gather|loss`.

The sides take turns, and a figure is the median. `gather` compares rows with torch's `gather`, both passes together. `loss`
measures mT5's vocabulary loss in fresh processes, with all logits and in chunks: seconds of processor time, and the peak of the
resident size beyond the inputs.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from relm.models.gathering import gathered
from relm.models.gpt2_configuration import Gpt2Config
from relm.models.losses import cross_entropy, cross_entropy_of_projection

MT5_VOCABULARY, MT5_SMALL_WIDTH = 250_112, 512
GPT2 = Gpt2Config(layers=6, heads=8, hidden_size=512, positions=128, vocabulary_size=8192, dropout=0.0)


def print_ratio(name: str, ours: list[float], theirs: list[float], other: str) -> None:
    """Print the medians of two sides, and the ratio of each pair."""
    ratios = sorted(after / before for after, before in zip(ours, theirs, strict=True))
    middle = ratios[len(ratios) // 2]
    print(
        f"{name}: {1e3 * statistics.median(ours):.2f} ms, {other} {1e3 * statistics.median(theirs):.2f} ms, "
        f"{middle:.2f} ({ratios[len(ratios) // 10]:.2f} to {ratios[-1 - len(ratios) // 10]:.2f}) times as long"
    )


def compare_gathers(repeats: int) -> None:
    """Compare gathers at BERT-base's and BERT-large's width, in torch's reproducible form, as training has it."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    for batch, length, width, masked in [(32, 128, 768, 20), (8, 512, 768, 77), (8, 512, 1024, 77)]:
        hidden = torch.randn(batch, length, width, requires_grad=True)
        positions = torch.randint(0, length, (batch, masked)).sort().values
        gradient = torch.randn(batch, masked, width)

        def seconds(function: Callable[[], Tensor], hidden: Tensor = hidden, gradient: Tensor = gradient) -> float:
            hidden.grad = None
            began = time.process_time()
            function().backward(gradient)
            return time.process_time() - began

        indices = positions[:, :, None].expand(-1, -1, width)
        ours, theirs = [], []
        for _ in range(repeats):
            theirs.append(seconds(lambda hidden=hidden, indices=indices: hidden.gather(1, indices)))
            ours.append(seconds(lambda hidden=hidden, positions=positions: gathered(hidden, positions)))
        print_ratio(f"{masked} of {length} positions of {batch} sequences, width {width}: rows", ours, theirs, "gather")


def measure_loss(chunk: int, positions: int) -> None:
    """Print the seconds and the peak memory of one forward and backward pass, as JSON; chunk 0: all logits."""
    torch.manual_seed(0)
    hidden = torch.randn(1, positions, MT5_SMALL_WIDTH, requires_grad=True)
    weight = torch.randn(MT5_VOCABULARY, MT5_SMALL_WIDTH).mul_(0.05).requires_grad_()
    labels = torch.randint(0, MT5_VOCABULARY, (1, positions))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    if chunk:
        term = cross_entropy_of_projection(hidden, weight, None, labels, chunk)
    else:
        term = cross_entropy(nn.functional.linear(hidden, weight), labels)
    term.nats.backward()
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"seconds": seconds, "megabytes": peak / 1024, "loss": term.nats.item() / positions}))


def compare_losses(chunks: list[int], positions: int, repeats: int) -> None:
    """Print the time and memory of each chunk, in turns; the first is all logits."""
    found: dict[int, list[dict[str, float]]] = {chunk: [] for chunk in chunks}
    for _ in range(repeats):
        for chunk in chunks:
            command = [sys.executable, __file__, "one_loss", "--chunk", str(chunk), "--positions", str(positions)]
            found[chunk].append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    for chunk, runs in found.items():
        seconds, most = (statistics.median(run[key] for run in runs) for key in ("seconds", "megabytes"))
        ratio = statistics.median(run["seconds"] / whole["seconds"] for run, whole in zip(runs, found[chunks[0]], strict=True))
        name = f"chunks of {chunk}" if chunk else "all logits"
        print(
            f"{positions} positions, {name}: {most:,.0f} MB, {seconds:.1f} s, {ratio:.2f} times as long, "
            f"loss {runs[0]['loss']:.6f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the switches that are written for GPUs.")
    parser.add_argument("part", choices=["gather", "loss", "one_loss"])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--chunk", type=int, default=0)
    parser.add_argument("--positions", type=int, default=512)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.part == "gather":
        compare_gathers(arguments.repeats)
    elif arguments.part == "loss":
        compare_losses([0, 128, 64], arguments.positions, arguments.repeats)
    else:
        measure_loss(arguments.chunk, arguments.positions)


if __name__ == "__main__":
    main()
