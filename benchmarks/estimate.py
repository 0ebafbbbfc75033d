"""What `relm estimate` says beside what a real run takes: `python benchmarks/estimate.py gpt2` or `bert` (or `base`).

A recipe is written into a temporary folder with made-up documents, `relm pretrain` trains it in a process of its own, and the
process's peak resident memory (VmHWM of the kernel, read while it runs) and the time of its steps (`train.jsonl`, the first
left out, the median) stand beside the estimate, which is made before and after the run, so that both see the same machine.
`base` measures the same of a model of next to nothing: what the estimate takes for interpreter and libraries.
"""

import argparse
import dataclasses
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
from relm.forecast.calibration import StepTime, calibrate
from relm.recipes.plan import Project
from relm.training.architecture import configuration
from relm.training.arithmetic import parameters
from relm.training.resources import Memory, memory

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
    "base": {
        "tokenizer": {"train": "byte_level_bpe", "vocabulary_size": 400},
        "model": {"architecture": "gpt2", "layers": 1, "heads": 2, "hidden_size": 16, "positions": 16},
        "vocabulary": 400,
        "phase": {"objective": "causal", "sequence_length": 16, "global_batch_size": 2},
    },
}


def recipe(name: str, steps: int, threads: int, changes: dict[str, Any]) -> dict[str, Any]:
    """As `recipes/NAME.yaml` has it."""
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
    """The recipe, its dataset, and examples of made-up words."""
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
    phase = {
        key: value for key, value in written["pretrain"]["main"].items() if key in ("objective", "sequence_length", "masked")
    }
    suffix = ".bin" if phase["objective"] == "causal" else ".arrow"
    tokenizer = written["tokenizer"]
    relm(folder, "train-tokenizer", "--kind", tokenizer["train"], "--documents", "a.train.jsonl", "--vocabulary-size",
         str(tokenizer["vocabulary_size"]), "--output", "tokenizer.json")  # fmt: skip
    stored = {key: value for key, value in phase.items() if key != "masked"}
    outputs = [f"a.{split}{suffix}" for split in ("train", "held_out")]
    relm(folder, "pregenerate", "--settings", json.dumps(stored), "--tokenizer", "tokenizer.json", "--workers", "1",
         "--documents", "a.train.jsonl", "a.held_out.jsonl", "--output", *outputs)  # fmt: skip
    relm(folder, "manifest", "--sidecars", *(f"{output}.json" for output in outputs), "--output", "manifest.json")


def relm(folder: Path, *arguments: str) -> str:
    """One step, run to its end; what it printed."""
    done = subprocess.run([sys.executable, "-m", "relm", *arguments], cwd=folder, text=True, capture_output=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


class Trained(NamedTuple):
    """What a run took."""

    peak: int
    """Bytes of resident memory."""
    seconds: list[float]
    """Of each step but the first."""
    processor: float
    """Seconds of processor a step, all threads together, of the same steps."""


def trained(folder: Path, name: str) -> Trained:
    """Train in a process of its own."""
    output = "run/main/model/model.safetensors"
    command = ["pretrain", name, "--phase", "main", "--manifest", "manifest.json", "--tokenizer", "tokenizer.json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "relm", *command, "--output", output], cwd=folder, stdout=subprocess.DEVNULL
    )
    log, peak, used = folder / "run/main/train.jsonl", 0, {}
    while process.poll() is None:
        peak = max(peak, high_water_mark(process.pid))
        if log.exists():
            used.setdefault(log.read_bytes().count(b"\n"), processor_seconds(process.pid))
        time.sleep(0.01)
    if process.returncode:
        raise SystemExit(f"the run ended with {process.returncode}")
    seconds = [json.loads(line)["seconds"] for line in log.read_text().splitlines()]
    first, last = min((step for step in used if step), default=0), max(used, default=0)
    if last == first:
        raise SystemExit(f"{len(seconds)} steps were too quick to be timed while they ran: take more with --steps")
    steps = [after - before for before, after in itertools.pairwise(seconds)]
    return Trained(peak, steps, (used[last] - used[first]) / (last - first))


def processor_seconds(process: int) -> float:
    """Of a process so far, all threads together."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def high_water_mark(process: int) -> int:
    """Most bytes that a process had in memory so far; 0 when it is gone."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return 1024 * int(found[0]) if found else 0


def print_memory(wanted: Memory, run: Trained) -> None:
    """Estimate, measurement and ratio."""
    parts = {field.name: getattr(wanted, field.name) for field in dataclasses.fields(wanted) if field.name != "large"}
    print(", ".join(f"{name} {size / 1e6:,.1f}" for name, size in parts.items()))
    print(", ".join(f"{moment} {size / 1e6:,.1f}" for moment, size in wanted.large.items()))
    peak = wanted.peak
    print(f"memory: estimated {peak / 1e6:,.0f} MB, measured {run.peak / 1e6:,.0f} MB, ratio {peak / run.peak:.3f}")


def print_times(before: Sequence[StepTime], after: Sequence[StepTime], run: Trained) -> None:
    """The same by the clock, and by processor, which a crowded machine disturbs less."""
    measured = statistics.median(run.seconds), run.processor
    for name, first, last, real in zip(("clock", "processor"), before, after, measured, strict=True):
        mean = (first.total + last.total) / 2
        ratios = (
            f"ratio {mean / real:.3f} ({first.total / real:.3f}, {last.total / real:.3f})" if real else "too short for a ratio"
        )
        print(
            f"seconds a step by the {name}: estimated {first.total:.3f} before, {last.total:.3f} after, measured {real:.3f}, "
            f"{ratios}"
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
        chosen = Project(folder).plan(given.model).recipe
        phase = chosen.pretrain["main"]
        config = configuration(chosen, TokenizerFacts("", 400, None, {"pad": 0}))
        clocks = time.perf_counter, time.process_time
        before = [calibrate(config, phase, chosen.run, clock) for clock in clocks]
        run = trained(folder, given.model)
        after = [calibrate(config, phase, chosen.run, clock) for clock in clocks]
    print(f"{given.model}: {parameters(config).total:,} parameters, {phase.steps} steps, {given.threads} threads, {before[0]}")
    print_memory(memory(config, phase, chosen.run), run)
    print_times(before, after, run)


if __name__ == "__main__":
    main()
