"""Identities of the graph's products: hashes that are part of the paths in `work/`.

Only keys that change a product's meaning are hashed, and only if they differ from their default, so that a new key with a
default leaves every old fingerprint unchanged. The keys of `run` are never hashed.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from relm.artifact import canonical_json, sha256_of, stamp_of, write_json
from relm.artifact import work_folder as work_folder
from relm.errors import RelmError
from relm.json_shapes import LINE, Kind, read_shaped
from relm.recipes.datasets import FORMATS, Dataset
from relm.recipes.evaluation.evaluations import HARNESS, HARNESS_TASKS, EvaluationDeclaration, task_of
from relm.recipes.evaluation.published_tests import PublishedTest
from relm.recipes.evaluation.reference_runs import LoadedRuns
from relm.recipes.files.folder_contents import match_files
from relm.recipes.files.own_folders import AGAIN, expand_home, require_consent, require_own_files, resolve_own_folder
from relm.recipes.objectives import Objective
from relm.recipes.phase import Phase
from relm.recipes.published_models import PretrainedModel
from relm.recipes.recipe import Recipe, TokenizerChoice
from relm.recipes.section import Section

# Increase a step's revision if its output changes meaning for the same input; a mere speed-up does not count. If only the
# documents of one format change, increase the revision in the format's declaration instead.
# No path has the last two: their rules run again when they change.
REVISIONS = {"documents": 1, "kept": 1, "tokenizer": 1, "examples": 1, "training": 1, "evaluation": 2, "report": 2}

# Keys of a dataset that, with the content of its files, determine its documents and splits.
DOCUMENTS_KEYS = {
    "format", "ends_mid_page", "skip_damaged_records", "text_key", "id_key", "title_key",
    "split", "held_out_files", "held_out_one_in", "held_out_end", "held_out_tokens",
}  # fmt: skip


# A digest in a path.
KEY = re.compile("[0-9a-f]{12}")


def digest(value: Any) -> str:
    """Return the first twelve hexadecimal digits of the sha256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:12]


def given(section: Section) -> dict[str, Any]:
    """Return the keys of a section that differ from their defaults."""
    return section.model_dump(mode="json", exclude_defaults=True)


def folder_files(dataset: Dataset) -> list[Path]:
    """Return the files of a dataset that is a folder, sorted by their path inside it; at least one."""
    assert dataset.folder is not None
    folder = resolve_own_folder(dataset.folder, "folder")
    if not folder.is_dir():
        raise RelmError(f"folder {dataset.folder}: not a folder (resolved to {folder.resolve()}); correct `folder`")
    files = match_files(folder, dataset.file_pattern)
    if not files:
        raise RelmError(f"folder {dataset.folder}: no file matches `pattern: {dataset.file_pattern}`; correct `folder` or it")
    require_own_files(files, folder, "folder")
    return files


def folder_content(dataset: Dataset, cache: Path) -> list[list[str]]:
    """Return [[path inside the folder, sha256], ...] of the dataset's files; unchanged files are not hashed again."""
    folder = expand_home(str(dataset.folder))
    files = {path.relative_to(folder).as_posix(): path for path in folder_files(dataset)}
    known_contents = cache / f"{folder.name}-{digest(str(folder.resolve()))}.json"
    return [[inside, sha256] for inside, sha256 in content_of(files, known_contents).items()]


_in_memory: dict[Path, dict[str, Any]] | None = None


def keep_hashes_in_memory() -> None:
    """Stop writing hashes of folders, as a dry-run must; they are still read."""
    global _in_memory
    _in_memory = {}


# Name -> the system's stamp of a file, and its sha256.
_KNOWN = {"*": Kind("a stamp and a sha256", lambda entry: isinstance(entry, list) and len(entry) == 2 and LINE.fits(entry[1]))}


def content_of(files: Mapping[str, Path], known_contents: Path) -> dict[str, str]:
    """Return name -> sha256 of files; those unchanged (size, times) since `known_contents` was written are not hashed again."""
    known: Mapping[str, Any] = (_in_memory or {}).get(known_contents, {})
    if not known and known_contents.exists():
        with contextlib.suppress(RelmError):  # a damaged list counts as empty
            known = read_shaped(known_contents, _KNOWN)
    now: dict[str, Any] = {}
    for name, path in files.items():
        stamp = stamp_of(path)
        old = known.get(name)
        now[name] = old if old and old[0] == stamp else [stamp, sha256_of(path)]
    if _in_memory is not None:
        _in_memory[known_contents] = now
    elif now != known:
        # Several processes may do this at once: each writes another file and renames it.
        own = known_contents.with_name(f"{known_contents.name}.{os.getpid()}")
        write_json(own, now)
        os.replace(own, known_contents)
    return {name: entry[1] for name, entry in now.items()}


def dataset_identity(dataset: Dataset, cache: Path) -> dict[str, Any]:
    """Return everything that the documents of a dataset depend on; URLs of files and descriptive keys do not count."""
    if dataset.folder is not None:
        content: Any = folder_content(dataset, cache)
    elif dataset.hub is not None:
        content = given(dataset.hub)
    else:
        content = [[file, remote.identity] for file, remote in dataset.files.items()]
    keys = DOCUMENTS_KEYS | {dataset.format}  # a format's options are under its name
    return {"content": content, **dataset.model_dump(mode="json", include=keys, exclude_defaults=True)}


def revision_of_documents(format: str) -> int:
    """Return the revision of the documents of a format: it grows with that of the step and with that of the format."""
    return REVISIONS["documents"] + (FORMATS[format].revision - 1 if format in FORMATS else 0)


def documents_identity(dataset: Dataset, limit: int | None, cache: Path) -> dict[str, Any]:
    """Return the identity of extracted documents: the dataset's identity, and the limit of documents per shard."""
    identity = {"revision": revision_of_documents(dataset.format), **dataset_identity(dataset, cache)}
    return identity if limit is None else {**identity, "documents": limit}


def kept_identity(documents: Mapping[str, Any], duplicates: bool, tests: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the identity of documents without duplicates and passages of tests; `tests` has what identifies their items."""
    listed = {name: list(identity) for name, identity in tests.items()}
    kept = {"revision": REVISIONS["kept"], "documents": digest(documents), "duplicates": duplicates, "tests": listed}
    return {**kept, "cut_passages": True} if tests else kept


def model_content(name: str, model: PretrainedModel, cache: Path, command: str = AGAIN) -> dict[str, str]:
    """Return file name -> sha256 of a model's weights and tokenizer, published or in a folder that may need consent."""
    wanted = dict.fromkeys((*model.weights_files, *model.tokenizer_files))
    if model.folder is None:
        made = (
            {"config.json": hashlib.sha256(canonical_json(model.configuration).encode()).hexdigest()} if model.converted else {}
        )
        return {file: made[file] if file in made else model.files[file].sha256 for file in wanted}
    where = f"recipes/models/{name}.yaml: folder {model.folder}"
    require_consent(model.folder, f"recipes/models/{name}.yaml: folder", command)
    folder = resolve_own_folder(model.folder, f"recipes/models/{name}.yaml: folder")
    if not folder.is_dir():
        raise RelmError(f"{where}: not a folder (resolved to {folder.resolve()}); correct `folder`")
    if missing := [file for file in wanted if not (folder / file).is_file()]:
        raise RelmError(f"{where}: has no {', '.join(missing)}; {_suggest_remedy(folder, missing)}")
    require_own_files([folder / file for file in wanted], folder, f"recipes/models/{name}.yaml: folder")
    return content_of({file: folder / file for file in wanted}, cache / "models" / f"{name}.json")


def _suggest_remedy(folder: Path, missing: Sequence[str]) -> str:
    """Return advice for an error about files that a model's folder lacks."""
    found, way = (
        sorted(path.name for path in folder.iterdir()),
        "load the model with transformers and write it with save_pretrained",
    )
    if "model.safetensors" in missing and "model.safetensors.index.json" in found:
        return f'its weights are in several files, and only one is read: {way}(FOLDER, max_shard_size="1TB")'
    if "model.safetensors" in missing and "pytorch_model.bin" in found:
        return f"pytorch_model.bin is not read, because loading it may run code: {way}(FOLDER), which makes a model.safetensors"
    return f"it has {', '.join(found[:10]) or 'nothing'}"


def part_of(content: Mapping[str, str], files: Sequence[str]) -> dict[str, str]:
    """Return the entries of `content` for files that are used together; the digest of this is part of their path."""
    return {file: content[file] for file in files}


def tokenizer_identity(
    choice: TokenizerChoice, model: PretrainedModel | None, documents: Mapping[str, Any], cache: Path, command: str = AGAIN
) -> dict[str, Any]:
    """Return the identity of a tokenizer: its kind and its files' hashes, or the options and documents of its training."""
    if model is not None:
        files = part_of(model_content(str(choice.from_model), model, cache, command), model.tokenizer_files)
        return {"revision": REVISIONS["tokenizer"], "kind": model.tokenizer, "files": files}
    return {"revision": REVISIONS["tokenizer"], "documents": digest(documents), **given(choice)}


def examples_identity(
    documents: Mapping[str, Any], tokenizer: Mapping[str, Any], objective: Objective, language: str
) -> dict[str, Any]:
    """Return the identity of pregenerated examples: documents, tokenizer, and the options that decide what is stored."""
    return {"documents": digest(documents), "tokenizer": digest(tokenizer), **stored_identity(objective, language)}


def stored_identity(objective: Objective, language: str) -> dict[str, Any]:
    """Return the part of the identity of examples that does not depend on documents and tokenizer."""
    stored = objective.stored_keys()
    return {
        "revision": REVISIONS["examples"],
        "objectives": [stored.pop("objective", "causal")],
        **stored,
        **({"language": language} if objective.depends_on_language else {}),
    }


def fingerprint(recipe: Recipe, examples: Sequence[Mapping[str, Any]], weights: Mapping[str, str] | None) -> str:
    """Return twelve hexadecimal digits that identify a run: its data, architecture, starting weights, objective, optimizer,
    schedule, batch size, precision and seed. `run`, `evaluate`, `expect` and all prose are left out.

    `examples` has the identity of each phase's examples, in order; `weights` the sha256 of each starting file.
    """
    same = all(dict(identity) == dict(examples[0]) for identity in examples)
    return digest(
        {
            "revision": REVISIONS["training"],
            "examples": dict(examples[0]) if same else [dict(identity) for identity in examples],
            "model": given(recipe.model),
            "init_from": dict(weights) if weights else None,
            "seed": recipe.seed,
            "pretrain": [[name, given(phase)] for name, phase in recipe.pretrain.items()],
        }
    )


def evaluation_identity(
    declaration: EvaluationDeclaration, task: str, recipe: Recipe, *, test: PublishedTest | None, language: str
) -> dict[str, Any]:
    """Return the identity of an evaluation: an `EvaluationJob` with only the options that differ from their defaults."""
    options = getattr(test or recipe, declaration.name, None) if declaration.options else None
    last = evaluated_phase(recipe, declaration.name)
    facts: dict[str, Callable[[], Any]] = {
        "context": lambda: last.sequence_length,
        "batch_size": lambda: last.global_batch_size,
        "phase": lambda: last.model_dump(mode="json", include=set(Objective.model_fields), exclude_defaults=True),
        "language": lambda: language,
        "phases": lambda: {
            name: {"steps": phase.steps, "global_batch_size": phase.global_batch_size}
            for name, phase in recipe.pretrain.items()
        },
        "harness_task": lambda: task.removeprefix(task_of(HARNESS)),
        "task_files": harness_task_files,
    }
    return {
        "revision": REVISIONS["evaluation"],
        "evaluation": declaration.name,
        **({"task": task} if task != declaration.name else {}),
        **({"options": given(options)} if options is not None and given(options) else {}),
        **{fact: value for fact in declaration.facts if (value := facts[fact]())},
    }


def evaluated_phase(recipe: Recipe, evaluation: str) -> Phase:
    """Return the last phase, without `as_published` if the evaluation's held-out examples are built by default."""
    last = list(recipe.pretrain.values())[-1]
    by_default = getattr(getattr(recipe, evaluation, None), "examples", None) == "by_default"
    return last.model_copy(update={"as_published": None}) if by_default else last


def harness_task_files() -> dict[str, str]:
    """Return path inside the folder -> sha256 of the project's own task files for the harness; empty without a folder."""
    found = sorted(HARNESS_TASKS.rglob("*")) if HARNESS_TASKS.is_dir() else []
    files = [path for path in found if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(HARNESS_TASKS).as_posix(): sha256_of(path) for path in files}


def is_source(path: Path) -> bool:
    """Return whether a file is a dataset's download, or documents: a source of examples, which may be deleted after use."""
    work = work_folder()
    parts = path.relative_to(work).parts if path.is_relative_to(work) else ()
    if ".." in parts:
        return False
    is_document = parts[:1] in (("documents",), ("kept",)) and path.suffix == ".jsonl" and path.name != "removed.jsonl"
    return is_document or (parts[:2] == ("downloads", "data") and path.suffix != ".json")


# Keys of a recipe that a report shows, and no figure depends on.
_SHOWN = {"title", "paper", "source", "deviations", "expect", "run", "control"}


def verdict_key(recipe: Recipe, figures: Mapping[str, Mapping[str, str]], reference_runs: Mapping[str, LoadedRuns]) -> str:
    """Return the key of a verdict on figures: fingerprint of each run -> task -> key."""
    expected = [given(row) for row in recipe.expect]
    compared = {"reference_runs": {name: runs.sha256 for name, runs in reference_runs.items()}} if reference_runs else {}
    judged = {"expect": expected, "figures": figures, "machine": recipe.run.machine, **compared}
    return digest({"revision": REVISIONS["report"], **judged})


def reported_digest(recipe: Recipe, named: Sequence[Section | None], parts: Sequence[Any]) -> str:
    """Return the digest of what a report shows: words of the recipe, what it names, and the keys of verdict and figures."""
    words = recipe.model_dump(mode="json", include=_SHOWN, exclude_defaults=True)
    if recipe.expect_curve is not None:
        words["expect_curve"] = recipe.expect_curve.model_dump(mode="json", exclude_defaults=True)
    shown = [given(part) if part else None for part in named]
    return digest([REVISIONS["report"], words, shown, *parts])


def report_key(reported: str) -> str:
    """Return the key of a report from `reported_digest`; the null keeps the keys of earlier reports."""
    return digest([reported, None])
