"""From the dump to examples."""

import json
from pathlib import Path

from relm.errors import RelmError
from relm.recipes.datasets import Dataset, load_dataset
from relm.recipes.evaluations import PublishedTest, load_test
from relm.recipes.identity import digest, documents_identity, model_content, part_of, work_folder
from relm.recipes.objectives import OBJECTIVES, Objective
from relm.recipes.published_models import PICKLED_WEIGHTS, TOKENIZER_FILES, PretrainedModel, load_model
from relm.recipes.recipe import DataChoice
from relm.recipes.section import validate
from relm.steps.contract import (
    EXPECTED,
    WORKERS,
    Arguments,
    Job,
    Step,
    argument,
    expected_sha256,
    path,
    paths,
    positive,
)

TRAINED = ("byte_level_bpe", "wordpiece", "characters")
EXPORTED = ("tfrecord", "tfrecord_remasked", "megatron", "tpu_pretrain")
IMPORTED = ("tfrecord", "megatron", "tpu_pretrain", "pickle")


def download_job(a: Arguments) -> Job:
    from relm.corpus.download import download
    from relm.corpus.own_model import copy_own_file

    specs = [spec for spec in (a.dataset, a.model, a.test) if spec is not None]
    if len(specs) != 1:
        raise RelmError("download: give one of --dataset, --model and --test")
    (spec,) = specs
    named: Dataset | PretrainedModel | PublishedTest
    named = load_dataset(spec) if a.dataset else load_model(spec) if a.model else load_test(spec)
    if isinstance(named, PretrainedModel) and named.folder is not None:
        source = Path(named.folder).expanduser() / a.file
        return Job(lambda: copy_own_file(source, a.sha256, a.output), outputs=[a.output])
    files = dict(named.files)
    if a.file not in files:
        raise RelmError(f"{spec}: has no file {a.file!r}; it has {', '.join(files)}")
    if a.sha256 not in (None, files[a.file].sha256):
        raise RelmError(
            f"{spec}: {a.file} has sha256 {files[a.file].sha256} now, --sha256 is {a.sha256}: it was edited in between; give "
            "the snakemake command again, or leave --sha256 out"
        )
    return Job(lambda: download(a.file, files[a.file], a.output), outputs=[a.output])


def convert_weights_job(a: Arguments) -> Job:
    from relm.corpus.pickled_weights import convert_weights

    model = load_model(a.model)
    if model.configuration is None:
        raise RelmError(f"{a.model}: has no {PICKLED_WEIGHTS} among its files, so there is nothing to convert")
    configuration, content = model.configuration, model_content(a.model.stem, model, work_folder() / "folders")
    if a.key not in (None, digest(part_of(content, model.weights_files))):
        raise RelmError(
            f"{a.model}: its weights have another key now than {a.key}: the file was edited in between; give the snakemake "
            "command again"
        )
    beside = a.output.with_name("config.json")
    return Job(
        lambda: convert_weights(a.file, configuration, a.output),
        inputs=[a.file],
        outputs=[a.output, beside],
        expected_sha256={a.file: content[PICKLED_WEIGHTS]},
    )


def extract_job(a: Arguments) -> Job:
    from relm.corpus.extract import extract

    dataset = load_dataset(a.dataset)
    source = None if dataset.hub is not None else a.source
    if dataset.files and a.source.name not in dataset.files:
        raise RelmError(f"{a.dataset}: has no file {a.source.name!r}; it has {', '.join(dataset.files)}")
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
        sentence = extract(dataset, source, outputs, a.documents, a.workers)
        refuse_another_key()
        return sentence

    return Job(
        run,
        inputs=[source] if source else [],
        outputs=list(outputs.values()),
        expected_sha256={a.source: dataset.files[a.source.name].sha256} if dataset.files else {},
    )


def train_tokenizer_job(a: Arguments) -> Job:
    from relm.examples.tokenizers import train_tokenizer

    options = {"lower_case": a.lower_case, "special_tokens": not a.no_special_tokens}
    return Job(
        lambda: train_tokenizer(a.kind, a.documents, a.vocabulary_size, a.training_bytes, a.output, **options),
        inputs=a.documents,
        outputs=[a.output],
    )


def import_tokenizer_job(a: Arguments) -> Job:
    from relm.examples.tokenizers import import_tokenizer

    files = {file.name: file for file in a.files}
    if absent := [name for name in TOKENIZER_FILES[a.kind] if name not in files]:
        raise RelmError(
            f"import-tokenizer: a {a.kind} is made of {', '.join(TOKENIZER_FILES[a.kind])}; lacking: {', '.join(absent)}"
        )
    return Job(
        lambda: import_tokenizer(a.kind, files, a.output),
        inputs=a.files,
        outputs=[a.output],
        expected_sha256=expected_sha256(a, a.files),
    )


def pregenerate_job(a: Arguments) -> Job:
    from relm.examples.builders import pregenerate

    if len(a.documents) != len(a.output):
        raise RelmError(f"pregenerate: {len(a.documents)} files of --documents need as many of --output, found {len(a.output)}")
    if len(set(a.output)) < len(a.output):
        raise RelmError("pregenerate: --output names a file twice; give each file of documents one of its own")
    objective = objective_of(a.settings)
    for output in a.output:
        if output.suffix != objective.suffix:
            raise RelmError(f"pregenerate: --output {output}: objective {objective.objective} makes a {objective.suffix} file")

    def run() -> str:
        return "; ".join(
            pregenerate(documents, a.tokenizer, output, objective, a.language, a.workers)
            for documents, output in zip(a.documents, a.output, strict=True)
        )

    return Job(run, inputs=[*a.documents, a.tokenizer], outputs=a.output)


def objective_of(settings: str | None) -> Objective:
    """The objective in a command's JSON: the keys of a recipe's phase that decide what is stored."""
    try:
        given = json.loads(settings) if settings else {"objective": "causal"}
    except (ValueError, RecursionError) as error:
        raise RelmError(f"--settings: not valid JSON ({error}); quote it for the shell, as in --settings '{{...}}'") from None
    if not isinstance(given, dict):
        raise RelmError(f"--settings: expected an object, found {settings}")
    name = given.get("objective")
    if not (isinstance(name, str) and name in OBJECTIVES and OBJECTIVES[name].stores_length):
        given = {
            "sequence_length": Objective.LONGEST,
            **given,
        }  # examples are stored whole, and cut to a length as they are read
    return validate(Objective, given, Path("--settings"))


def inspect_job(a: Arguments) -> Job:
    from relm.examples.inspection import inspect

    return Job(lambda: inspect(a.path, a.tokenizer, a.examples), inputs=[a.path])


def export_job(a: Arguments) -> Job:
    from relm.examples.formats.exchange import export_examples

    return Job(
        lambda: export_examples(a.manifest, a.split, a.format, a.output, a.tokenizer, a.sequence_length),
        inputs=[a.manifest, a.tokenizer],
        outputs=[a.output],
    )


def import_job(a: Arguments) -> Job:
    from relm.examples.formats.exchange import import_examples

    return Job(
        lambda: import_examples(a.format, a.files, a.tokenizer, a.output),
        inputs=[*a.files, a.tokenizer],
        outputs=[a.output],
    )


def manifest_job(a: Arguments) -> Job:
    from relm.examples.croissant import write_croissant
    from relm.examples.manifest import write_manifest

    shards: dict[str, list[Path]] = {"train": [], "held_out": []}
    for sidecar in a.sidecars:
        shard = sidecar.with_suffix("")  # FILE.bin.json -> FILE.bin
        split = Path(shard.stem).suffix.removeprefix(".")
        if split not in shards:
            raise RelmError(f"manifest: {sidecar}: expected a name like SHARD.train.bin.json or SHARD.held_out.arrow.json")
        shards[split].append(shard)
    shards = {split: found for split, found in shards.items() if found}
    inputs = [shard for split in shards.values() for shard in split]
    croissant = a.output.with_name("croissant.json")

    def run() -> str:
        sentence = write_manifest(shards, a.output)
        if a.dataset is not None:
            write_croissant(a.output, load_dataset(a.dataset), a.dataset.stem, croissant)
        return sentence

    return Job(run, inputs=inputs, outputs=[a.output, *([croissant] if a.dataset is not None else [])])


STEPS: dict[str, Step] = {
    "download": Step(
        "fetch one file of a dataset or model, from the first source that has the right bytes",
        [
            path("--dataset", "the dataset's file, such as recipes/data/enwik8.yaml", required=False),
            path("--model", "or the model's file, such as recipes/models/gpt2_tokenizer.yaml", required=False),
            path("--test", "or the evaluation's file, such as recipes/evaluations/lambada.yaml", required=False),
            argument("--file", required=True, metavar="NAME", help="which of its files"),
            argument("--sha256", metavar="HASH", help="refuse to make another file than this one"),
            path("--output", "where it goes"),
        ],
        download_job,
        epilog="RELM_MIRROR=FOLDER is looked at first; HF_TOKEN and proxy variables are respected. Run again, it resumes.",
    ),
    "convert-weights": Step(
        "turn weights released as pytorch_model.bin into a model.safetensors, tensors and nothing else",
        [
            path("--model", "the model's file, such as recipes/models/mt5_base_romanian.yaml"),
            path("--file", "its pytorch_model.bin"),
            argument("--key", metavar="KEY", help="refuse to run when the weights' identity is another one"),
            path("--output", "model.safetensors; a config.json goes beside it"),
        ],
        convert_weights_job,
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
        extract_job,
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
        train_tokenizer_job,
    ),
    "import-tokenizer": Step(
        "turn a published tokenizer into one tokenizer.json",
        [
            argument("--kind", required=True, choices=list(TOKENIZER_FILES), help="the format of its files"),
            paths("--files", "its files"),
            EXPECTED,
            path("--output", "tokenizer.json"),
        ],
        import_tokenizer_job,
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
        pregenerate_job,
    ),
    "inspect": Step(
        "show a few examples decoded, stored masks visible, and the statistics",
        [
            argument("path", type=Path, metavar="PATH", help="manifest.json, or a .bin, .arrow, .tfrecord or .jsonl file"),
            path("--tokenizer", "tokenizer.json; default: ids are shown", required=False),
            argument("--examples", type=int, default=3, metavar="N", help="how many; default: 3"),
        ],
        inspect_job,
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
        export_job,
    ),
    "import": Step(
        "read examples that another program wrote",
        [
            argument("--format", required=True, choices=IMPORTED, help="the format"),
            paths("--files", "its files"),
            path("--tokenizer", "the tokenizer.json they were made with"),
            path("--output", "a .bin or .arrow file"),
        ],
        import_job,
    ),
    "manifest": Step(
        "list all shards of examples with their counts and hashes",
        [
            paths("--sidecars", "the sidecars of the shards (.bin.json or .arrow.json), training first"),
            path("--dataset", "the dataset's file: croissant.json then goes beside the manifest", required=False),
            path("--output", "manifest.json"),
        ],
        manifest_job,
    ),
}
