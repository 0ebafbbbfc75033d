"""What identifies each product of the graph: hashes that stand in the paths of `work/`.

Only what changes a product's meaning is hashed, and only keys that differ from their default, so that a new key with a default
leaves every old fingerprint as it was. Where a recipe runs is never hashed.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relm.artifact import canonical_json, read_json, sha256_of, write_json
from relm.catalogue import WEIGHTS_FILES, Dataset, PretrainedModel
from relm.errors import RelmError
from relm.objectives import Objective
from relm.recipe import DataChoice, Recipe, TokenizerChoice
from relm.section import Section

# A step whose output changes meaning for the same input gets the next number here; a mere speed-up does not.
# The last two stand in no path: their rules run again.
REVISIONS = {"documents": 1, "tokenizer": 1, "examples": 1, "training": 1, "evaluation": 1, "report": 1}

# The keys of a dataset that decide its documents and their splits, beside the bytes they are read from.
HOW_DOCUMENTS_ARE_READ = {
    "format", "ends_mid_page", "text_key", "id_key", "title_key", "split", "held_out_files", "held_out_one_in",
}  # fmt: skip


def digest(value: Any) -> str:
    """Twelve hexadecimal digits of the sha256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:12]


def given(section: Section) -> dict[str, Any]:
    """The keys of a section that differ from their defaults."""
    return section.model_dump(mode="json", exclude_defaults=True)


def folder_files(dataset: Dataset) -> list[Path]:
    """The documents of a dataset that is a folder, sorted by their path inside it.

    Raises:
        RelmError: the folder is absent or holds no file that matches the pattern.
    """
    assert dataset.folder is not None
    folder = Path(dataset.folder).expanduser()
    if not folder.is_dir():
        raise RelmError(
            f"folder {dataset.folder}: not a folder (looked for {folder.resolve()}); correct `folder` in the dataset file"
        )
    files = sorted(
        (path for path in folder.glob(dataset.file_pattern) if path.is_file()),
        key=lambda p: p.relative_to(folder).as_posix(),
    )
    if not files:
        raise RelmError(f"folder {dataset.folder}: no file matches `pattern: {dataset.file_pattern}`")
    return files


def folder_content(name: str, dataset: Dataset, cache: Path) -> list[list[str]]:
    """[[path inside the folder, sha256]] of every document; unchanged files (size, time) are not hashed again."""
    folder = Path(str(dataset.folder)).expanduser()
    known: Mapping[str, Any] = {}
    if (cache / f"{name}.json").exists():
        known = read_json(cache / f"{name}.json")
    now: dict[str, Any] = {}
    for path in folder_files(dataset):
        status = path.stat()
        inside = path.relative_to(folder).as_posix()
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]
        old = known.get(inside)
        now[inside] = old if old and old[0] == stamp else [stamp, sha256_of(path)]
    if now != known:
        write_json(cache / f"{name}.json", now)
    return [[inside, entry[1]] for inside, entry in now.items()]


def dataset_identity(name: str, dataset: Dataset, cache: Path) -> dict[str, Any]:
    """What the documents of a dataset depend on, by content; where the bytes come from and words do not count."""
    if dataset.folder is not None:
        content: Any = folder_content(name, dataset, cache)
    elif dataset.hub is not None:
        content = given(dataset.hub)
    else:
        content = [[file, remote.sha256] for file, remote in dataset.files.items()]
    return {"content": content, **dataset.model_dump(mode="json", include=HOW_DOCUMENTS_ARE_READ, exclude_defaults=True)}


def documents_identity(choice: DataChoice, dataset: Dataset, cache: Path) -> dict[str, Any]:
    """Of the extracted documents: the dataset's content and how many documents are read."""
    identity = {"revision": REVISIONS["documents"], **dataset_identity(choice.dataset, dataset, cache)}
    return identity if choice.documents is None else {**identity, "documents": choice.documents}


def tokenizer_identity(choice: TokenizerChoice, model: PretrainedModel | None, documents: Mapping[str, Any]) -> dict[str, Any]:
    """Of a tokenizer: the hashes of its files, or what it is trained on."""
    if model is not None:
        files = {name: model.files[name].sha256 for name in model.tokenizer_files}
        return {"revision": REVISIONS["tokenizer"], "kind": model.tokenizer, "files": files}
    return {"revision": REVISIONS["tokenizer"], "documents": digest(documents), **given(choice)}


def weights_identity(model: PretrainedModel) -> dict[str, str]:
    """File name -> sha256 of published weights and their configuration."""
    return {name: model.files[name].sha256 for name in WEIGHTS_FILES}


def examples_identity(
    documents: Mapping[str, Any], tokenizer: Mapping[str, Any], objective: Objective, language: str
) -> dict[str, Any]:
    """Of pregenerated examples: the documents, the tokenizer and those keys of the objective that decide what is stored."""
    stored = objective.what_is_stored()
    return {
        "revision": REVISIONS["examples"],
        "documents": digest(documents),
        "tokenizer": digest(tokenizer),
        "objectives": [stored.pop("objective", "causal")],
        **stored,
        **({"language": language} if objective.depends_on_language else {}),
    }


def fingerprint(recipe: Recipe, examples: Sequence[Mapping[str, Any]], init_from: PretrainedModel | None) -> str:
    """Twelve hexadecimal digits for what a run means: data, architecture, starting weights, objective, optimizer, schedule,
    batch, precision and seed. `run`, `evaluate`, `expect` and all prose are left out.

    Args:
        examples: identity of each phase's examples, in order.
    """
    same = all(dict(identity) == dict(examples[0]) for identity in examples)
    return digest(
        {
            "revision": REVISIONS["training"],
            "examples": dict(examples[0]) if same else [dict(identity) for identity in examples],
            "model": given(recipe.model),
            "init_from": weights_identity(init_from) if init_from else None,
            "seed": recipe.seed,
            "pretrain": [[name, given(phase)] for name, phase in recipe.pretrain.items()],
        }
    )


def work_folder() -> Path:
    """Where everything between the sources and the results lies: ``RELM_WORK``, or ``work``."""
    return Path(os.environ.get("RELM_WORK") or "work")
