"""Train llama2.c's own program and relm on the same tokens: the run of stories260K, scaled down to one core.

    python benchmarks/llama2_c_curves.py run --llama2-c FOLDER --text FILE --tokenizer FILE --output RUNS [--steps 2000]
        [--sequence-length 64] [--batch-size 8] [--warmup-steps 100]
    python benchmarks/llama2_c_curves.py table --output RUNS
    python benchmarks/llama2_c_curves.py figures --output RUNS > recipes/reference_runs/stories260k_scaled_llama2_c.yaml

FOLDER is a checkout of karpathy/llama2.c (350e04fe), --text the file of recipes/data/tinyshakespeare_text.yaml or another
plain text, whose last tenth is held out, --tokenizer that of recipes/models/stories260k_tokenizer.yaml. The tokens are
relm's; both programs read them: train.py as its pretokenized shards, the held-out tokens being the first. It runs unchanged,
in float32 and one thread; from outside, its folder of data and its seeds are replaced, and learning rate, gradient norm (before
clipping) and loss are recorded. The recipe is stories260k_scaled. Each model is then scored by relm on all held-out tokens, and
the original's by its own code as well. Finished runs are not repeated.
"""

import argparse
import json
import lzma
import math
import os
import random
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import process_time
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
from nanogpt_curves import recorded_updates

from relm.artifact import read_json, write_json
from relm.corpus.extract import extract
from relm.evaluation.models import load_causal
from relm.evaluation.perplexity import sum_stream_nats
from relm.examples.manifest import read_manifest, write_manifest
from relm.examples.pregenerate import pregenerate_stream
from relm.examples.storage import TokenStream
from relm.examples.tokenization.tokenizer_files import import_tokenizer
from relm.models.llama import Llama
from relm.recipes.jobs import SPLITS
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe
from relm.recipes.section import merge
from relm.training.architecture import configuration
from relm.training.curve_band import student_quantile
from relm.training.loop import pretrain

CHECKOUT = Path(__file__).resolve().parents[1]
PROGRAMS = ("original", "relm")
# train.py sets this seed, and draws the order of its windows with this one.
SEED, ORDER_SEED = 1337, 42
# Matrix of a layer of train.py's model -> its name in `LlamaForCausalLM`, and the heads whose pairs are rotated.
LAYER: Mapping[str, tuple[str, str | None]] = {
    "attention_norm": ("input_layernorm", None),
    "attention.wq": ("self_attn.q_proj", "heads"),
    "attention.wk": ("self_attn.k_proj", "key_value_heads"),
    "attention.wv": ("self_attn.v_proj", None),
    "attention.wo": ("self_attn.o_proj", None),
    "ffn_norm": ("post_attention_layernorm", None),
    "feed_forward.w1": ("mlp.gate_proj", None),
    "feed_forward.w2": ("mlp.down_proj", None),
    "feed_forward.w3": ("mlp.up_proj", None),
}
COLUMNS = ("loss", "learning_rate", "gradient_norm")
# Parts of training whose mean losses are printed.
BLOCKS = 8
FIGURES = """\
# yaml-language-server: $schema=../../envs/reference_runs.schema.json
# llama2.c's own program, stories260K scaled down to one core (recipes/stories260k_scaled.yaml): the mean loss of all held-out
# tokens after 2,000 updates. Made on one thread of a CPU, in float32, with torch {torch}.
program: github.com/karpathy/llama2.c
commit: 350e04fe35433e6d2941dce5a1f53308f87058eb
command: python benchmarks/llama2_c_curves.py figures --output RUNS > recipes/reference_runs/stories260k_scaled_llama2_c.yaml
metric: held_out.nats_per_token
runs:
"""


def scaled_recipe(given: argparse.Namespace, seed: int) -> Recipe:
    """Return the recipe of one run: stories260k_scaled, with other lengths where they are given."""
    shipped = Project(CHECKOUT).plan("stories260k_scaled").recipe.model_dump()
    phase = {
        "sequence_length": given.sequence_length,
        "global_batch_size": given.batch_size,
        "steps": given.steps,
        "schedule": {"warmup_steps": min(given.warmup_steps, given.steps // 2)},
    }
    changes = {"model": {"positions": given.sequence_length}, "pretrain": {"main": phase}, "expect": []}
    run = {"threads": 1, "log_interval": 1, "checkpoint_interval": 10**9}
    return Recipe.model_validate({**merge(shipped, changes), "on": {}, "seed": seed, "seeds": 1, "run": run})


def options(recipe: Recipe, output: Path) -> list[str]:
    """Return the command line of train.py for a recipe, whose number of steps is `max_iters`."""
    phase, model = recipe.pretrain["main"], recipe.model
    given = {
        "out_dir": output,
        "eval_interval": phase.steps,
        "eval_iters": 1,
        "always_save_checkpoint": True,
        "batch_size": phase.global_batch_size,
        "gradient_accumulation_steps": 1,
        "max_seq_len": phase.sequence_length,
        "vocab_source": "custom",
        "vocab_size": 512,
        "dim": model.hidden_size,
        "n_layers": model.layers,
        "n_heads": model.heads,
        "n_kv_heads": model.key_value_heads,
        "multiple_of": model.multiple_of,
        "dropout": model.dropout,
        "learning_rate": phase.optimizer.learning_rate,
        "weight_decay": phase.optimizer.weight_decay,
        "beta1": phase.optimizer.betas[0],
        "beta2": phase.optimizer.betas[1],
        "grad_clip": phase.optimizer.gradient_clipping,
        "warmup_iters": phase.schedule.warmup_steps,
        "max_iters": phase.steps,
        "device": "cpu",
        "dtype": "float32",
        "compile": False,
    }
    return [f"--{key}={value}" for key, value in given.items()]


def make_examples(given: argparse.Namespace, folder: Path) -> None:
    """Make the tokens of both splits, as relm's examples and as shards of llama2.c."""
    folder.mkdir(parents=True, exist_ok=True)
    dataset = Project(CHECKOUT).plan("shakespeare_char").dataset
    source = folder / "text.txt"
    text = given.text.read_bytes()
    source.write_bytes(lzma.decompress(text) if given.text.suffix == ".xz" else text)
    documents = {split: folder / f"{split}.jsonl" for split in SPLITS}
    extract(dataset, source, documents, None, 1)
    import_tokenizer("llama2_c", {"tokenizer.bin": given.tokenizer}, folder / "tokenizer.json")
    shards = {split: [folder / f"text.{split}.bin"] for split in SPLITS}
    for split in SPLITS:
        phase = scaled_recipe(given, SEED).pretrain["main"]
        pregenerate_stream(documents[split], folder / "tokenizer.json", shards[split][0], phase, "en", 1)
    theirs = folder / "tok512"
    theirs.mkdir(exist_ok=True)
    manifest = folder / "manifest.json"
    write_manifest(shards, manifest)
    # train.py validates on the first shard by name, and trains on the others.
    for name, split in (("0_held_out.bin", "held_out"), ("1_train.bin", "train")):
        stream(manifest, split).astype("<u2").tofile(theirs / name)


def stream(manifest: Path, split: str) -> npt.NDArray[np.integer]:
    """Return all tokens of a split."""
    tokens = TokenStream(manifest, read_manifest(manifest).split(split, manifest))
    return np.asarray(tokens.tokens(0, len(tokens)))


def train_original(checkout: Path, examples: Path, output: Path, recipe: Recipe) -> dict[str, Any]:
    """Run train.py in this process, and convert its model; return what its own code says of the held-out tokens."""
    sys.path.insert(0, str(checkout))
    os.chdir(checkout)
    import tinystories

    # Seed 1337 is train.py's own, with its own order of windows; another seed changes both.
    seeded = SimpleNamespace(Random=lambda seed: random.Random(seed + recipe.seed - SEED))
    with (
        recorded_updates(recipe.seed) as updates,
        patch.object(tinystories, "DATA_CACHE_DIR", str(examples)),
        patch.object(tinystories, "random", seeded),
        patch.object(sys, "argv", ["train.py", *options(recipe, output / "out")]),
    ):
        started = process_time()
        model = runpy.run_path("train.py", run_name="__main__")["model"]
        seconds = process_time() - started
    # After its last evaluation train.py makes one update more, with learning rate 0.
    write_updates(output, np.array(updates).T[: recipe.pretrain["main"].steps])
    write_model(
        model.state_dict(), configuration(recipe, read_manifest(examples / "manifest.json").tokenizer), output / "model"
    )
    held_out, length = stream(examples / "manifest.json", "held_out"), recipe.pretrain["main"].sequence_length
    return {"cpu_seconds": seconds, "own_code": own_loss(model.eval(), held_out, length)}


def write_model(weights: Mapping[str, torch.Tensor], config: Any, folder: Path) -> None:
    """Write the weights of train.py's model as a folder of `LlamaForCausalLM`."""
    named = {"model.embed_tokens.weight": weights["tok_embeddings.weight"], "model.norm.weight": weights["norm.weight"]}
    for layer in range(config.layers):
        for theirs, (name, heads) in LAYER.items():
            value = weights[f"layers.{layer}.{theirs}.weight"]
            if heads is not None:  # the two of each rotated pair are side by side there, and half a head apart here
                pairs = value.view(getattr(config, heads), -1, 2, value.shape[1])
                value = pairs.transpose(1, 2).reshape(value.shape)
            named[f"model.layers.{layer}.{name}.weight"] = value
    model = Llama(config)
    model.load_huggingface(named)
    folder.mkdir(exist_ok=True)
    model.save_folder(folder, {})


@torch.no_grad()
def own_loss(model: Any, tokens: npt.NDArray[np.integer], length: int) -> float:
    """Return the mean loss of all held-out tokens but the first by the original's model, in windows that do not overlap."""
    nats = []
    for start in range(0, len(tokens) - 1, length):
        window = torch.from_numpy(tokens[start : start + length + 1].astype(np.int64))[None]
        model(window[:, :-1], window[:, 1:])
        nats.append(float(model.last_loss) * (window.shape[1] - 1))
    return math.fsum(nats) / (len(tokens) - 1)


def train_relm(examples: Path, output: Path, recipe: Recipe) -> dict[str, Any]:
    """Run relm's loop in this process."""
    files = examples / "manifest.json", examples / "tokenizer.json"
    started = process_time()
    pretrain(recipe, "main", *files, None, output / "model", "0" * 12)
    seconds = process_time() - started
    lines = [json.loads(line) for line in (output / "train.jsonl").read_text().splitlines()]
    write_updates(output, np.array([[line[column] for column in COLUMNS] for line in lines]))
    return {"cpu_seconds": seconds}


def write_updates(output: Path, table: npt.NDArray[np.float64]) -> None:
    """Write the loss, learning rate and gradient norm of every update."""
    np.savetxt(output / "updates.tsv", table, fmt="%.9g", delimiter="\t", header="\t".join(COLUMNS), comments="")


def held_out_loss(model: Path, manifest: Path, length: int) -> float:
    """Return the mean loss of all held-out tokens but the first, by relm."""
    loaded = load_causal(model, read_manifest(manifest).tokenizer.vocabulary_size)
    tokens = TokenStream(manifest, read_manifest(manifest).split("held_out", manifest))
    return sum_stream_nats(loaded, tokens, length, batch_tokens=4096) / (len(tokens) - 1)


def train_once(given: argparse.Namespace, program: str, seed: int) -> None:
    """Train one model in this process, score it, and write RUNS/PROGRAM-SEED/run.json last."""
    torch.set_num_threads(1)
    recipe, output = scaled_recipe(given, seed), given.output / f"{program}-{seed}"
    output.mkdir(parents=True, exist_ok=True)
    examples = given.output / "examples"
    if program == "original":
        found = train_original(given.llama2_c, examples, output, recipe)
    else:
        found = train_relm(examples, output, recipe)
    loss = held_out_loss(output / "model", examples / "manifest.json", given.sequence_length)
    write_json(output / "run.json", {"steps": given.steps, "held_out_loss": loss, **found})


def run_all(given: argparse.Namespace) -> None:
    """Make the missing tokens and runs, each in a separate process."""
    if not (given.output / "examples" / "tok512" / "1_train.bin").exists():
        make_examples(given, given.output / "examples")
    for seed in given.seeds:
        for program in given.programs:
            if not (given.output / f"{program}-{seed}" / "run.json").exists():
                words = ["one", "--output", given.output, "--programs", program, "--seeds", seed]
                for option in ("steps", "sequence_length", "batch_size", "warmup_steps"):
                    words += ["--" + option.replace("_", "-"), getattr(given, option)]
                command = [sys.executable, __file__, *words, *(["--llama2-c", given.llama2_c] if given.llama2_c else [])]
                subprocess.run(list(map(str, command)), env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)


def read_runs(output: Path, program: str) -> tuple[list[dict[str, Any]], npt.NDArray[np.float64]]:
    """Return the facts of a program's runs, and their updates, (runs, steps, 3)."""
    folders = sorted(path.parent for path in output.glob(f"{program}-*/run.json"))
    tables = [np.loadtxt(folder / "updates.tsv", delimiter="\t", skiprows=1) for folder in folders]
    return [{"seed": folder.name.rpartition("-")[2], **read_json(folder / "run.json")} for folder in folders], np.array(tables)


def format_mean(values: Sequence[float]) -> str:
    """Return the mean, and every value where there are several.

    >>> format_mean([1.0, 2.0])
    '1.500 (1.000, 2.000)'
    """
    each = f" ({', '.join(f'{value:.3f}' for value in values)})" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{each}"


def print_table(output: Path) -> None:
    """Print the losses of both programs in each part of training, and on the held-out tokens."""
    (theirs, their_updates), (ours, our_updates) = (read_runs(output, program) for program in PROGRAMS)
    steps = their_updates.shape[1]
    rates = np.abs(their_updates[:, :, 1] - our_updates[:1, :, 1]).max()
    print(f"{steps:,} updates; largest difference of learning rates {rates:.1e}\n")
    print("| updates | llama2.c | relm | difference |\n|---|---|---|---|")
    for block in np.array_split(np.arange(steps), min(BLOCKS, steps)):
        means = [updates[:, block, 0].mean(axis=1) for updates in (their_updates, our_updates)]
        print(f"| {block[0] + 1:,} to {block[-1] + 1:,} | {describe(*means)}")
    scored = [[run["held_out_loss"] for run in runs] for runs in (theirs, ours)]
    print(f"| held out | {describe(*scored)}\n")
    print(f"seeds, in brackets in this order: {', '.join(run['seed'] for run in theirs)}")
    if min(map(len, scored)) > 1:
        low, high = interval(*scored)
        print(f"95 % interval of the held-out difference: {low:+.3f} to {high:+.3f}")
    for run in theirs:
        print(
            f"seed {run['seed']}: llama2.c's own code gives a held-out loss {run['own_code'] - run['held_out_loss']:+.1e} away"
        )
    for program, runs in zip(PROGRAMS, (theirs, ours), strict=True):
        seconds = ", ".join(f"{run['cpu_seconds']:.0f}" for run in runs)
        print(f"{program}: {seconds} s of one core")


def print_figures(output: Path) -> None:
    """Print the held-out loss of each run of the original's program, as reference runs of a recipe."""
    print(FIGURES.format(torch=torch.__version__.split("+")[0]), end="")
    for path in sorted(output.glob("original-*/run.json"), key=lambda path: int(path.parent.name.rpartition("-")[2])):
        print(f"  - {{seed: {path.parent.name.rpartition('-')[2]}, value: {read_json(path)['held_out_loss']:.5f}}}")


def interval(theirs: Sequence[float], ours: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the difference of means, by Student's t with a common variance."""
    freedom = len(theirs) + len(ours) - 2
    squares = sum((len(values) - 1) * np.var(values, ddof=1) for values in (theirs, ours))
    error = math.sqrt(squares / freedom * (1 / len(theirs) + 1 / len(ours)))
    half, difference = student_quantile(0.05, freedom) * error, float(np.mean(ours) - np.mean(theirs))
    return difference - half, difference + half


def describe(theirs: Sequence[float], ours: Sequence[float]) -> str:
    """Return the cells of both programs, and of the difference of their means."""
    return f"{format_mean(theirs)} | {format_mean(ours)} | {np.mean(ours) - np.mean(theirs):+.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "one", "table", "figures"])
    parser.add_argument("--llama2-c", type=lambda path: Path(path).resolve(), metavar="FOLDER", help="only for `original`")
    parser.add_argument("--text", type=Path, metavar="FILE", help="may be packed by xz")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE")
    parser.add_argument("--output", type=lambda path: Path(path).resolve(), required=True, metavar="RUNS")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[SEED, 1])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--sequence-length", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--warmup-steps", type=int, default=100)
    given = parser.parse_args()
    if given.what == "run":
        run_all(given)
    elif given.what == "one":
        train_once(given, given.programs[0], given.seeds[0])
    elif given.what == "figures":
        print_figures(given.output)
    else:
        print_table(given.output)


if __name__ == "__main__":
    main()
