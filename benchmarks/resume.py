"""Measure the time to resume a run, at step 10 and step 1,000,000: `python benchmarks/resume.py [--tokens N] [--layers N]`.

A run of 2,000,000 steps on random tokens is trained to step 10. Another folder gets its state saved as that of step 1,000,000,
with as long a train.jsonl and checkpoints.jsonl as it would have by then. Both are gone on with in turns, each time in a fresh
process, from its start to the moment when the first batch is in hand and the step could begin.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAR, OF = 1_000_000, 2_000_000
PARTS = ("imports", "opening examples", "loading the model", "its first batch", "everything else")


def recipe_text(layers: int, hidden: int) -> str:
    return json.dumps(
        {
            "title": "a run that goes on",
            "data": {"dataset": "random"},
            "tokenizer": {"train": "byte_level_bpe", "vocabulary_size": 257},
            "model": {"architecture": "gpt2", "layers": layers, "heads": 8, "hidden_size": hidden, "positions": 128},
            "pretrain": {
                "main": {
                    "objective": "causal",
                    "sequence_length": 128,
                    "global_batch_size": 1,
                    "steps": OF,
                    "optimizer": {"learning_rate": 1e-4},
                }
            },
            "run": {"threads": 1, "checkpoint_interval": 10},
        }
    )


def make_examples(folder: Path, tokens: int) -> None:
    """Write a stream of random tokens in documents of 1,000, and its tokenizer."""
    import numpy as np
    from tokenizers import Tokenizer, models, pre_tokenizers

    from relm.artifact import sha256_of, write_sidecar
    from relm.examples.manifest import write_manifest
    from relm.examples.storage import index_of, shard_writer

    tokenizer = Tokenizer(models.BPE({token: n for n, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    shard, generator = folder / "shard.train.bin", np.random.default_rng(0)
    with shard_writer(shard, 257) as writer:
        for _ in range(tokens // 10**7):
            writer.append(generator.integers(0, 256, 10**7, dtype=np.uint16), np.full(10**4, 1000))
    write_sidecar(
        shard,
        objective="causal",
        dtype=writer.dtype,
        tokens=writer.tokens,
        documents=writer.documents,
        words=writer.documents,
        bytes=writer.tokens,
        tokenizer_sha256=sha256_of(folder / "tokenizer.json"),
        vocabulary_size=257,
        end_of_text_id=256,
        idx_sha256=sha256_of(index_of(shard)),
    )
    write_manifest({"train": [shard]}, folder / "manifest.json")


def train(folder: Path, run: Path, until: int | None) -> str:
    """Return the run's own command, without what surrounds it."""
    from relm.recipes.recipe import Recipe
    from relm.training.loop import pretrain

    recipe = Recipe.model_validate_json((folder / "recipe.json").read_text())
    manifest, tokenizer = folder / "manifest.json", folder / "tokenizer.json"
    return pretrain(recipe, "main", manifest, tokenizer, None, run / "model", "0123456789ab", until=until)


def save_far_on(near: Path, far: Path) -> None:
    """Write the state of `near` as that of step 1,000,000, with the logs of such a run."""
    from relm.artifact import read_json
    from relm.training.checkpoints import IDENTITY, load_checkpoint, save_checkpoint

    for name in ("shards.json", "order.json"):
        shutil.copy(near / name, far / name)
    state = read_json(near / "checkpoints" / "step-00000010" / "state.json")
    checkpoint = load_checkpoint(near / "checkpoints", {key: state[key] for key in IDENTITY})
    assert checkpoint is not None
    for name in ("train", "checkpoints"):
        line = json.loads((near / f"{name}.jsonl").read_text().splitlines()[-1])
        with open(far / f"{name}.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps({**line, "step": step}) + "\n" for step in range(10, FAR + 101, 10))
    save_checkpoint(far / "checkpoints", {**state, "step": FAR}, checkpoint.model, checkpoint.optimizer, keep=1)


def timed(call: Callable[..., Any], part: str, spent: dict[str, float]) -> Callable[..., Any]:
    def called(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return call(*arguments, **options)
        finally:
            spent[part] = spent.get(part, 0.0) + time.perf_counter() - started

    return called


def go_on(folder: Path, run: Path, started: float) -> None:
    """Print the seconds of each part since `started`, by the clock, up to the first step; for a fresh process."""
    spent = dict.fromkeys(PARTS, 0.0)
    import torch._dynamo  # noqa: F401

    # What the loop imports when it needs it, so that it is counted here.
    from relm.training import loop, updates

    spent["imports"] = time.time() - started

    def first_step(*arguments: object) -> None:
        spent["its first batch"] += time.perf_counter() - began
        spent["everything else"] = time.time() - started - sum(spent.values())
        print(json.dumps(spent))
        sys.stdout.flush()
        os._exit(0)

    loop.open_reader = timed(loop.open_reader, "opening examples", spent)  # type: ignore[assignment]
    loop.begin = timed(loop.begin, "loading the model", spent)  # type: ignore[assignment]
    updates.take_step = first_step  # type: ignore[assignment]
    whole = loop.train

    def train_from(*arguments: Any) -> str:
        nonlocal began
        began = time.perf_counter()
        return whole(*arguments)

    began = 0.0
    loop.train = train_from
    train(folder, run, None)


def measured(folder: Path, run: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--go-on", str(folder), str(run), repr(time.time())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def show(name: str, seconds: list[dict[str, float]]) -> float:
    """Print the medians of each part, and return the median of all but imports."""
    rest = statistics.median(sum(one.values()) - one["imports"] - one["loading the model"] for one in seconds)
    parts = "  ".join(f"{part} {statistics.median(one[part] for one in seconds):.3f}" for part in PARTS)
    whole = statistics.median(sum(one.values()) for one in seconds)
    print(f"{name}: {whole:.2f} s from the process's start: {parts}; without imports and the model {rest:.3f} s", flush=True)
    return statistics.median(sum(one.values()) - one["imports"] for one in seconds)


def main() -> None:
    if sys.argv[1:2] == ["--go-on"]:
        go_on(Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=500_000_000, help="of two bytes each")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        folder, near, far = Path(place), Path(place) / "near", Path(place) / "far"
        make_examples(folder, options.tokens)
        (folder / "recipe.json").write_text(recipe_text(options.layers, options.hidden))
        far.mkdir()
        print(train(folder, near, until=10))
        save_far_on(near, far)
        size = sum(path.stat().st_size for path in (far / "checkpoints").rglob("*.safetensors"))
        print(f"{2 * options.tokens:,} bytes of tokens, a checkpoint of {size:,} bytes, {options.repeats} starts each in turns")
        times: dict[Path, list[dict[str, float]]] = {near: [], far: []}
        for _ in range(options.repeats):
            for run, seconds in times.items():
                seconds.append(measured(folder, run))
        first, last = show("step 10", times[near]), show(f"step {FAR:,}", times[far])
        print(f"step {FAR:,} takes {last / first:.2f} times as long as step 10, imports aside")
        os.utime(folder / "shard.train.bin")
        show(f"step {FAR:,}, the shard touched, so hashed again", [measured(folder, far)])


if __name__ == "__main__":
    main()
