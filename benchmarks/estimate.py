"""Compare `relm estimate --trial` with the memory and time of a real run: `python benchmarks/estimate.py gpt2` or `bert`.

A recipe is written into a temporary folder with made-up documents, `relm pretrain` trains it in a process of its own, and the
process's peak resident memory (VmHWM of the kernel, read while it runs) and the time of its steps (`train.jsonl`, the first
left out, the median) stand beside two trials, one before and one after the run, so that both see the same machine.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from relm.examples.manifest import TokenizerFacts
from relm.forecast.trial import Trial, take_trial
from relm.recipes.project import Project
from relm.training.architecture import configuration
from relm.training.arithmetic import parameter_count
from relm.training.micro_batches import micro_batch_size

WORDS = 400
DOCUMENTS = 600
STEP = {"optimizer": {"learning_rate": 1e-4, "weight_decay": 0.01, "gradient_clipping": 1.0}}
RUN = {"log_interval": 1, "checkpoint_interval": 1000}
RECIPES: dict[str, dict[str, Any]] = {
    # 39 million parameters.
    "gpt2": {
        "tokenizer": {"train": "byte_level_bpe", "vocabulary_size": 400},
        "model": {"architecture": "gpt2", "layers": 6, "heads": 8, "hidden_size": 512, "positions": 256},
        "vocabulary": 50_257,
        "phase": {"objective": "causal", "sequence_length": 256, "global_batch_size": 4},
    },
    # BERT-base: 109.5 million.
    "bert": {
        "tokenizer": {"train": "wordpiece", "vocabulary_size": 400},
        "model": {"architecture": "bert", "layers": 12, "heads": 12, "hidden_size": 768, "positions": 512},
        "vocabulary": 30_522,
        "phase": {
            "objective": "masked",
            "sequence_length": 128,
            "global_batch_size": 8,
            "masked": {"max_predictions": 20},
            "optimizer": {"name": "lamb", "epsilon": 1e-6},
        },
        "run": {"micro_batch_size": 4},
    },
}


def recipe(name: str, steps: int, threads: int, changes: dict[str, Any]) -> dict[str, Any]:
    """The phase in the form of `recipes/NAME.yaml`."""
    chosen = RECIPES[name]
    phase = {**STEP, **chosen["phase"], "steps": steps, **changes.get("phase", {})}
    phase["optimizer"] = {**STEP["optimizer"], **chosen["phase"].get("optimizer", {}), **changes.get("optimizer", {})}
    return {
        "title": name,
        "data": {"dataset": "words"},
        "tokenizer": chosen["tokenizer"],
        "model": {**chosen["model"], "vocabulary_size": chosen["vocabulary"], **changes.get("model", {})},
        "pretrain": {"main": phase},
        "run": {**RUN, "threads": threads, **chosen.get("run", {}), **changes.get("run", {})},
    }


def write_project(folder: Path, written: dict[str, Any]) -> None:
    """Write the recipe, its dataset, and examples of random words."""
    name, draw = written["title"], random.Random(0)
    (folder / "recipes" / "data").mkdir(parents=True)
    (folder / "recipes" / f"{name}.yaml").write_text(yaml.safe_dump(written))
    dataset = {"title": "words", "licence": "CC0-1.0", "language": "en", "format": "text_files", "folder": str(folder / "text")}
    (folder / "recipes" / "data" / "words.yaml").write_text(yaml.safe_dump(dataset))
    (folder / "text").mkdir()
    (folder / "text" / "words.txt").write_text("The plan of a recipe asks whether its folder has texts.\n")
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(WORDS)]
    for split in ("train", "held_out"):
        with open(folder / f"a.{split}.jsonl", "w") as file:
            for number in range(DOCUMENTS):
                text = ". ".join(" ".join(draw.choices(words, k=12)).capitalize() for _ in range(20))
                file.write(json.dumps({"id": str(number), "title": f"{split} {number}", "text": f"{text}."}) + "\n")
    phase = written["pretrain"]["main"]
    suffix = ".bin" if phase["objective"] == "causal" else ".arrow"
    tokenizer = written["tokenizer"]
    relm(folder, "train-tokenizer", "--kind", tokenizer["train"], "--documents", "a.train.jsonl", "--vocabulary-size",
         str(tokenizer["vocabulary_size"]), "--output", "tokenizer.json")  # fmt: skip
    outputs = [f"a.{split}{suffix}" for split in ("train", "held_out")]
    relm(folder, "pregenerate", "--objective", phase["objective"], "--sequence-length", str(phase["sequence_length"]),
         "--tokenizer", "tokenizer.json", "--workers", "1", "--documents", "a.train.jsonl", "a.held_out.jsonl",
         "--output", *outputs)  # fmt: skip
    relm(folder, "manifest", "--sidecars", *(f"{output}.json" for output in outputs), "--output", "manifest.json")


def relm(folder: Path, *arguments: str) -> str:
    """Return one step, run to its end; what it printed."""
    done = subprocess.run([sys.executable, "-m", "relm", *arguments], cwd=folder, text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


class Trained(NamedTuple):
    """Measurements of a run."""

    peak: int
    """Bytes of resident memory."""
    seconds: list[float]
    """The seconds of each step but the first."""


def trained(folder: Path, name: str) -> Trained:
    """Train in a separate process."""
    output = "run/main/model/model.safetensors"
    command = ["pretrain", name, "--phase", "main", "--manifest", "manifest.json", "--tokenizer", "tokenizer.json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "relm", *command, "--output", output], cwd=folder, stdout=subprocess.DEVNULL
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, high_water_mark(process.pid))
        time.sleep(0.01)
    if process.returncode:
        raise SystemExit(f"the run ended with {process.returncode}")
    seconds = [json.loads(line)["seconds"] for line in (folder / "run/main/train.jsonl").read_text().splitlines()]
    return Trained(peak, [after - before for before, after in itertools.pairwise(seconds)])


def high_water_mark(process: int) -> int:
    """Return the most bytes that a process had in memory so far; 0 when it is gone."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return 1024 * int(found[0]) if found else 0


def print_comparison(trials: Sequence[Trial], run: Trained, micro_batches: int) -> None:
    """Print trial, measurement and ratio of memory and time."""
    memory = max(trial.memory or 0 for trial in trials)
    print(f"memory: trial {memory / 1e6:,.0f} MB, run {run.peak / 1e6:,.0f} MB, ratio {memory / run.peak:.3f}")
    before, after = (trial.step_seconds(micro_batches) for trial in trials)
    real, mean = statistics.median(run.seconds), (before + after) / 2
    print(
        f"seconds a step: trial {before:.3f} before, {after:.3f} after, run {real:.3f}, "
        f"ratio {mean / real:.3f} ({before / real:.3f}, {after / real:.3f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(RECIPES))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--changes", type=json.loads, default={}, help='JSON, such as {"run": {"micro_batch_size": 2}}')
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_project(folder, recipe(given.model, given.steps, given.threads, given.changes))
        os.chdir(folder)  # where a trial looks for its recipe
        chosen = Project(folder).plan(given.model).recipe
        phase = chosen.pretrain["main"]
        config = configuration(chosen, TokenizerFacts("", 400, None, {"pad": 0}))
        before = take_trial(given.model, "main", processes=1)
        run = trained(folder, given.model)
        after = take_trial(given.model, "main", processes=1)
        os.chdir("/")  # a folder in use cannot be removed everywhere
    print(f"{given.model}: {parameter_count(config):,} parameters, {phase.steps} steps, {given.threads} threads, {before}")
    micro_batches = phase.global_batch_size // micro_batch_size(phase, chosen.run.micro_batch_size, parts=1)
    print_comparison([before, after], run, micro_batches)


if __name__ == "__main__":
    main()
