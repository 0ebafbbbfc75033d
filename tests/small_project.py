"""A small project made of the checkout's own rules, the commands a person gives in it, and ways to kill them."""

import bz2
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from relm.artifact import sha256_of
from snakemake_server import start_server

FRAMES = "--logger-relm-frames"
"""The option by which Snakemake shows its own output."""
CHECKOUT = Path(__file__).resolve().parent.parent
FINE_TUNED = ("squad11", "squad11_graphcore", "glue_rte_roberta")
"""Evaluations of shipped recipes by fine-tuning, whose files are not among the real data."""


class Commands:
    """A small project made of the checkout's own rules, and the commands that a person gives in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "RELM_MIRROR": str(folder / "mirror"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "XDG_CACHE_HOME": str(folder / ".cache"),
        }
        self.environment.pop("RELM_WORK", None)

    def command(self, *targets: str) -> list[str]:
        """The bare command, with one core so that tests may run at the same time.

        Snakemake compares small inputs by content; here only those under 20 kB are small, so that the sample's shards are as
        big to it as real ones are.
        """
        return ["snakemake", *targets, "--cores", "1", "--nocolor", "--max-checksum-file-size", "20000"]

    def snakemake(self, *targets: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run Snakemake to its end, if possible in a forked process; its two streams together in `stdout`."""
        command, whole, server = self.command(*targets), {**self.environment, **environment}, start_server()
        if not server.is_ready_for(command, whole):
            return self.run_command(*targets, **environment)
        return server.run(command, cwd=self.folder, env=whole, timeout=900)

    def run_command(self, *targets: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the command itself, as a person does, to its end; its two streams together in `stdout`."""
        return subprocess.run(
            self.command(*targets),
            cwd=self.folder,
            env={**self.environment, **environment},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=900,
        )

    def start(self, *targets: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start Snakemake in a new session, its streams in `snakemake.out`."""
        with open(self.folder / "snakemake.out", "ab") as out:
            return subprocess.Popen(
                self.command(*targets),
                cwd=self.folder,
                env={**self.environment, **environment},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def relm(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run one step; the two streams apart."""
        return subprocess.run(
            [sys.executable, "-m", "relm", *arguments],
            cwd=self.folder,
            env={**self.environment, **environment},
            text=True,
            capture_output=True,
            timeout=900,
        )

    def jobs(self, *targets: str) -> dict[str, int]:
        """Rule -> number of jobs that a dry-run would run; empty when there is nothing to be done."""
        done = self.snakemake(*targets, "-n", "--quiet", "rules", FRAMES)
        assert done.returncode == 0, done.stdout
        lines = done.stdout.splitlines()
        start = next((number for number, line in enumerate(lines) if line.startswith("-----")), len(lines))
        rows = [line.split() for line in lines[start + 1 :]]
        return {row[0]: int(row[1]) for row in rows[: [*(r[:1] for r in rows), ["total"]].index(["total"])] if len(row) == 2}


def kill_session(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL to everything that a started command started, and to itself."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


TINY_DATASET = """
title: Two dozen pages of the English Wikipedia
licence: CC-BY-SA-3.0
language: en
format: mediawiki_xml
held_out_one_in: 4
files:
  sample.xml:
    sha256: '{sha256}'
    size: {size}
    sources: [{{url: "http://127.0.0.1:9/sample.xml"}}]
"""
TINY_RECIPE = """
title: As small as can be
data: {dataset: sample}
tokenizer: {train: byte_level_bpe, vocabulary_size: 400}
model: {architecture: gpt2, layers: 1, heads: 2, hidden_size: 32, positions: 32, dropout: 0.1}
pretrain:
  main:
    objective: causal
    sequence_length: 32
    global_batch_size: 4
    steps: 40
    optimizer: {learning_rate: 1e-3, gradient_clipping: 1.0}
    schedule: {name: cosine, warmup_steps: 5}
evaluate: [held_out, samples]
run: {threads: 1, checkpoint_interval: 10, micro_batch_size: 2, log_interval: 5}
"""
TINY_BERT_RECIPE = """
title: A BERT as small as can be
data: {dataset: sample}
tokenizer: {train: wordpiece, vocabulary_size: 400}
model: {architecture: bert, layers: 1, heads: 2, hidden_size: 32, positions: 32}
pretrain:
  main:
    objective: masked
    masked: {packing: sentence_pairs}
    sequence_length: 32
    global_batch_size: 4
    steps: 40
    optimizer: {name: lamb, learning_rate: 1e-3}
    schedule: {name: linear, warmup_steps: 5}
evaluate: [masked_lm]
run: {threads: 1, checkpoint_interval: 10, micro_batch_size: 2, log_interval: 5}
"""


def write_sample_dump(path: Path) -> None:
    """The committed pages as a plain dump of over 5 MB: a talk page, which is skipped, makes it as large as downloads are."""
    xml = bz2.decompress((CHECKOUT / "tests" / "data" / "enwiki-sample.xml.bz2").read_bytes()).decode()
    talk = (
        "<page><title>Talk:Size</title><ns>1</ns><id>1</id><revision><id>1</id><text>"
        + "padding " * 650_000
        + "</text></revision></page>"
    )
    path.parent.mkdir(parents=True)
    path.write_text(xml.replace("</mediawiki>", f"{talk}\n</mediawiki>"))


def shipped_project(folder: Path, without: Iterable[str] = ()) -> Commands:
    """A project with the recipes that are shipped, and nothing downloaded.

    Args:
        without: evaluations that are left out of the recipes, such as those whose files are not among the real data.
    """
    for name in ("Snakefile", "src", "profiles", "containers", "recipes"):
        (folder / name).symlink_to(CHECKOUT / name)
    if names := set(without):
        (folder / "recipes").unlink()
        shutil.copytree(CHECKOUT / "recipes", folder / "recipes")
        for path in (folder / "recipes").glob("*.yaml"):
            # YAML 1.1 reads the key `on` as a truth value.
            recipe = {"on" if key is True else key: value for key, value in yaml.safe_load(path.read_text()).items()}
            if names & set(recipe.get("evaluate", ())):
                recipe["evaluate"] = [name for name in recipe["evaluate"] if name not in names]
            if "expect" in recipe:
                recipe["expect"] = [row for row in recipe["expect"] if row["metric"].split(".")[0] not in names]
            path.write_text(yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True))
    return Commands(folder)


def make_project(folder: Path) -> Commands:
    """A project whose one recipe, `tiny`, runs on the committed sample in seconds; its only source is the mirror."""
    for name in ("Snakefile", "src", "profiles", "containers"):
        (folder / name).symlink_to(CHECKOUT / name)
    dump = folder / "mirror" / "sample.xml"
    write_sample_dump(dump)
    (folder / "recipes" / "data").mkdir(parents=True)
    (folder / "recipes" / "models").mkdir()
    dataset = TINY_DATASET.format(sha256=sha256_of(dump), size=dump.stat().st_size)
    (folder / "recipes" / "data" / "sample.yaml").write_text(dataset)
    (folder / "recipes" / "tiny.yaml").write_text(TINY_RECIPE)
    return Commands(folder)


def add_machines(project: Commands, machines: Mapping[str, str], sequences: int) -> Commands:
    """Add machines to a project, and change the batch of its recipe, which is then another run on the same examples."""
    recipes = project.folder / "recipes"
    (recipes / "machines").mkdir()
    for name, text in machines.items():
        (recipes / "machines" / f"{name}.yaml").write_text(text)
    recipe = recipes / "tiny.yaml"
    recipe.write_text(recipe.read_text().replace("global_batch_size: 4", f"global_batch_size: {sequences}"))
    return project
