"""Measure how long training stands still at a checkpoint: `python benchmarks/saves.py [--layers N] [--device tpu]`.

The same run is trained in turns, each time in a fresh process: once it writes each checkpoint before the next step, and once a
thread writes it while training continues. Both must list the same checkpoints, byte for byte. With `--device tpu` under
`PJRT_DEVICE=CPU` the checkpoints are fetched from PyTorch/XLA's CPU client.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from resume import make_examples, recipe_text

WAYS = {"waits": 0.0, "continues": 0.8}
"""Way -> the share of the available memory that copies may take."""


def train(folder: Path, way: str) -> None:
    """Train in a separate folder, and print the figures as JSON; for a fresh process."""
    from relm.devices import host_copies
    from relm.limits import peak_resident_memory
    from relm.recipes.recipe import Recipe
    from relm.training import loop, saves

    still: list[float] = []
    whole = saves.Saves.save

    def timed(self: saves.Saves, listed: bool, background: bool) -> Path:
        started = time.perf_counter()
        saved = whole(self, listed, background)
        if background:
            still.append(time.perf_counter() - started)
        return saved

    saves.Saves.save = timed  # type: ignore[method-assign]
    host_copies.SHARE = WAYS[way]
    recipe = Recipe.model_validate_json((folder / "recipe.json").read_text())
    inputs = folder / "manifest.json", folder / "tokenizer.json"
    with tempfile.TemporaryDirectory(dir=folder) as run:
        started = time.perf_counter()
        loop.pretrain(recipe, "main", *inputs, None, Path(run) / "main" / "model", "0123456789ab")
        seconds = time.perf_counter() - started
        listed = (Path(run) / "main" / "checkpoints.jsonl").read_text()
        size = sum(path.stat().st_size for path in next(Path(run).glob("main/checkpoints/*")).glob("*.safetensors"))
    figures = {"still": still, "seconds": seconds, "memory": peak_resident_memory(), "listed": listed, "size": size}
    print(json.dumps(figures))


def measured(folder: Path, way: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, "--train", str(folder), way], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    if sys.argv[1:2] == ["--train"]:
        train(Path(sys.argv[2]), sys.argv[3])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--device", choices=["cpu", "tpu", "cuda"], default="cpu")
    parser.add_argument("--interval", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    recipe = json.loads(recipe_text(options.layers, options.hidden))
    recipe["pretrain"]["main"]["steps"] = options.saves * options.interval
    recipe["run"] |= {"device": options.device, "checkpoint_interval": options.interval, "log_interval": options.interval}
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        folder = Path(place)
        make_examples(folder, 10_000_000)
        (folder / "recipe.json").write_text(json.dumps(recipe))
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for _ in range(options.repeats):
            for way, figures in found.items():
                figures.append(measured(folder, way))
    show(found, options.saves)


def show(found: dict[str, list[dict[str, Any]]], saves: int) -> None:
    """Print the medians of both ways, and the medians of the ratios of neighbouring turns."""
    assert len({figures["listed"] for each in found.values() for figures in each}) == 1, "other bytes"
    turns = len(found["waits"])
    print(f"checkpoints of {found['waits'][0]['size']:,} bytes, {turns} turns of {saves} saves, the same bytes in both ways")
    for way, each in found.items():
        still = [1000 * seconds for figures in each for seconds in figures["still"]]
        print(
            f"training {way:9}: stands still {statistics.median(still):8.1f} ms at a save (at most {max(still):.1f}), "
            f"{statistics.median(figures['seconds'] for figures in each):6.2f} s in all, "
            f"{statistics.median(figures['memory'] for figures in each) / 2**20:,.0f} MiB at most"
        )
    pairs = list(zip(found["continues"], found["waits"], strict=True))
    for name in ("still", "seconds", "memory"):
        ratios = [
            statistics.median(one[name]) / statistics.median(other[name]) if name == "still" else one[name] / other[name]
            for one, other in pairs
        ]
        print(f"{name}: continues / waits {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
