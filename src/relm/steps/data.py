"""Steps from the dump to documents and a tokenizer."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relm.errors import RelmError
from relm.recipes.datasets import Dataset, load_dataset
from relm.recipes.evaluation.published_tests import ITEM_FORMATS, PublishedTest, load_test
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
)
from relm.recipes.jobs import document_without_folder
from relm.recipes.project import Project
from relm.recipes.published_models import PICKLED_WEIGHTS, TOKENIZER_FILES, PretrainedModel, load_model
from relm.recipes.recipe import TokenizerChoice
from relm.recipes.section import validate
from relm.steps.contract import (
    EXPECTED,
    WORKERS,
    Arguments,
    Job,
    argument,
    expected_sha256,
    given_keys,
    given_path,
    path,
    paths,
    positive,
    section_arguments,
    step,
)
from relm.steps.job_spec import JOB, document_of


@step(
    "fetch one file of a dataset or model, from the first source that has the right bytes",
    path("--dataset", "the dataset's file, such as recipes/data/enwik8.yaml", required=False),
    path("--model", "or the model's file, such as recipes/models/gpt2_tokenizer.yaml", required=False),
    path("--test", "or the evaluation's file, such as recipes/evaluations/lambada.yaml", required=False),
    argument("--file", required=True, metavar="NAME", help="which of its files"),
    argument("--sha256", metavar="HASH", help="which the file must have"),
    path("--output", "where it goes"),
    epilog="RELM_MIRROR=FOLDER is searched first; HF_TOKEN and proxy variables are respected. Run again to resume.",
)
def download(a: Arguments) -> Job:
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
            f"{spec}: {a.file} has sha256 {files[a.file].sha256}, --sha256 is {a.sha256}: the file changed; rerun "
            "snakemake, or remove --sha256"
        )
    return Job(lambda: download(a.file, files[a.file], a.output, str(spec)), outputs=[a.output])


@step(
    "convert weights released as pytorch_model.bin to a model.safetensors, reading tensors only",
    path("--model", "the model's file, such as recipes/models/mt5_base_romanian.yaml"),
    path("--file", "its pytorch_model.bin"),
    argument("--key", metavar="KEY", help="identity that the weights must have"),
    path("--output", "model.safetensors; a config.json goes next to it"),
)
def convert_weights(a: Arguments) -> Job:
    from relm.corpus.pickled_weights import convert_weights

    model = load_model(a.model)
    configuration = model.configuration
    if configuration is None:
        raise RelmError(f"{a.model}: has no {PICKLED_WEIGHTS} to convert; name a model that has")
    content = model_content(a.model.stem, model, work_folder() / "folders")
    if a.key not in (None, digest(part_of(content, model.weights_files))):
        raise RelmError(f"{a.model}: the key of its weights is no longer {a.key}: the file changed; rerun snakemake")
    return Job(
        lambda: convert_weights(a.file, configuration, a.output),
        inputs=[a.file],
        outputs=[a.output, a.output.with_name("config.json")],
        expected_sha256={a.file: content[PICKLED_WEIGHTS]},
    )


@step(
    "extract documents (JSON lines) from a source file or a folder, split into training and held out",
    JOB,
    path("--dataset", "the dataset's file, instead of --job", required=False),
    argument("--documents", dest="limit", type=positive, metavar="N", help="with it: read only the first N documents"),
    path("--source", "the downloaded file, or the folder; for a dataset of the hub NAME@REVISION"),
    argument("--pattern", metavar="GLOB", help="the files of the folder that are read; default: the format's"),
    argument("--language", metavar="CODE", help="language that a dump must state; default: the dataset's"),
    path("--train", "where the training documents go"),
    path("--held-out", "where the held-out documents go"),
    WORKERS,
)
def extract(a: Arguments) -> Job:
    from relm.corpus.extract import extract

    pattern, language = a.pattern, a.language or "und"
    if a.job is None:
        if a.dataset is None:
            raise RelmError("extract: expected --dataset FILE, or --job as the graph passes it, found neither")
        named = load_dataset(a.dataset)
        pattern, language = a.pattern or named.pattern, a.language or named.language
    document = document_of(a, ("dataset", "limit"), lambda: document_of_dataset(named, a.source, pattern, a.limit))
    dataset = dataset_of_documents(document, a.source, pattern).model_copy(update={"language": language})
    if dataset.files and a.source.name not in dataset.files:
        raise RelmError(f"--source {a.source}: {a.dataset or '--job'} has no such file; it has {', '.join(dataset.files)}")
    outputs = {"train": a.train, "held_out": a.held_out}
    read = None if dataset.hub is not None else a.source
    source = dataset.files.get(a.source.name)

    def run() -> str:
        refuse_edited_texts(dataset, document)
        if a.job is not None:
            require_path_of_documents(document, dataset, outputs.values(), Project())
        sentence = extract(dataset, read, outputs, document.get("documents"), a.workers)
        refuse_edited_texts(dataset, document)
        return sentence

    return Job(
        run,
        inputs=[read] if read is not None else [],
        outputs=list(outputs.values()),
        expected_sha256={a.source: source.sha256} if source is not None and source.is_pinned else {},
    )


def document_of_dataset(dataset: Dataset, source: Path, pattern: str | None, limit: int | None) -> dict[str, Any]:
    """Return the identity of documents that are read from a source with the options of the dataset's file."""
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
            f"{dataset.folder}: its texts have the digest {found}, this command was planned for {document['content']}: the "
            "texts changed; rerun snakemake"
        )


@step(
    "train a tokenizer on documents",
    JOB,
    paths("--documents", "documents, JSON lines"),
    *section_arguments(TokenizerChoice, "from_model"),
    path("--output", "tokenizer.json"),
)
def train_tokenizer(a: Arguments) -> Job:
    from relm.examples.tokenization.tokenizer_files import train_tokenizer

    choice = choice_of_tokenizer(document := document_of(a, TokenizerChoice.model_fields, lambda: document_of_training(a)))
    if a.job is not None:
        require_path_of(document, a.output)
    if choice.train is None:
        raise RelmError("--job: describes an imported tokenizer; pass it to import-tokenizer")
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
    """Return the document of a tokenizer whose training the options describe."""
    choice = validate(TokenizerChoice, {"train": "byte_level_bpe"} | given_keys(TokenizerChoice, a), Path("train-tokenizer"))
    return {"revision": REVISIONS["tokenizer"], **given(choice)}


@step(
    "convert a published tokenizer to one tokenizer.json",
    argument("--kind", required=True, choices=list(TOKENIZER_FILES), help="the format of its files"),
    paths("--files", "its files"),
    EXPECTED,
    path("--output", "tokenizer.json"),
)
def import_tokenizer(a: Arguments) -> Job:
    from relm.examples.tokenization.tokenizer_files import import_tokenizer

    files = {file.name: file for file in a.files}
    if absent := [name for name in TOKENIZER_FILES[a.kind] if name not in files]:
        raise RelmError(
            f"import-tokenizer: --kind {a.kind} reads {', '.join(TOKENIZER_FILES[a.kind])}; add {', '.join(absent)} to --files"
        )
    expected = expected_sha256(a, a.files)
    hashes = {file.name: sha256 for file, sha256 in expected.items()}
    require_path_of({"revision": REVISIONS["tokenizer"], "kind": a.kind, "files": hashes}, a.output)
    return Job(lambda: import_tokenizer(a.kind, files, a.output), inputs=a.files, outputs=[a.output], expected_sha256=expected)


class NamedTest(argparse.Action):
    """One test: its name, format and file, and the key of a passage."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Arguments, values: Any, option: str | None = None) -> None:
        """Add a test, or end the command with a message."""
        if len(values) not in (3, 4) or values[1] not in ITEM_FORMATS:
            parser.error(f"{option}: expected NAME FORMAT FILE [KEY], with a FORMAT of {', '.join(ITEM_FORMATS)}")
        namespace.test = [*namespace.test, values]


@step(
    "list documents to be removed: duplicates, and those of which passages of a test are cut out",
    paths("--documents", "files of documents, JSON lines; of duplicates the first one stays, so give held-out files first"),
    argument(
        "--duplicates",
        action="store_true",
        help="list all but the first of documents whose texts are equal but for case and white space",
    ),
    argument(
        "--test",
        nargs="+",
        action=NamedTest,
        default=[],
        metavar=("NAME FORMAT FILE", "KEY"),
        help="cut the passages of a test out of documents, by the rules of Megatron-LM's filter_ngrams.py (may be "
        f"repeated); FORMAT: {', '.join(ITEM_FORMATS)}; KEY: of a passage of lambada, default: text",
    ),
    WORKERS,
    path("--output", "the list, JSON lines: file, line, reason, and of which document or item"),
)
def list_removed(a: Arguments) -> Job:
    from relm.evaluation.removed_documents import ComparedTest, list_removed

    tests = [ComparedTest(name, form, given_path(file), *key) for name, form, file, *key in a.test]
    return Job(
        lambda: list_removed(a.documents, a.output, a.duplicates, tests, a.workers),
        inputs=[*a.documents, *(test.file for test in tests)],
        outputs=[a.output],
    )


@step(
    "write the documents of a file without those that a list of list-removed names",
    path("--documents", "a file of documents, JSON lines"),
    path("--removed", "the list"),
    WORKERS,
    path("--output", "the file of documents that stay"),
)
def remove_listed(a: Arguments) -> Job:
    from relm.examples.kept_documents import remove_listed

    return Job(
        lambda: remove_listed(a.documents, a.removed, a.output, a.workers),
        inputs=[a.documents, a.removed],
        outputs=[a.output],
    )
