"""The jobs that prepare data: downloads, documents, a tokenizer and examples."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from relm.artifact import sidecar_of
from relm.plan.jobs import RecipeJob, Words, flags, sha256_flag
from relm.recipes import identity
from relm.recipes.datasets import FORMATS
from relm.recipes.files.own_folders import resolve_own_folder
from relm.recipes.jobs import SPLITS, DocumentsJob, ExamplesJob, KeptDocumentsJob, TokenizerJob
from relm.recipes.plan import Plan
from relm.recipes.published_models import PICKLED_WEIGHTS, PretrainedModel
from relm.recipes.run_folder import WEIGHTS

# Kind of YAML file with files to download -> its folder in recipes/ and that of the files in downloads/.
FOLDERS = {"dataset": "data", "model": "models", "test": "evaluations"}


def download(kind: str, name: str, sha256: str, output: Path) -> RecipeJob:
    """Return the job that fetches a file of the `dataset`, `model` or `test` with a name, or copies it from a local folder."""
    spec = f"recipes/{FOLDERS[kind]}/{name}.yaml"
    words = ["download", f"--{kind}", spec, "--file", output.name, "--sha256", sha256, "--output", output]
    return RecipeJob(words, {"file": output})


def convert_weights(name: str, pickled: Path, weights: Path) -> RecipeJob:
    """Return the job that converts weights that were released only as a pickle."""
    key = weights.parent.name.removeprefix(f"{name}-")
    words = ["convert-weights", "--model", f"recipes/models/{name}.yaml", "--key", key, "--file", pickled, "--output", weights]
    return RecipeJob(words, {"weights": weights, "configuration": weights.with_name("config.json")}, {"file": [pickled]})


def extract(job: DocumentsJob, shard: str) -> RecipeJob:
    """Return the job that makes the documents of a shard."""
    outputs = {split: job.documents(shard, split) for split in SPLITS}
    dataset, source = job.dataset, job.source(shard)
    read: Words = source
    if dataset.hub is not None:
        read = [f"{dataset.hub.name}@{dataset.hub.revision}"]
    elif dataset.folder is not None:
        read = [str(resolve_own_folder(dataset.folder, "folder"))]
    pattern = [] if dataset.pattern is None else ["--pattern", dataset.pattern]
    language = ["--language", dataset.language] if FORMATS[dataset.format].states_language else []
    described = ["--job", job.passed_document(shard), "--source", *read, *pattern, *language]
    return RecipeJob(
        ["extract", *described, *flags(outputs)], outputs, {"source": source} if source else {}, takes_workers=True
    )


def list_removed(job: KeptDocumentsJob) -> RecipeJob:
    """Return the job that lists the documents of all shards, held-out ones first, that are removed."""
    documents = [job.extracted.documents(shard, split) for split in reversed(SPLITS) for shard in job.shards]
    tests = [
        ["--test", name, str(each.test.item_format), each.file, *([each.text_key] if each.text_key else [])]
        for name, each in job.tests.items()
    ]
    described = [*(["--duplicates"] if job.document["duplicates"] else []), *itertools.chain.from_iterable(tests)]
    return RecipeJob(
        ["list-removed", *described, *flags({"documents": documents, "output": job.removed})],
        {"removed": job.removed},
        {"documents": documents, "tests": [each.file for each in job.tests.values()]},
        takes_workers=True,
    )


def remove_listed(job: KeptDocumentsJob, shard: str, split: str) -> RecipeJob:
    """Return the job that writes a shard's documents of one split without those that are removed."""
    read, output = {"documents": [job.extracted.documents(shard, split)], "removed": [job.removed]}, job.documents(shard, split)
    words = ["remove-listed", *flags({**read, "output": output})]
    return RecipeJob(words, {"documents": output}, read, takes_workers=True)


def make_tokenizer(job: TokenizerJob) -> RecipeJob:
    """Return the job that trains or imports a tokenizer."""
    document = job.document
    if "train" in document:
        described, read = ["train-tokenizer", "--job", document], {"documents": job.files}
    else:
        described = ["import-tokenizer", "--kind", document["kind"], *sha256_flag(document["files"])]
        read = {"files": job.files}
    return RecipeJob([*described, *flags({**read, "output": job.tokenizer})], {"tokenizer": job.tokenizer}, read)


def pregenerate(job: ExamplesJob, shard: str) -> RecipeJob:
    """Return the job that makes the examples of a shard."""
    documents = [job.documents.documents(shard, split) for split in SPLITS]
    outputs = {split: job.examples(shard, split) for split in SPLITS}
    read = {"tokenizer": [job.tokenizer.tokenizer], "documents": documents}
    words = ["pregenerate", "--job", job.document, *flags({**read, "output": list(outputs.values())})]
    return RecipeJob(words, outputs, read, takes_workers=True)


def import_tokens(job: ExamplesJob, shard: str, split: str) -> RecipeJob:
    """Return the job that checks and copies a shard of tokens that somebody else published."""
    dataset, output = job.documents.dataset, job.examples(shard, split)
    first = dataset.held_out_tokens if shard in dataset.held_out_files else None
    limit = [] if first is None else ["--first-tokens", str(first)]
    read = {"tokenizer": [job.tokenizer.tokenizer], "files": [job.documents.download(shard)]}
    words = ["import", "--format", str(FORMATS[dataset.format].imported_as), *limit, *flags({**read, "output": output})]
    return RecipeJob(words, {"tokens": output}, read)


def manifest(job: ExamplesJob) -> RecipeJob:
    """Return the job that lists all shards of examples, training first."""
    read = {"sidecars": [sidecar_of(path) for path in job.files()]}
    words = ["manifest", *flags({**read, "output": job.manifest})]
    return RecipeJob(words, {"manifest": job.manifest}, dated=read)


def list_data_jobs(plan: Plan) -> Iterator[RecipeJob]:
    """Yield the jobs that prepare a run's data, in the order of the data flow."""
    yield from _list_downloads(plan)
    for job in plan.data_jobs:
        if isinstance(job, TokenizerJob):
            yield make_tokenizer(job)
        elif isinstance(job, KeptDocumentsJob):
            yield list_removed(job)
            yield from (remove_listed(job, shard, split) for shard in job.shards for split in SPLITS)
        elif isinstance(job, DocumentsJob):
            if not job.dataset.is_tokenized:
                yield from (extract(job, shard) for shard in job.shards)
        else:
            yield from _list_examples_jobs(job)


def _list_examples_jobs(job: ExamplesJob) -> Iterator[RecipeJob]:
    for shard in job.documents.shards:
        if job.documents.dataset.is_tokenized:
            yield from (import_tokens(job, shard, split) for split in job.documents.splits(shard))
        else:
            yield pregenerate(job, shard)
    yield manifest(job)


def _list_downloads(plan: Plan) -> Iterator[RecipeJob]:
    dataset = plan.recipe.data.dataset
    for shard, file in plan.dataset.files.items():
        yield download("dataset", dataset, file.sha256, plan.documents_job.download(shard))
    if plan.tokenizer_model is not None:
        yield from _list_model_jobs(plan, plan.recipe.tokenizer.from_model, plan.tokenizer_model, plan.tokenizer_files)
    if plan.init_model is not None:
        weights = plan.starting_weights(plan.phases[0])
        yield from _list_model_jobs(plan, plan.recipe.init_from, plan.init_model, weights)
    files = {name: plan.test_downloads(name) for name in plan.tests}
    removing = plan.kept_job.tests if isinstance(plan.kept_job, KeptDocumentsJob) else {}
    for name, test in {**{name: each.test for name, each in removing.items()}, **plan.tests}.items():
        paths: Iterable[Path] = files[name].values() if name in files else [removing[name].file]
        yield from (download("test", name, test.files[path.name].sha256, path) for path in paths)


def _list_model_jobs(plan: Plan, name: str | None, model: PretrainedModel, files: Sequence[Path]) -> Iterator[RecipeJob]:
    content = identity.model_content(str(name), model, plan.work / "folders")
    if model.converted and files[0].name == WEIGHTS:
        pickled = plan.model_download(str(name), model, PICKLED_WEIGHTS)
        yield download("model", str(name), content[PICKLED_WEIGHTS], pickled)
        yield convert_weights(str(name), pickled, files[0])
    else:
        yield from (download("model", str(name), content[file.name], file) for file in files)
