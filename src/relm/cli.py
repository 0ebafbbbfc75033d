"""Every step as a command: `relm STEP ...` or `python -m relm STEP ...`.

A step reads files, writes files whole or not at all, prints one line that says what it did, and leaves a record of how beside
its output. A user's mistake ends in one clear message and a non-zero exit.
"""

import argparse
import datetime
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relm.artifact import checked_sidecar, sidecar_of
from relm.catalogue import load_dataset, load_model
from relm.errors import RelmError
from relm.identity import digest, documents_identity, work_folder
from relm.plan import Plan, Project
from relm.recipe import DataChoice

Arguments = argparse.Namespace


@dataclass(frozen=True)
class Job:
    """One step, ready to run: what it reads, what it writes, and the function that does it and says so in a sentence."""

    run: Callable[[], str]
    inputs: Sequence[Path] = ()
    outputs: Sequence[Path] = ()


@dataclass(frozen=True)
class Step:
    """A sub-command: its words of help, its arguments, and how it becomes a job."""

    help: str
    arguments: Sequence[tuple[tuple[str, ...], dict[str, Any]]]
    job: Callable[[Arguments], Job]
    records: bool = True
    epilog: str = field(default="")


def argument(*names: str, **options: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """One argument of a step, as `ArgumentParser.add_argument` takes it."""
    return names, options


def path(name: str, words: str, **options: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """A required argument that names one file or folder."""
    return argument(name, type=Path, required=options.pop("required", True), metavar="PATH", help=words, **options)


def paths(name: str, words: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """A required argument that names several files."""
    return argument(name, type=Path, required=True, nargs="+", metavar="PATH", help=words)


RECIPE = argument("recipe", metavar="NAME", help="a recipe in recipes/, or smoke/NAME for its small twin")
WORKERS = argument("--workers", type=int, metavar="N", help="processes; default: every core this process may use")


def plan_of(arguments: Arguments) -> Plan:
    """The plan of the recipe that a command names, refused when it is no longer the one that Snakemake planned with."""
    plan = Project().plan(arguments.recipe)
    wanted = getattr(arguments, "fingerprint", None)
    if wanted and plan.fingerprint != wanted:
        raise RelmError(
            f"recipe {arguments.recipe} has fingerprint {plan.fingerprint}, this command was planned for {wanted}: "
            "it was edited in between; give the snakemake command again"
        )
    return plan


# --- data --------------------------------------------------------------------------------------------------------------------


def _download(a: Arguments) -> Job:
    from relm.corpus.download import download

    if (a.dataset is None) == (a.model is None):
        raise RelmError("download: give either --dataset or --model")
    spec = a.dataset or a.model
    files = dict(load_dataset(spec).files if a.dataset else load_model(spec).files)
    if a.file not in files:
        raise RelmError(f"{spec}: has no file {a.file!r}; it has {', '.join(files)}")
    return Job(lambda: download(a.file, files[a.file], a.output), outputs=[a.output])


def _extract(a: Arguments) -> Job:
    from relm.corpus.extract import extract

    dataset = load_dataset(a.dataset)
    outputs = {"train": a.train, "held_out": a.held_out}

    def refuse_another_key() -> None:
        choice = DataChoice(dataset=a.dataset.stem, documents=a.documents)
        found = digest(documents_identity(choice, dataset, work_folder() / "folders"))
        if a.key not in (None, found):
            raise RelmError(
                f"{a.dataset}: the documents have key {found} now, this command was planned for {a.key}: the dataset or its "
                "texts were edited in between; give the snakemake command again"
            )

    def run() -> str:
        refuse_another_key()
        sentence = extract(dataset, a.source, outputs, a.documents, a.workers)
        refuse_another_key()
        return sentence

    return Job(run, inputs=[a.source], outputs=list(outputs.values()))


def _train_tokenizer(a: Arguments) -> Job:
    from relm.examples.tokenizers import train_tokenizer

    return Job(
        lambda: train_tokenizer(a.documents, a.vocabulary_size, a.training_bytes, a.output),
        inputs=a.documents,
        outputs=[a.output],
    )


def _import_tokenizer(a: Arguments) -> Job:
    from relm.examples.tokenizers import import_tokenizer

    files = {file.name: file for file in a.files}
    return Job(lambda: import_tokenizer(a.kind, files, a.output), inputs=a.files, outputs=[a.output])


def _pregenerate(a: Arguments) -> Job:
    from relm.examples.pregenerate import pregenerate

    if len(a.documents) != len(a.output):
        raise RelmError(f"pregenerate: {len(a.documents)} files of --documents need as many of --output, found {len(a.output)}")

    def run() -> str:
        return "; ".join(
            pregenerate(documents, a.tokenizer, output, a.workers)
            for documents, output in zip(a.documents, a.output, strict=True)
        )

    return Job(run, inputs=[*a.documents, a.tokenizer], outputs=a.output)


def _manifest(a: Arguments) -> Job:
    from relm.examples.manifest import write_manifest

    shards: dict[str, list[Path]] = {"train": [], "held_out": []}
    for sidecar in a.sidecars:
        shard = sidecar.with_suffix("")  # FILE.bin.json -> FILE.bin
        split = Path(shard.stem).suffix.removeprefix(".")
        if split not in shards:
            raise RelmError(f"manifest: {sidecar}: expected a name like SHARD.train.bin.json or SHARD.held_out.bin.json")
        shards[split].append(shard)
    inputs = [shard for split in shards.values() for shard in split]
    return Job(lambda: write_manifest(shards, a.output), inputs=inputs, outputs=[a.output])


# --- training and evaluation -------------------------------------------------------------------------------------------------


def _pretrain(a: Arguments) -> Job:
    from relm.training.loop import pretrain

    plan = plan_of(a)
    if a.phase not in plan.phases:
        raise RelmError(f"recipe {a.recipe} has no phase {a.phase!r}; it has {', '.join(plan.phases)}")

    def run() -> str:
        return pretrain(plan.recipe, a.phase, a.manifest, a.tokenizer, a.init_from, a.output.parent, plan.fingerprint)

    start = [a.init_from / "model.safetensors"] if a.init_from else []
    return Job(run, inputs=[a.manifest, a.tokenizer, *start], outputs=[a.output])


def _evaluate(a: Arguments) -> Job:
    from relm.evaluation.perplexity import evaluate_held_out

    return Job(
        lambda: evaluate_held_out(a.model.parent, a.manifest, a.output, context=a.context, batch_size=a.batch_size),
        inputs=[a.model, a.manifest],
        outputs=[a.output],
    )


def _samples(a: Arguments) -> Job:
    from relm.evaluation.samples import write_samples

    return Job(
        lambda: write_samples(a.model.parent, a.model.parent / "tokenizer.json", a.output, prompts=a.prompt, seed=a.seed),
        inputs=[a.model],
        outputs=[a.output],
    )


# --- reporting ---------------------------------------------------------------------------------------------------------------


def _by_task(files: Sequence[Path]) -> dict[str, Path]:
    return {file.stem: file for file in files if not file.name.endswith(".record.json")}


def _verify(a: Arguments) -> Job:
    from relm.reporting.verify import verify

    plan = plan_of(a)
    return Job(
        lambda: verify(plan.recipe, plan.fingerprint, _by_task(a.evaluations), a.model, a.output),
        inputs=[a.model, *a.evaluations],
        outputs=[a.output],
    )


def _report(a: Arguments) -> Job:
    from relm.reporting.report import write_report

    plan = plan_of(a)
    return Job(
        lambda: write_report(plan, a.verify, _by_task(a.evaluations), a.output.parent),
        inputs=[a.verify, *a.evaluations],
        outputs=[a.output],
    )


def _publish(a: Arguments) -> Job:
    from relm.reporting.publish import publish, published_files

    plan = plan_of(a)
    return Job(lambda: publish(published_files(plan), a.output or plan.results))


# --- looking around ----------------------------------------------------------------------------------------------------------


def _list(a: Arguments) -> Job:
    from relm.launch.status import describe_recipes

    return Job(lambda: describe_recipes(Project()))


def _status(a: Arguments) -> Job:
    from relm.launch.status import describe_progress

    return Job(lambda: describe_progress(plan_of(a)))


def _doctor(a: Arguments) -> Job:
    from relm.launch.doctor import describe_machine

    return Job(describe_machine)


def _schema(a: Arguments) -> Job:
    from relm.recipe_schema import write_schemas

    return Job(lambda: write_schemas(a.output))


FINGERPRINT = argument("--fingerprint", metavar="F", help="refuse to run when the recipe's fingerprint is another one")

STEPS: dict[str, Step] = {
    "download": Step(
        "fetch one file of a dataset or model, from the first source that has the right bytes",
        [
            path("--dataset", "the dataset's file, such as recipes/data/enwik8.yaml", required=False),
            path("--model", "or the model's file, such as recipes/models/gpt2_tokenizer.yaml", required=False),
            argument("--file", required=True, metavar="NAME", help="which of its files"),
            path("--output", "where it goes"),
        ],
        _download,
        epilog="RELM_MIRROR=FOLDER is looked at first; HF_TOKEN and proxy variables are respected. Run again, it resumes.",
    ),
    "extract": Step(
        "turn a source file, or a folder of text, into documents (JSON lines), training and held out apart",
        [
            path("--dataset", "the dataset's file"),
            path("--source", "the downloaded file, or the folder"),
            argument("--documents", type=int, metavar="N", help="read only the first N documents"),
            argument("--key", metavar="KEY", help="refuse to run when the dataset's identity is another one"),
            path("--train", "where the training documents go"),
            path("--held-out", "where the held-out documents go"),
            WORKERS,
        ],
        _extract,
    ),
    "train-tokenizer": Step(
        "train a byte-level BPE on documents",
        [
            paths("--documents", "documents, JSON lines"),
            argument("--vocabulary-size", type=int, required=True, metavar="N", help="special tokens included"),
            argument("--training-bytes", type=int, default=50_000_000, metavar="N", help="how much text to read"),
            path("--output", "tokenizer.json"),
        ],
        _train_tokenizer,
    ),
    "import-tokenizer": Step(
        "turn a published tokenizer into one tokenizer.json",
        [
            argument("--kind", required=True, choices=["gpt2_bpe", "tokenizers_json"], help="the format of its files"),
            paths("--files", "its files"),
            path("--output", "tokenizer.json"),
        ],
        _import_tokenizer,
    ),
    "pregenerate": Step(
        "encode documents into training examples",
        [
            path("--tokenizer", "tokenizer.json"),
            paths("--documents", "documents, JSON lines"),
            paths("--output", "a .bin file for each file of documents; an .idx goes beside it"),
            WORKERS,
        ],
        _pregenerate,
    ),
    "manifest": Step(
        "list all shards of examples with their counts and hashes",
        [paths("--sidecars", "the .bin.json files, training shards first"), path("--output", "manifest.json")],
        _manifest,
    ),
    "pretrain": Step(
        "train one phase of a recipe; stopped at any point, the same command goes on to the same bytes",
        [
            RECIPE,
            argument("--phase", required=True, metavar="PHASE", help="which phase"),
            FINGERPRINT,
            path("--manifest", "the examples' manifest"),
            path("--tokenizer", "tokenizer.json"),
            path("--init-from", "folder of starting weights", required=False),
            path("--output", "RUN/PHASE/model/model.safetensors; checkpoints and train.jsonl lie beside model/"),
        ],
        _pretrain,
        epilog="TERM or INT: saves a checkpoint and exits with 75.",
    ),
    "evaluate": Step(
        "perplexity by token, word and byte on the held-out documents, beside unigram and bigram models",
        [
            path("--model", "MODEL/model.safetensors"),
            path("--manifest", "the examples' manifest"),
            argument("--context", type=int, required=True, metavar="TOKENS", help="window length"),
            argument(
                "--batch-size", type=int, default=16, metavar="N", help="windows at once; figures change by rounding only"
            ),
            path("--output", "held_out.json"),
        ],
        _evaluate,
    ),
    "samples": Step(
        "let the model write a few texts",
        [
            path("--model", "MODEL/model.safetensors"),
            argument("--prompt", nargs="*", metavar="TEXT", help="beginnings; default: a few that suit an encyclopedia"),
            argument("--seed", type=int, default=0, metavar="N", help="of the sampling"),
            path("--output", "samples.json"),
        ],
        _samples,
    ),
    "verify": Step(
        "compare the figures with the published ones and say what can be said",
        [
            RECIPE,
            FINGERPRINT,
            path("--model", "MODEL/model.safetensors"),
            argument("--evaluations", type=Path, nargs="*", default=[], metavar="PATH", help="eval/TASK.json files"),
            path("--output", "verify.json"),
        ],
        _verify,
    ),
    "report": Step(
        "write the report page, the model card and the provenance",
        [
            RECIPE,
            FINGERPRINT,
            path("--verify", "verify.json"),
            argument("--evaluations", type=Path, nargs="*", default=[], metavar="PATH", help="eval/TASK.json files"),
            path("--output", "report.html; the other files go beside it"),
        ],
        _report,
    ),
    "publish": Step(
        "link the finished files into results/NAME, complete or not at all",
        [RECIPE, FINGERPRINT, path("--output", "default: results/NAME", required=False)],
        _publish,
        records=False,
    ),
    "list": Step("list the recipes", [], _list, records=False),
    "status": Step("what of a recipe is done, running and left", [RECIPE], _status, records=False),
    "doctor": Step("what this machine can run, and why not the rest", [], _doctor, records=False),
    "schema": Step(
        "write the JSON Schemas of recipes, datasets and models, for editors",
        [path("--output", "folder, such as envs")],
        _schema,
        records=False,
    ),
}


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="relm",
        description="Reproducible language-model pretraining, step by step. `snakemake results/NAME` runs them all in order.",
        epilog="`relm STEP --help` explains a step; `relm list` shows the recipes.",
    )
    commands = top.add_subparsers(dest="step", metavar="STEP", required=True)
    for name, step in STEPS.items():
        command = commands.add_parser(
            name, help=step.help, description=f"{step.help[0].upper()}{step.help[1:]}.", epilog=step.epilog
        )
        for names, options in step.arguments:
            command.add_argument(*names, **options)
        command.add_argument("--log", type=Path, metavar="PATH", help="also write the last line here")
    return top


def run_step(name: str, step: Step, arguments: Arguments, argv: Sequence[str]) -> str:
    """Run one step with a record of it, and return its sentence."""
    job = step.job(arguments)
    if absent := [str(path) for path in job.inputs if not path.exists()]:
        raise RelmError(f"no such file: {', '.join(absent)}; run the step that makes it, or correct the path")
    for given in job.inputs:  # a file with a sidecar is what that says, or nothing is made of it
        if sidecar_of(given).exists():
            checked_sidecar(given)
    if not step.records:
        return job.run()
    from relm.reporting.provenance import record

    for folder in {output.parent for output in job.outputs}:
        folder.mkdir(parents=True, exist_ok=True)
    with record(name, job.inputs, job.outputs, ["relm", *argv]) as facts:
        facts["summary"] = job.run()
    return str(facts["summary"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the process's exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    arguments = parser().parse_args(argv)
    logging.basicConfig(format=f"relm {arguments.step}: %(message)s")
    logging.getLogger("relm").setLevel(logging.INFO)
    step = STEPS[arguments.step]
    status, stream = 0, sys.stdout
    try:
        message = run_step(arguments.step, step, arguments, argv)
        if step.records or arguments.step == "publish":
            message = f"{arguments.step}: {message}"
    except RelmError as error:
        words = str(error).removeprefix(f"{arguments.step}: ")
        status, stream, message = error.exit_code, sys.stderr, f"relm {arguments.step}: {words}"
    except KeyboardInterrupt:
        status, stream, message = 130, sys.stderr, f"relm {arguments.step}: interrupted; nothing half-written is left"
    except (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        words = f"{error.filename}: {error.strerror}; correct the path or its permissions"
        status, stream, message = 1, sys.stderr, f"relm {arguments.step}: {words}"
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    print(message, file=stream, flush=True)
    return status if arguments.log is None else max(status, write_log(arguments.log, message))


def write_log(log: Path, message: str) -> int:
    """Append a step's last line to its log, with the time; 1 if that cannot be written."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{now} {message}\n")
    except OSError as error:
        print(f"relm: --log {log}: cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0
