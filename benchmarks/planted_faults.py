"""Small runs of relm with planted faults, whose logs `curve_detection.py` watches.

    python benchmarks/planted_faults.py --runs FOLDER --text FILE

Each run is a GPT-2 of two layers on the bytes of a text, with its own seed for weights and order, or only for the weights
(`ORDERS`). A fault changes what training does and leaves the log as it is: the learning rate that is logged is the
right one. A run that is there already is not repeated.
"""

import argparse
import bz2
import json
import lzma
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from relm.examples.builders import pregenerate
from relm.examples.manifest import write_manifest
from relm.examples.order import epochs_of
from relm.recipes.objectives import Objective
from relm.recipes.recipe import Recipe
from relm.training import input as training_input
from relm.training import phase_run, updates
from relm.training.loop import pretrain
from relm.training.optimizers import building

REPLICAS = 8
WARM_UP_PART = 10  # the warm-up is this part of the run
RATE = 2e-3
# Of which runs the order of the data is their own: all runs', or that of seed 0 as in a repetition with the published order.
ORDERS = ("own", "same")


def recipe_of(steps: int, seed: int) -> Recipe:
    """Return the recipe of a small run."""
    return Recipe.model_validate(
        {
            "title": "a small run",
            "data": {"dataset": "text"},
            "tokenizer": {"train": "byte_level_bpe", "vocabulary_size": 257},
            "model": {"architecture": "gpt2", "layers": 2, "heads": 2, "hidden_size": 64, "positions": 64, "dropout": 0.0},
            "seed": seed,
            "pretrain": {
                "main": {
                    "objective": "causal",
                    "sequence_length": 64,
                    "global_batch_size": 16,
                    "steps": steps,
                    "optimizer": {"learning_rate": RATE, "weight_decay": 0.1, "gradient_clipping": 1.0, "betas": [0.9, 0.95]},
                    "schedule": {"name": "cosine", "warmup_steps": max(2, steps // WARM_UP_PART), "floor": 0.1},
                }
            },
            "run": {"threads": 1, "checkpoint_interval": 10**9, "log_interval": 1},
        }
    )


def write_examples(folder: Path, text: str) -> None:
    """Write a text's paragraphs as examples, a token a byte, in relm's usual form."""
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    documents = folder / "text.train.jsonl"
    with open(documents, "w") as file:
        for number, paragraph in enumerate(part for part in text.split("\n\n") if part.strip()):
            file.write(json.dumps({"id": str(number), "title": "", "text": paragraph}) + "\n")
    phase = recipe_of(100, 0).pretrain["main"]
    stored = Objective.model_validate({key: getattr(phase, key) for key in Objective.model_fields})
    shard = folder / f"text.train{phase.suffix}"
    pregenerate(documents, folder / "tokenizer.json", shard, stored, "en", workers=1)
    write_manifest({"train": [shard]}, folder / "manifest.json")


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a function for a while by what `make` makes of it."""
    before = getattr(owner, name)
    setattr(owner, name, make(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


def scaled_rate(factor: Callable[[float], float]) -> Any:
    """Take steps with the learning rate times a factor, which may depend on the rate, and log the rate unchanged."""
    change = lambda before: lambda optimizer, rate: before(optimizer, rate * factor(rate))  # noqa: E731
    return replaced(updates, "set_learning_rate", change)


@contextmanager
def no_warmup(steps: int) -> Iterator[None]:
    """Begin with the peak learning rate, while the schedule's warm-up is logged."""
    taken = [0]

    def change(before: Any) -> Any:
        def set_rate(optimizer: Any, rate: Any) -> None:
            taken[0] += 1
            before(optimizer, RATE if taken[0] <= max(2, steps // WARM_UP_PART) else rate)

        return set_rate

    with replaced(updates, "set_learning_rate", change):
        yield


def unshuffled() -> Any:
    """Read the examples from first to last."""

    def in_sequence(examples: Any, order_seed: int, positions: Any) -> Any:
        return positions % len(examples), epochs_of(positions, len(examples))

    return replaced(training_input, "numbers_at", lambda _: in_sequence)


def wrong_order() -> Any:
    """Read the examples in the shuffled order of another seed."""
    return replaced(
        training_input, "numbers_at", lambda before: lambda found, seed, positions: before(found, seed + 1, positions)
    )


def divided_by_one_replica() -> Any:
    """Divide the gradient by the tokens of one of the replicas: it is as many times too large, and the logged loss is right."""

    def change(before: Any) -> Any:
        def finish(parameters: Any, *others: Any, **options: Any) -> Any:
            parameters = list(parameters)
            for parameter in parameters:
                parameter.grad.mul_(REPLICAS)
            return before(parameters, *others, **options)

        return finish

    return replaced(updates, "finish_gradients", change)


def no_all_reduce() -> Any:
    """Train on the gradient of the first replica's part of each batch, divided by the tokens of the whole batch."""

    def change(before: Any) -> Any:
        def accumulate(forward: Any, micro_batches: Any, denominators: Any, *others: Any, **options: Any) -> Any:
            (batch,), (divisor,) = list(micro_batches), denominators
            length = len(batch["input_ids"]) // REPLICAS
            parts = [{name: value[length * n : length * (n + 1)] for name, value in batch.items()} for n in range(REPLICAS)]
            own = before(forward, parts[:1], [divisor], *others, **options)
            with torch.no_grad():
                rest = [forward(part)["next_token"].nats / divisor["next_token"] for part in parts[1:]]
            return own._replace(loss=own.loss + sum(rest))

        return accumulate

    return replaced(updates, "accumulate_terms", change)


def decay_on_all() -> Any:
    """Let biases and gains of normalisations decay as well."""
    change = lambda before: lambda *given: [{**group, "weight_decay": 0.1} for group in before(*given)]  # noqa: E731
    return replaced(building, "parameter_groups", change)


def none() -> Any:
    """Plant nothing."""
    return replaced(updates, "set_learning_rate", lambda before: before)


# Name -> the fault, planted while the context lasts.
FAULTS: dict[str, Callable[[int], Any]] = {
    "clean": lambda steps: none(),
    "rate x 2": lambda steps: scaled_rate(lambda rate: 2.0),
    "rate / 2": lambda steps: scaled_rate(lambda rate: 0.5),
    "no warm-up": no_warmup,
    "another order": lambda steps: wrong_order(),
    "unshuffled": lambda steps: unshuffled(),
    "gradient x 8 (tokens of one replica)": lambda steps: divided_by_one_replica(),
    "no all-reduce over 8 replicas": lambda steps: no_all_reduce(),
    "decay on biases and gains": lambda steps: decay_on_all(),
}


@contextmanager
def order_of(which: str) -> Iterator[None]:
    """Let the seed decide weights and order, or only the weights."""

    def change(before: Any) -> Any:
        return lambda seed, purpose, *words: before(0 if purpose == "order" else seed, purpose, *words)

    with replaced(phase_run, "derived_seed", change if which == "same" else lambda before: before):
        yield


def log_of(runs: Path, order: str, fault: str, seed: int) -> Path:
    """Return the path of a run's log."""
    return runs / order / f"{fault.replace('/', 'by').replace(' ', '_')}-{seed}.jsonl"


def run(examples: Path, log: Path, order: str, fault: str, seed: int, steps: int) -> None:
    """Train once and keep the log."""
    with tempfile.TemporaryDirectory() as name, FAULTS[fault](steps), order_of(order), redirect_stderr(StringIO()):
        folder = Path(name) / "main"
        files = examples / "manifest.json", examples / "tokenizer.json"
        pretrain(recipe_of(steps, seed), "main", *files, None, folder / "model", "0123456789ab")
        log.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "train.jsonl", log.with_suffix(".part"))
        log.with_suffix(".part").replace(log)


def read_text(path: Path) -> str:
    """Return the text of a file, which may be packed by bzip2 or xz."""
    opened = {".bz2": bz2.open, ".xz": lzma.open}.get(path.suffix, open)
    with opened(path, "rt", encoding="utf-8") as file:  # type: ignore[operator]
        return str(file.read())


def wanted_runs(counts: Mapping[str, int], orders: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """Yield order, fault and seed of each run: the repetitions, the faulty runs, and the clean runs that are watched."""
    faults = [name for name in FAULTS if name != "clean"]
    for order in orders:
        repetitions = range(1, 1 + counts["repetitions"])
        clean = range(1 + len(repetitions), 1 + len(repetitions) + counts["clean"])
        faulty = [(fault, 1001 + number) for number in range(counts["faulty"]) for fault in faults]
        yield from ((order, "clean", seed) for seed in repetitions)
        yield from ((order, fault, seed) for fault, seed in faulty)
        yield from ((order, "clean", seed) for seed in clean)


def make_runs(runs: Path, text: Path, steps: int, counts: Mapping[str, int], orders: Sequence[str] = ORDERS) -> None:
    """Train every run that is not there."""
    torch.set_num_threads(1)
    np.seterr(all="raise")
    with tempfile.TemporaryDirectory() as name:
        write_examples(Path(name), read_text(text))
        for order, fault, seed in wanted_runs(counts, orders):
            log = log_of(runs, order, fault, seed)
            if not log.exists():
                run(Path(name), log, order, fault, seed, steps)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which runs there are."""
    parser.add_argument("--runs", type=Path, required=True, metavar="FOLDER", help="where the logs are kept")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="the training text; .bz2 and .xz are unpacked")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repetitions", type=int, default=10, help="clean runs that are the published ones")
    parser.add_argument("--clean", type=int, default=50, help="clean runs that are watched")
    parser.add_argument("--faulty", type=int, default=3, help="runs with each fault")
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))


if __name__ == "__main__":
    wanted = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_sizes(wanted)
    given = wanted.parse_args()
    make_runs(given.runs, given.text, given.steps, vars(given), given.orders)
