"""Steps from the dump to documents and a tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relm.errors import RelmError
from relm.recipes.datasets import Dataset, load_dataset
from relm.recipes.evaluation.published_tests import PublishedTest, load_test
from relm.recipes.files.own_folders import require_consent, require_own_files, resolve_own_folder
from relm.recipes.identity import (
    REVISIONS,
    digest,
    documents_identity,
    folder_content,
    given,
    model_content,
    part_of,
    work_folder,
)
from relm.recipes.job_documents import (
    choice_of_tokenizer,
    dataset_of_documents,
    require_path_of,
    require_path_of_documents,
    require_revision,
)
from relm.recipes.jobs import document_without_folder
from relm.recipes.project import Project
from relm.recipes.published_models import PICKLED_WEIGHTS, TOKENIZER_FILES, PretrainedModel, load_model
from relm.recipes.recipe import TokenizerChoice
from relm.steps.contract import EXPECTED, WORKERS, Arguments, Job, Step, argument, path, paths, positive, unite_values
from relm.steps.job_spec import JOB, document_of, validate_options

TRAINED = ("byte_level_bpe", "roberta_byte_level_bpe", "wordpiece", "characters")


def download_job(a: Arguments) -> Job:
    from relm.corpus.download.fetch import download
    from relm.corpus.own_model import copy_own_file

    specs = [spec for spec in (a.dataset, a.model, a.test) if spec is not None]
    if len(specs) != 1:
        raise RelmError("download: give one of --dataset, --model and --test")
    (spec,) = specs
    named: Dataset | PretrainedModel | PublishedTest
    named = load_dataset(spec) if a.dataset else load_model(spec) if a.model else load_test(spec)
    if isinstance(named, PretrainedModel) and named.folder is not None:
        require_consent(named.folder, f"{spec}: folder")
        folder = resolve_own_folder(named.folder, f"{spec}: folder")
        source = folder / a.file
        require_own_files([source], folder, f"{spec}: folder")
        return Job(lambda: copy_own_file(source, a.sha256, a.output), outputs=[a.output])
    files = dict(named.files)
    if a.file not in files:
        raise RelmError(f"{spec}: has no file {a.file!r}; it has {', '.join(files)}")
    if a.sha256 not in (None, files[a.file].sha256):
        raise RelmError(
            f"{spec}: {a.file} has sha256 {files[a.file].sha256} now, --sha256 is {a.sha256}: it was edited in between; give "
            "the snakemake command again, or leave --sha256 out"
        )
    return Job(lambda: download(a.file, files[a.file], a.output, str(spec)), outputs=[a.output])


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

    if a.job is None and a.dataset is None:
        raise RelmError("extract: expected --dataset FILE, or --job as the graph passes it, found neither")
    named = None if a.dataset is None else load_dataset(a.dataset)
    pattern = a.pattern or (named.pattern if named else None)
    document = document_of(a, ("dataset", "limit"), lambda: _document_of_file(a, named, pattern))
    language = a.language or (named.language if named else "und")
    dataset = dataset_of_documents(document, a.source, pattern).model_copy(update={"language": language})
    if dataset.hub is not None and a.job is not None and str(a.source) != f"{dataset.hub.name}@{dataset.hub.revision}":
        raise RelmError(f"--source: expected {dataset.hub.name}@{dataset.hub.revision} as in --job, found {a.source}")
    if dataset.files and a.source.is_dir():
        raise RelmError(f"--source: {a.source} is a folder; expected a file: {', '.join(dataset.files)}")
    if dataset.files and a.source.name not in dataset.files:
        raise RelmError(f"{a.dataset or '--job'}: has no file {a.source.name!r}; it has {', '.join(dataset.files)}")
    outputs = {"train": a.train, "held_out": a.held_out}
    source = dataset.files.get(a.source.name)

    def run() -> str:
        refuse_edited_texts(dataset, document)
        if a.job is not None:
            require_path_of_documents(document, dataset, outputs.values(), Project())
        read = None if dataset.hub is not None else a.source
        sentence = extract(dataset, read, outputs, document.get("documents"), a.workers)
        refuse_edited_texts(dataset, document)
        return sentence

    return Job(
        run,
        inputs=[] if dataset.hub is not None else [a.source],
        outputs=list(outputs.values()),
        expected_sha256={a.source: source.sha256} if source is not None and source.is_pinned else {},
    )


def _document_of_file(a: Arguments, dataset: Dataset | None, pattern: str | None) -> dict[str, Any]:
    """Return `document_of_dataset` of the command's file, which the error of a folder names."""
    try:
        return document_of_dataset(dataset, a.source, pattern, a.limit)
    except RelmError as error:
        raise RelmError(f"{a.dataset}: {error}") from None


def document_of_dataset(dataset: Dataset | None, source: Path, pattern: str | None, limit: int | None) -> dict[str, Any]:
    """Return the identity of documents that are read from a source with the options of the dataset's file."""
    assert dataset is not None
    if dataset.folder is not None:
        dataset = dataset.model_copy(update={"folder": str(source), "pattern": pattern})
    return document_without_folder(documents_identity(dataset, limit, work_folder() / "folders"), dataset)


def refuse_edited_texts(dataset: Dataset, document: Mapping[str, Any]) -> None:
    """Raise an error if a folder's files differ from the document; other datasets' files are checked when they are read."""
    if dataset.folder is None:
        return
    found = digest(folder_content(dataset, work_folder() / "folders"))
    if found != document["content"]:
        raise RelmError(
            f"{dataset.folder}: its texts have the digest {found}, this command was planned for {document['content']}: they "
            "were edited in between; give the snakemake command again"
        )


def train_tokenizer_job(a: Arguments) -> Job:
    from relm.examples.tokenization.tokenizer_files import train_tokenizer

    flags = ("kind", "vocabulary_size", "lower_case", "no_special_tokens", "training_bytes")
    document = document_of(a, flags, lambda: document_of_training(a))
    choice = choice_of_tokenizer(document)
    if a.job is not None:
        require_path_of(document, a.output)
    if choice.train is None:
        raise RelmError("--job: expected a tokenizer that is trained, found one that is taken from a model: import-tokenizer")
    return Job(
        lambda: train_tokenizer(
            str(choice.train),
            a.documents,
            choice.vocabulary_size,
            choice.training_bytes,
            a.output,
            lower_case=choice.lower_case,
            special_tokens=choice.special_tokens,
        ),
        inputs=a.documents,
        outputs=[a.output],
    )


def document_of_training(a: Arguments) -> dict[str, Any]:
    """Return the document of a tokenizer whose training the flags describe."""
    options = {"vocabulary_size": a.vocabulary_size, "training_bytes": a.training_bytes, "lower_case": a.lower_case}
    options |= {"train": a.kind or TRAINED[0], "special_tokens": not a.no_special_tokens}
    given_options = {key: value for key, value in options.items() if value is not None}
    if a.vocabulary_size is None and options["train"] != "characters":
        raise RelmError(
            f"train-tokenizer: --vocabulary-size is missing: a {options['train']} tokenizer needs one, such as 32000"
        )
    flags = {"special_tokens: false": "--no-special-tokens", "train: ": "--kind "}
    choice = validate_options(TokenizerChoice, given_options, Path("train-tokenizer"), flags)
    return {"revision": REVISIONS["tokenizer"], **given(choice)}


def import_tokenizer_job(a: Arguments) -> Job:
    from relm.examples.tokenization.tokenizer_files import import_tokenizer

    if a.job is None and a.kind is None:
        raise RelmError("import-tokenizer: expected --kind, or --job as the graph passes it, found neither")
    revision = REVISIONS["tokenizer"]
    document = document_of(
        a, ("kind",), lambda: {"revision": revision, "kind": a.kind, "files": unite_values("--sha256", a.sha256)}
    )
    require_revision(document, "tokenizer")
    kind, expected = document.get("kind"), document.get("files")
    if a.job is not None and (unknown := sorted(document.keys() - {"revision", "kind", "files"})):
        raise RelmError(f"--job: {unknown[0]}: unknown key; an imported tokenizer has revision, kind and files")
    if not isinstance(kind, str) or kind not in TOKENIZER_FILES or not isinstance(expected, dict):
        raise RelmError(
            f"--job: expected a kind of {', '.join(TOKENIZER_FILES)} and the sha256 of its files, found {kind!r:.99}"
        )
    files = {file.name: file for file in a.files}
    if absent := [name for name in TOKENIZER_FILES[kind] if name not in files]:
        raise RelmError(
            f"import-tokenizer: a {kind} is made of {', '.join(TOKENIZER_FILES[kind])}; lacking: {', '.join(absent)}"
        )
    if a.job is not None:
        if absent := [name for name in TOKENIZER_FILES[kind] if not isinstance(expected.get(name), str)]:
            raise RelmError(f"--job: files: expected the sha256 of {absent[0]}, found {expected.get(absent[0])!r:.99}")
        require_path_of(document, a.output)
    if unknown := sorted(expected.keys() - files.keys()):
        raise RelmError(f"import-tokenizer: {unknown[0]} has a sha256 and is none of --files, which are {', '.join(files)}")
    return Job(
        lambda: import_tokenizer(kind, files, a.output),
        inputs=a.files,
        outputs=[a.output],
        expected_sha256={files[name]: sha256 for name, sha256 in expected.items()},
    )


STEPS: dict[str, Step] = {
    "download": Step(
        "fetch one file of a dataset or model, from the first source that has the right bytes",
        [
            path("--dataset", "the dataset's file, such as recipes/data/enwik8.yaml", required=False),
            path("--model", "or the model's file, such as recipes/models/gpt2_tokenizer.yaml", required=False),
            path("--test", "or the evaluation's file, such as recipes/evaluations/lambada.yaml", required=False),
            argument("--file", required=True, metavar="NAME", help="which of its files"),
            argument("--sha256", metavar="HASH", help="refuse a file with another sha256"),
            path("--output", "where it goes"),
        ],
        download_job,
        epilog="RELM_MIRROR=FOLDER is searched first; HF_TOKEN and proxy variables are respected. Run again to resume.",
        group="data",
    ),
    "convert-weights": Step(
        "convert weights released as pytorch_model.bin to a model.safetensors, reading tensors only",
        [
            path("--model", "the model's file, such as recipes/models/mt5_base_romanian.yaml"),
            path("--file", "its pytorch_model.bin"),
            argument("--key", metavar="KEY", help="refuse to run if the weights' identity differs"),
            path("--output", "model.safetensors; a config.json goes beside it"),
        ],
        convert_weights_job,
        group="data",
    ),
    "extract": Step(
        "extract documents (JSON lines) from a source file or a folder, split into training and held out",
        [
            JOB,
            path("--dataset", "the dataset's file, instead of --job", required=False),
            argument("--documents", dest="limit", type=positive, metavar="N", help="with it: read only the first N documents"),
            path("--source", "the downloaded file, or the folder; for a dataset of the hub NAME@REVISION"),
            argument("--pattern", metavar="GLOB", help="the files of the folder that are read; default: the format's"),
            argument("--language", metavar="CODE", help="refuse a dump that states another language; default: the dataset's"),
            path("--train", "where the training documents go"),
            path("--held-out", "where the held-out documents go"),
            WORKERS,
        ],
        extract_job,
        group="data",
    ),
    "train-tokenizer": Step(
        "train a tokenizer on documents",
        [
            JOB,
            argument("--kind", choices=TRAINED, help="instead of --job: kind of tokenizer; default: byte_level_bpe"),
            paths("--documents", "documents, JSON lines"),
            argument("--vocabulary-size", type=int, metavar="N", help="special tokens included; not for characters"),
            argument("--lower-case", action="store_true", help="for wordpiece: remove case and accents"),
            argument("--no-special-tokens", action="store_true", help="for characters: only those of the text"),
            argument("--training-bytes", type=int, metavar="N", help="bytes of text to read; default: 50,000,000"),
            path("--output", "tokenizer.json"),
        ],
        train_tokenizer_job,
        group="data",
    ),
    "import-tokenizer": Step(
        "convert a published tokenizer to one tokenizer.json",
        [
            JOB,
            argument("--kind", choices=list(TOKENIZER_FILES), help="instead of --job: the format of its files"),
            paths("--files", "its files"),
            EXPECTED,
            path("--output", "tokenizer.json"),
        ],
        import_tokenizer_job,
        group="data",
    ),
}
