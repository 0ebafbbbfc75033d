"""Measure how fast documents become a stream of GPT-2's tokens on disk, compared with Megatron-LM and `datasets.map`.

    python benchmarks/tokenisation.py DOCUMENTS --tokenizer TOKENIZER.json --megatron FOLDER [--workers 2] [--runs 3]
        [--copies 8 --fewer-copies 2]

DOCUMENTS are JSON lines, such as `relm extract` writes of enwik8; TOKENIZER.json is GPT-2's, as `relm import-tokenizer` writes
it (recipes/models/gpt2_tokenizer.yaml). FOLDER is a checkout of https://github.com/NVIDIA/Megatron-LM. Every contender is one
command in a separate process, and the whole of it is timed, start and imports included; next to it stands what the command
reports itself, without its imports. The contenders take turns on the same file and the same cores:

- relm: `relm pregenerate`, by one worker, by all, and twice by one worker at the same time, which shows what the machine gives;
- preprocess_data: Megatron's tools/preprocess_data.py with the fast tokenizer of Hugging Face;
- preprocess_data_fast: its tools/preprocess_data_fast.py, which gives the whole file to gigatoken (RAYON_NUM_THREADS cores);
- datasets.map: `datasets` with the same fast tokenizer, batched, then as many processes; it writes Arrow, not .bin and .idx.

With `--fewer-copies` each contender also runs on a smaller input. The difference of the two runs is the steady state, in which
imports, tokenizers and the first words of a cache have no part. Reported are MB of JSON lines a second, and a second of
processor time, which other programs on the machine disturb less. The documents have a sidecar, as extraction writes it.

Peak memory is of the whole tree of processes, its resident sets added up every 20 ms. Megatron runs unchanged, under
`--megatron-python` with the caller's PYTHONPATH. It asks for Python 3.12 and the package triton; under 3.11 a
`sitecustomize.py` on PYTHONPATH that puts `typing_extensions.override` into `typing` is enough.
"""

import argparse
import importlib.metadata
import json
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from relm.artifact import sha256_of, write_sidecar
from relm.limits import usable_cores

END_OF_TEXT = "<|endoftext|>"
RATES = ("MB/s", "MB/s by its own account", "MB a second of processor time")


class Measured(NamedTuple):
    """One run of one contender."""

    seconds: float
    """The seconds of the whole command."""
    processor_seconds: float
    """User's and system's time of all its processes, which a busy machine disturbs less."""
    said: float | None
    """Seconds by its own account, without imports."""
    megabytes: float
    """Peak resident memory of all its processes together."""


def measured(commands: Sequence[Sequence[str]], environment: dict[str, str]) -> Measured:
    """Run commands at the same time until the last one ends."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryFile("w+") as output:
        running = [
            psutil.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True) for command in commands
        ]
        peak = Peak(running)
        codes = [process.wait() for process in running]
        seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        megabytes = peak.stop()
        output.seek(0)
        text = output.read()
    if any(codes):
        sys.exit(f"{' '.join(commands[0])}\n{text}")
    found = re.findall(r"Elapsed time: ([0-9.]+) seconds|tokens in ([0-9.]+) s", text)
    processor_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(seconds, processor_seconds, max((float(a or b) for a, b in found), default=None), megabytes)


class Peak:
    """Watches the memory of some processes and all their children."""

    def __init__(self, processes: Sequence[psutil.Process]) -> None:
        self.processes = processes
        self.peak = 0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self) -> None:
        while not self.stopped.wait(0.02):
            self.peak = max(self.peak, sum(map(resident, self.processes)))

    def stop(self) -> float:
        """Return the peak in MB."""
        self.stopped.set()
        self.thread.join()
        return self.peak / 1e6


def resident(process: psutil.Process) -> int:
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for member in family:
        try:
            total += member.memory_info().rss
        except psutil.Error:  # it has ended
            continue
    return total


def map_documents(documents: str, tokenizer: str, workers: str, folder: str) -> None:
    """Tokenise by `datasets.map`, as a separate command."""
    from datasets import load_dataset
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_file=tokenizer, eos_token=END_OF_TEXT)
    rows = load_dataset("json", data_files=documents, split="train", cache_dir=folder)
    rows.map(
        lambda batch: {"input_ids": fast(batch["text"], add_special_tokens=False)["input_ids"]},
        batched=True,
        num_proc=int(workers),
        remove_columns=rows.column_names,
    )


def relm(documents: Path, tokenizer: Path, workers: int, output: Path) -> list[str]:
    command = [sys.executable, "-m", "relm", "pregenerate", "--documents", str(documents), "--tokenizer", str(tokenizer)]
    return [*command, "--workers", str(workers), "--output", str(output)]


def megatron(arguments: argparse.Namespace, script: str, documents: Path, folder: Path, *options: str) -> list[str]:
    """Megatron's command; the tokenizer's two files lie in the folder."""
    command = [arguments.megatron_python, str(arguments.megatron / "tools" / script), "--input", str(documents)]
    command += ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(folder), "--append-eod"]
    return [*command, "--output-prefix", str(folder / Path(script).stem), *options]


def commands_of(arguments: argparse.Namespace, documents: Path, folder: Path) -> dict[str, list[list[str]]]:
    """Return contender -> its commands, which run at the same time."""
    ours = [relm(documents, arguments.tokenizer, number, folder / f"relm-{number}.bin") for number in (1, arguments.workers)]
    pair = [relm(documents, arguments.tokenizer, 1, folder / f"pair-{number}.bin") for number in range(arguments.workers)]
    found = {"relm, 1 worker": ours[:1], f"relm, {arguments.workers} workers": ours[1:], "relm, independent": pair}
    mapping = [sys.executable, __file__, "--map", str(documents), str(arguments.tokenizer), str(arguments.workers)]
    found["datasets.map"] = [[*mapping, str(folder / "cache")]]
    if arguments.megatron:
        workers = ("--workers", str(arguments.workers), "--log-interval", "100000")
        found["preprocess_data"] = [megatron(arguments, "preprocess_data.py", documents, folder, *workers)]
        found["preprocess_data_fast"] = [
            megatron(arguments, "preprocess_data_fast.py", documents, folder, "--use-gigatoken"),
        ]
    return {name: commands for name, commands in found.items() if name not in arguments.skip}


def repeated(original: Path, copies: int, folder: Path) -> Path:
    """Return a file with `copies` copies of the documents, each in another order, and its sidecar."""
    documents = folder / f"documents-{copies}.jsonl"
    lines = original.read_bytes().splitlines(keepends=True)
    with open(documents, "wb") as target:
        for number in range(copies):
            random.Random(number).shuffle(lines)
            target.writelines(lines)
    write_sidecar(documents)
    return documents


def prepare_tokenizer(arguments: argparse.Namespace, folder: Path) -> None:
    """Write the tokenizer in Hugging Face's form."""
    shutil.copy(arguments.tokenizer, folder / "tokenizer.json")
    settings = {"tokenizer_class": "GPT2TokenizerFast", **dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def commit_of(folder: Path) -> str:
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown (no git folder in the checkout)"


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def report(arguments: argparse.Namespace, found: dict[str, list[Measured]], size: int) -> None:
    """Print times, memory and ratios."""
    ours = found[f"relm, {arguments.workers} workers"]
    for name, runs in found.items():
        said = [run.said for run in runs if run.said is not None]
        print(
            f"{name:22} {spread([run.seconds for run in runs])} s"
            + (f", by its own account {spread(said)} s" if said else "")
            + f", processor {spread([run.processor_seconds for run in runs])} s"
            + f", peak memory {max(run.megabytes for run in runs):,.0f} MB"
        )
    print(f"ratios to relm with {arguments.workers} workers, of {len(ours)} runs in turns:")
    for name, runs in found.items():
        if not name.startswith("relm"):
            whole = [theirs.seconds / mine.seconds for theirs, mine in zip(runs, ours, strict=True)]
            print(f"  {name}: {spread(whole)} times as long")
            busy = [theirs.processor_seconds / mine.processor_seconds for theirs, mine in zip(runs, ours, strict=True)]
            print(f"    of processor time: {spread(busy)} times as much")
            said = [(t.said, m.said) for t, m in zip(runs, ours, strict=True) if t.said and m.said]
            if said:
                print(f"    by their own accounts, without imports: {spread([a / b for a, b in said])} times as long")
    if independent := found.get("relm, independent"):
        scaling = [pair.seconds / (arguments.workers * mine.seconds) for pair, mine in zip(independent, ours, strict=True)]
        print(f"{arguments.workers} workers give {spread(scaling)} of what as many independent processes give")
    print(f"relm: {size / statistics.median(run.seconds for run in ours) / 1e6:.0f} MB/s of JSON lines")


def report_steady_state(own: str, fewer: dict[str, list[Measured]], more: dict[str, list[Measured]], size: int) -> None:
    """Print the rates at which `size` further bytes are encoded, and how many times that the contender `own` does."""
    print(f"steady state, {size / 1e6:,.0f} MB more of JSON lines:")
    rates = {
        name: [rates_of(less, run, size) for less, run in zip(fewer[name], runs, strict=True)] for name, runs in more.items()
    }
    for name, runs in rates.items():
        if name == "relm, independent":  # it encodes several times as much
            continue
        for number, unit in enumerate(RATES):
            values = [run[number] for run in runs if run[number]]
            ratios = [mine[number] / run[number] for mine, run in zip(rates[own], runs, strict=True) if run[number]]
            if values:
                print(f"  {name:22} {spread(values)} {unit}, relm {spread(ratios)} times that")
        memory = [max(run.megabytes for run in found[name]) for found in (fewer, more)]
        print(f"  {name:22} peak memory {memory[0]:,.0f} MB, then {memory[1]:,.0f} MB")


def rates_of(less: Measured, more: Measured, size: int) -> list[float]:
    """Return MB/s of the whole command, by its own account (0 where it has none), and by processor time."""
    said = more.said - less.said if more.said and less.said else 0
    seconds = (more.seconds - less.seconds, said, more.processor_seconds - less.processor_seconds)
    return [size / second / 1e6 if second > 0 else 0 for second in seconds]


def main() -> None:
    if sys.argv[1:2] == ["--map"]:
        map_documents(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", type=Path, metavar="DOCUMENTS")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--megatron", type=Path)
    parser.add_argument("--megatron-python", default=sys.executable)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--copies", type=int, default=1, help="the input so many times over")
    parser.add_argument("--fewer-copies", type=int, help="also so many times over, to print the steady state")
    parser.add_argument("--skip", nargs="*", default=[], help="contenders to leave out, such as datasets.map")
    arguments = parser.parse_args()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "RAYON_NUM_THREADS": str(arguments.workers)}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare_tokenizer(arguments, folder)
        documents = repeated(arguments.documents, arguments.copies, folder)
        size = documents.stat().st_size
        print(f"{size:,} bytes of JSON lines, {arguments.workers} workers, {len(os.sched_getaffinity(0))} cores")
        versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("tokenizers", "gigatoken", "datasets"))
        print(versions + (f"; Megatron-LM at {commit_of(arguments.megatron)}" if arguments.megatron else ""))
        inputs = [documents]
        if arguments.fewer_copies:
            inputs.insert(0, repeated(arguments.documents, arguments.fewer_copies, folder))
        found: list[dict[str, list[Measured]]] = [{} for _ in inputs]
        for _ in range(arguments.runs):
            for input_file, runs in zip(inputs, found, strict=True):
                for name, commands in commands_of(arguments, input_file, folder).items():
                    shutil.rmtree(folder / "cache", ignore_errors=True)
                    runs.setdefault(name, []).append(measured(commands, environment))
                written = sorted({sha256_of(path) for path in folder.glob("*.bin")})
                print(f"all .bin files of {input_file.name} {'are the same' if len(written) == 1 else 'DIFFER'}")
        report(arguments, found[-1], size)
        if arguments.fewer_copies:
            report_steady_state(f"relm, {arguments.workers} workers", found[0], found[1], size=size - inputs[0].stat().st_size)


if __name__ == "__main__":
    main()
