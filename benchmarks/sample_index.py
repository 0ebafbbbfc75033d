"""Measure how fast GPT-2's sample index is made, compared with the original's loops: `python benchmarks/sample_index.py`.

`--graphcore FOLDER` names nlp/gpt2/pytorch of a checkout of graphcore/examples v3.4.1, whose loop is Python; `--megatron
FOLDER` a checkout of Megatron-LM with megatron/core/datasets built by its Makefile, whose loop is C++. All get the same
documents, in turns, each in a separate process, and their results are compared.
"""

import argparse
import hashlib
import importlib.util
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from relm.examples.as_published.graphcore_gpt2 import doc_idx, sample_idx

SEED = 1234


class Job(NamedTuple):
    """The figures of one process."""

    name: str
    path: Path | None
    documents: int
    epochs: int
    sequence_length: int


def module_at(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def implementation(job: Job) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    if job.path is None:
        return lambda sizes, order: sample_idx(sizes, order, job.sequence_length, job.epochs * int(sizes.sum(dtype=np.int64)))
    module = module_at("indexed_dataset" if job.name == "graphcore" else "helpers_cpp", job.path)
    build = module._build_sample_idx if job.name == "graphcore" else module.build_sample_idx_int32
    # Megatron's: the last partial sample is dropped, and a sample has one token more than its length.
    more = () if job.name == "graphcore" else (True, 1)

    def index(sizes: np.ndarray, order: np.ndarray) -> np.ndarray:
        return build(sizes, order, job.sequence_length, job.epochs, int(sizes.sum(dtype=np.int64)), *more)

    return index


def measure(job: Job) -> tuple[float, float, int, str]:
    """Seconds, peak memory of the process in MB, samples, and the sha256 of the index."""
    # Lengths of Wikipedia articles are about lognormal; these have 660 tokens on average.
    sizes = np.random.RandomState(0).lognormal(6, 1, job.documents).astype(np.int32) + 1
    order = doc_idx(np.arange(job.documents), job.epochs, np.random.RandomState(SEED))
    build = implementation(job)
    started = time.perf_counter()
    index = build(sizes, order)
    seconds = time.perf_counter() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return seconds, memory, len(index) - 1, hashlib.sha256(np.ascontiguousarray(index).tobytes()).hexdigest()


def found(folder: Path, pattern: str) -> Path:
    paths = sorted(folder.glob(pattern))
    if not paths:
        raise SystemExit(f"{folder}: has no {pattern}; is it the right folder, and is it built?")
    return paths[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphcore", type=Path, metavar="FOLDER")
    parser.add_argument("--megatron", type=Path, metavar="FOLDER")
    parser.add_argument("--documents", type=int, default=10**6)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--sequence-length", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    paths: dict[str, Path | None] = {"relm": None}
    if given.graphcore:
        paths["graphcore"] = found(given.graphcore, "data/indexed_dataset.py")
    if given.megatron:
        paths["megatron"] = found(given.megatron, "megatron/core/datasets/helpers_cpp*.so")
    times: dict[str, list[float]] = {name: [] for name in paths}
    memory: dict[str, float] = {}
    digests = set()
    for _ in range(given.runs):
        for name, path in paths.items():
            job = Job(name, path, given.documents, given.epochs, given.sequence_length)
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
                seconds, memory[name], samples, digest = fresh.submit(measure, job).result()
            times[name].append(seconds)
            digests.add(digest)
    shape = f"{given.documents:,} documents, {given.epochs} epochs, {samples:,} samples of {given.sequence_length}"
    print(f"{shape}; {given.runs} runs in turns")
    for name, seconds in times.items():
        ratios = sorted(theirs / ours for theirs, ours in zip(seconds, times["relm"], strict=True))
        spread = f"{min(seconds):.4f} to {max(seconds):.4f}"
        print(f"{name:10} {statistics.median(seconds):8.4f} s ({spread}), peak memory {memory[name]:.0f} MB", end="")
        print("" if name == "relm" else f"; {statistics.median(ratios):.3g} times relm's ({ratios[0]:.3g} to {ratios[-1]:.3g})")
    print("all results are equal" if len(digests) == 1 else "RESULTS DIFFER")


if __name__ == "__main__":
    main()
