"""The steps and their arguments: a table, in the order of the data's way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relm import jobs
from relm.catalogue import TOKENIZER_FILES
from relm.jobs import Arguments, Job


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


def positive(text: str) -> int:
    """A whole number from 1 on.

    Raises:
        ValueError: it is none.
    """
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


RECIPE = argument("recipe", metavar="NAME", help="a recipe in recipes/, or smoke/NAME for its small twin")
TRAINED = ("byte_level_bpe", "wordpiece", "characters")
EXPORTED = ("tfrecord", "tfrecord_remasked", "megatron", "tpu_pretrain")
IMPORTED = ("tfrecord", "megatron", "tpu_pretrain", "pickle")
WORKERS = argument("--workers", type=positive, metavar="N", help="processes; default: every core this process may use")


FINGERPRINT = argument("--fingerprint", metavar="F", help="refuse to run when the recipe's fingerprint is another one")

STEPS: dict[str, Step] = {
    "download": Step(
        "fetch one file of a dataset or model, from the first source that has the right bytes",
        [
            path("--dataset", "the dataset's file, such as recipes/data/enwik8.yaml", required=False),
            path("--model", "or the model's file, such as recipes/models/gpt2_tokenizer.yaml", required=False),
            argument("--file", required=True, metavar="NAME", help="which of its files"),
            argument("--sha256", metavar="HASH", help="refuse to make another file than this one"),
            path("--output", "where it goes"),
        ],
        jobs.download_job,
        epilog="RELM_MIRROR=FOLDER is looked at first; HF_TOKEN and proxy variables are respected. Run again, it resumes.",
    ),
    "extract": Step(
        "turn a source file, or a folder of text, into documents (JSON lines), training and held out apart",
        [
            path("--dataset", "the dataset's file"),
            path("--source", "the downloaded file, or the folder; of a dataset of the hub only its name"),
            argument("--documents", type=positive, metavar="N", help="read only the first N documents"),
            argument("--key", metavar="KEY", help="refuse to run when the dataset's identity is another one"),
            path("--train", "where the training documents go"),
            path("--held-out", "where the held-out documents go"),
            WORKERS,
        ],
        jobs.extract_job,
    ),
    "train-tokenizer": Step(
        "train a tokenizer on documents",
        [
            argument("--kind", default="byte_level_bpe", choices=TRAINED, help="default: byte_level_bpe"),
            paths("--documents", "documents, JSON lines"),
            argument("--vocabulary-size", type=int, metavar="N", help="special tokens included; not of characters"),
            argument("--lower-case", action="store_true", help="of wordpiece: fold case and accents"),
            argument("--no-special-tokens", action="store_true", help="of characters: the text's own and no others"),
            argument("--training-bytes", type=int, default=50_000_000, metavar="N", help="how much text to read"),
            path("--output", "tokenizer.json"),
        ],
        jobs.train_tokenizer_job,
    ),
    "import-tokenizer": Step(
        "turn a published tokenizer into one tokenizer.json",
        [
            argument("--kind", required=True, choices=list(TOKENIZER_FILES), help="the format of its files"),
            paths("--files", "its files"),
            path("--output", "tokenizer.json"),
        ],
        jobs.import_tokenizer_job,
    ),
    "pregenerate": Step(
        "turn documents into training examples: a stream of tokens, or a table of sequences",
        [
            argument(
                "--settings",
                metavar="JSON",
                help='objective, sequence_length and options as in a recipe\'s phase, such as {"objective": "masked", '
                '"sequence_length": 128, "masked": {"packing": "sentence_pairs"}}; default: a stream for causal',
            ),
            argument("--language", default="en", metavar="CODE", help="of the text, for the sentence splitter; default: en"),
            path("--tokenizer", "tokenizer.json"),
            paths("--documents", "documents, JSON lines"),
            paths("--output", "a .bin (an .idx goes beside it) or .arrow file for each file of documents"),
            WORKERS,
        ],
        jobs.pregenerate_job,
    ),
    "inspect": Step(
        "show a few examples decoded, stored masks visible, and the statistics",
        [
            argument("path", type=Path, metavar="PATH", help="manifest.json, or a .bin, .arrow, .tfrecord or .jsonl file"),
            path("--tokenizer", "tokenizer.json; default: ids are shown", required=False),
            argument("--examples", type=int, default=3, metavar="N", help="how many; default: 3"),
        ],
        jobs.inspect_job,
        records=False,
    ),
    "export": Step(
        "write examples in another program's format",
        [
            path("--manifest", "the examples' manifest"),
            argument("--split", default="train", metavar="NAME", help="train (default) or held_out"),
            argument("--format", required=True, choices=EXPORTED, help="the format"),
            argument("--sequence-length", type=int, metavar="N", help="of a stream of tokens as tfrecord"),
            path("--tokenizer", "tokenizer.json"),
            path("--output", "the file to write; megatron and tfrecord write an index beside it"),
        ],
        jobs.export_job,
    ),
    "import": Step(
        "read examples that another program wrote",
        [
            argument("--format", required=True, choices=IMPORTED, help="the format"),
            paths("--files", "its files"),
            path("--tokenizer", "the tokenizer.json they were made with"),
            path("--output", "a .bin or .arrow file"),
        ],
        jobs.import_job,
    ),
    "manifest": Step(
        "list all shards of examples with their counts and hashes",
        [
            paths("--sidecars", "the sidecars of the shards (.bin.json or .arrow.json), training first"),
            path("--dataset", "the dataset's file: croissant.json then goes beside the manifest", required=False),
            path("--output", "manifest.json"),
        ],
        jobs.manifest_job,
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
            path("--optimizer-from", "last checkpoint of the phase before, whose optimizer is kept", required=False),
            path("--output", "RUN/PHASE/model/model.safetensors; checkpoints and train.jsonl lie beside model/"),
        ],
        jobs.pretrain_job,
        epilog="TERM or INT: saves a checkpoint and exits with 75. Where the recipe has run.processes: N, it is started as "
        "`torchrun --standalone --nproc-per-node N -m -- relm pretrain ...`, which exits with 1 then.",
    ),
    "rehearse": Step(
        "take a few training steps of a recipe at full size and say how fast they are and what they need; nothing is kept",
        [
            RECIPE,
            argument("--phase", metavar="PHASE", help="which phase; default: the first"),
            argument("--steps", type=positive, metavar="N", help="how many, those of the warm-up included; default: 10"),
            argument("--compile-only", action="store_true", help="stop once everything is compiled and fits into memory"),
            path("--profile", "also trace a few more steps: a trace.json for chrome://tracing", required=False),
            path("--manifest", "of real examples; default: they are generated", required=False),
            path("--tokenizer", "tokenizer.json; default: the manifest's, the recipe's, or what is expected", required=False),
        ],
        jobs.rehearse_job,
        records=False,
        epilog="Needs no download and no disk: generated examples have the shapes of real ones.",
    ),
    "reproduce": Step(
        "train a finished run again from one checkpoint to the next, and compare: bit for bit, elsewhere within a band",
        [
            argument("folder", type=Path, metavar="FOLDER", help="results/NAME, or work/runs/NAME/FINGERPRINT"),
            argument("--segment", type=int, metavar="K", help="from 0; left out, the segments are listed"),
            argument("--phase", metavar="PHASE", help="which phase, where there are several"),
            path("--checkpoints", "where the checkpoints lie; default: in the run's folder", required=False),
            argument("--device", choices=("cpu", "cuda"), help="default: the one it was trained on"),
            argument("--threads", type=positive, metavar="N", help="default: as it was trained"),
            argument("--micro-batch-size", type=positive, metavar="N", help="default: as it was trained"),
        ],
        jobs.reproduce_job,
        records=False,
        epilog="Exits with 1 where the segment is not reproduced. A run of N processes gives the same bits with as many: "
        "`torchrun --standalone --nproc-per-node N -m -- relm reproduce ...`.",
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
        jobs.evaluate_job,
    ),
    "random-windows": Step(
        "the loss on windows that begin at random tokens, held out and in training, as nanoGPT estimates it",
        [
            path("--model", "MODEL/model.safetensors"),
            path("--manifest", "the examples' manifest"),
            argument("--context", type=int, required=True, metavar="TOKENS", help="window length"),
            argument("--batch-size", type=positive, required=True, metavar="N", help="windows of a batch"),
            argument("--batches", type=positive, default=20, metavar="N", help="of each split; default: 20"),
            argument("--seed", type=int, default=0, metavar="N", help="of the windows' beginnings"),
            path("--output", "random_windows.json"),
        ],
        jobs.random_windows_job,
    ),
    "samples": Step(
        "let the model write a few texts",
        [
            path("--model", "MODEL/model.safetensors"),
            argument("--prompt", nargs="*", metavar="TEXT", help="beginnings; default: a few that suit an encyclopedia"),
            argument("--seed", type=int, default=0, metavar="N", help="of the sampling"),
            path("--output", "samples.json"),
        ],
        jobs.samples_job,
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
        jobs.verify_job,
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
        jobs.report_job,
    ),
    "publish": Step(
        "link the finished files into results/NAME, complete or not at all",
        [RECIPE, FINGERPRINT, path("--output", "default: results/NAME", required=False)],
        jobs.publish_job,
        records=False,
    ),
    "list": Step("list the recipes", [], jobs.list_job, records=False),
    "status": Step("what of a recipe is done, running and left", [RECIPE], jobs.status_job, records=False),
    "estimate": Step(
        "what a recipe will take: operations, memory, disk, time and money, before there are data",
        [
            RECIPE,
            argument("--phase", metavar="PHASE", help="one phase; default: all of them"),
            argument("--price-per-hour", type=float, metavar="X", help="of one device, of a TPU one chip, in any currency"),
            argument("--no-calibration", action="store_true", help="measure nothing: leave out the time on this machine"),
        ],
        jobs.estimate_job,
        records=False,
        epilog="Where run.device is cpu, some steps of a model of few layers are timed for some seconds a phase.",
    ),
    "doctor": Step("what this machine can run, and why not the rest", [], jobs.doctor_job, records=False),
    "schema": Step(
        "write the JSON Schemas of recipes, datasets and models, for editors",
        [path("--output", "folder, such as envs")],
        jobs.schema_job,
        records=False,
    ),
}
