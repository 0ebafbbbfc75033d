"""Every kind of file that steps write, each once: its path, the step that makes it, and its use.

Push, pull, gc, publish, check and reproduce read this table. Its steps are in the order of the data flow. Imports no torch.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from relm.artifact import record_of, sidecar_of
from relm.recipes.identity import KEY
from relm.recipes.jobs import with_indexes
from relm.recipes.plan import BEFORE, REFERENCE, TRAINED, Plan
from relm.recipes.published_models import PICKLED_WEIGHTS
from relm.recipes.run_folder import (
    CHECKPOINT_FILES,
    CHECKSUMS,
    COMPILATION,
    DEVICE_FIGURES,
    FINAL_LOGS,
    OF_ONE_MACHINE,
    RECORDS,
    REPLACED,
    REPORT_FILES,
    RESOLVED,
    VERIFY,
    WEIGHTS,
    final_logs,
)
from relm.recipes.section import NAME

SEEDS = "seeds"
"""Folder in `results/NAME` of the runs after the first."""


@dataclass(frozen=True)
class ProductKind:
    """One kind of file."""

    path: str
    """Path inside the work folder, with the wildcards of the rules; empty: only the published folder has the file."""
    maker: str
    """The step that makes it."""
    published: str = ""
    """Name in `results/NAME`; without `.{phase}` for a run of one phase, and without {phase} only of the last phase."""
    of_each_seed: bool = False
    """Also published for the runs after the first."""
    in_reference: bool = False
    """Published in `results/reference/NAME` instead."""
    optional: bool = False
    """Some runs have none, and are published without it."""
    pushed: bool = True
    """Sent to a bucket, because a run needs it to continue or to be checked elsewhere."""
    remade: bool = False
    """Can be made again, so that gc removes its folder KIND/NAME-KEY when nothing asks for it."""

    def list_files(self, plan: Plan, figures: Sequence[Path]) -> list[Path]:
        """Return the files of a run that its plan knows, existing or not; `figures` are those of `list_figures`."""
        if self.path and set(_WILDCARD.findall(self.path)) <= {"recipe", "fingerprint", "phase"}:
            run = {"recipe": plan.run_name, "fingerprint": plan.fingerprint}
            return list(dict.fromkeys(plan.work / self.path.format(**run, phase=phase) for phase in plan.phases))
        pattern = re.compile(_make_pattern(self.path, plan))
        return [path for path in figures if pattern.fullmatch(_inside(plan, path))]

    def published_in(self, phases: Sequence[str]) -> str:
        """Return the name in the published folder, with wildcards, of a run with these phases."""
        return self.published if len(phases) > 1 else self.published.replace(".{phase}", "")


RUN = "runs/{recipe}/{fingerprint}"
EVALUATION = f"{RUN}/{{of}}/{{key}}/{{task}}.json"
"""Figures of trained, starting or released weights, which are products of three kinds and made by one rule."""
_MODEL = f"{RUN}/{{phase}}/model"
_TRAINING = (*RECORDS, DEVICE_FIGURES)
_CHECKPOINT = [f"checkpoints/step-{{step}}/{name}" for name in (*CHECKPOINT_FILES, "state.json")]
# The training runs of an evaluation, which it resumes; their phase has the protocol's name.
_TUNED = [
    *("examples/manifest.json", "examples/train.arrow", "seed-{seed}/figures.json", "seed-{seed}/predictions.json"),
    *(f"seed-{{seed}}/{{protocol}}/{name}" for name in (*_TRAINING, *_CHECKPOINT)),
]
# Paths of an earlier version, which had no keys there; runs in buckets have them.
_OLDER = [
    *("{of}/{task}.json", "verify.json", "verify_reference.json"),
    *(f"report/{name}" for name in REPORT_FILES),
]
PRODUCTS = {
    "download": ProductKind("downloads/data/{dataset}/{key}/{shard}", "download"),
    "model download": ProductKind("downloads/models/{model}/{key}/{file}", "download"),
    "model copy": ProductKind("models/{model}-{key}/{file}", "download"),
    "test download": ProductKind("downloads/evaluations/{test}/{key}/{file}", "download"),
    "documents": ProductKind("documents/{dataset}-{key}/{shard}.{split}.jsonl", "extract", remade=True),
    "removed": ProductKind("kept/{dataset}-{key}/removed.jsonl", "list-removed", pushed=False, remade=True),
    "kept": ProductKind("kept/{dataset}-{key}/{shard}.{split}.jsonl", "remove-listed", remade=True),
    "examples": ProductKind("examples/{dataset}-{key}/{shard}.{split}.{suffix}", "pregenerate", remade=True),
    "imported": ProductKind("examples/{dataset}-{key}/imported/{shard}.{split}.{suffix}", "import", remade=True),
    "manifest": ProductKind("examples/{dataset}-{key}/manifest.json", "manifest", remade=True),
    "tokenizer": ProductKind("tokenizers/{origin}-{key}/tokenizer.json", "train-tokenizer", remade=True),
    "converted": ProductKind("converted/{model}-{key}/{file}", "convert-weights", remade=True),
    RESOLVED: ProductKind(f"{RUN}/{RESOLVED}", "pretrain"),
    "config.json": ProductKind(f"{_MODEL}/config.json", "pretrain", "config.json"),
    WEIGHTS: ProductKind(f"{_MODEL}/{WEIGHTS}", "pretrain", WEIGHTS),
    "sidecar": ProductKind(f"{_MODEL}/{WEIGHTS}.json", "pretrain", f"{WEIGHTS}.json", of_each_seed=True),
    "tokenizer.json": ProductKind(f"{_MODEL}/tokenizer.json", "pretrain", "tokenizer.json"),
    "tokenizer_config.json": ProductKind(f"{_MODEL}/tokenizer_config.json", "pretrain", "tokenizer_config.json"),
    "generation": ProductKind(f"{_MODEL}/generation_config.json", "pretrain", "generation_config.json", optional=True),
    **{
        name: ProductKind(f"{RUN}/{{phase}}/{FINAL_LOGS}/{name}", "pretrain", name.replace(".", ".{phase}."), of_each_seed=True)
        for name in RECORDS
    },
    **{f"growing {name}": ProductKind(f"{RUN}/{{phase}}/{name}", "pretrain") for name in RECORDS},
    DEVICE_FIGURES: ProductKind(f"{RUN}/{{phase}}/{DEVICE_FIGURES}", "pretrain", "device.{phase}.json", optional=True),
    **{path: ProductKind(f"{RUN}/{{phase}}/{path}", "pretrain") for path in _CHECKPOINT},
    "tensorboard": ProductKind(f"{RUN}/{{phase}}/tensorboard/{{visible}}", "pretrain"),
    # Not all files there: Weights & Biases would take the address of its server from `settings`.
    **{
        f"wandb {name}": ProductKind(f"{RUN}/{{phase}}/wandb/{name}", "pretrain")
        for name in ("run_id", "run-{inside}", "offline-run-{inside}")
    },
    **{name: ProductKind(f"{RUN}/{{inside}}/{name}{{rest}}", "pretrain", pushed=False) for name in OF_ONE_MACHINE},
    COMPILATION: ProductKind(f"{RUN}/{COMPILATION}", "compile"),
    "evaluation": ProductKind(EVALUATION.replace("{of}", TRAINED), "evaluate", "eval/{task}.json", of_each_seed=True),
    "evaluation before": ProductKind(EVALUATION.replace("{of}", BEFORE), "evaluate", "eval/before/{task}.json"),
    "reference": ProductKind(EVALUATION.replace("{of}", REFERENCE), "evaluate", "eval/{task}.json", in_reference=True),
    **{path: ProductKind(f"{RUN}/{{of}}/{{tuned}}/{{key}}/{path}", "evaluate") for path in _TUNED},
    "verdict": ProductKind(f"{RUN}/{VERIFY}/{{key}}/verify.json", "verify", "verify.json"),
    "reference verdict": ProductKind(
        f"{RUN}/{VERIFY}/{{key}}/verify_reference.json", "verify", "verify.json", in_reference=True
    ),
    **{name: ProductKind(f"{RUN}/report/{{key}}/{name}", "report", name) for name in REPORT_FILES},
    **{f"older {path}": ProductKind(f"{RUN}/{path}", "report") for path in _OLDER},
    REPLACED: ProductKind(f"{RUN}/{REPLACED}", "report"),
    "replaced result": ProductKind(f"{RUN}/published/{{inside}}", "report", pushed=False),
    "reference page": ProductKind(f"{RUN}/{REFERENCE}/README.md", "publish", "README.md", in_reference=True),
    "checksums": ProductKind("", "publish", CHECKSUMS),
    "reference checksums": ProductKind("", "publish", CHECKSUMS, in_reference=True),
}


def pattern_of(kind: str, **values: str) -> str:
    """Return the path of a kind of file inside the work folder, with wildcards except for those in `values`.

    >>> pattern_of("documents", split="train")
    'documents/{dataset}-{key}/{shard}.train.jsonl'
    """
    return _WILDCARD.sub(lambda found: values.get(found[1], found[0]), PRODUCTS[kind].path)


def _list_data(plan: Plan) -> Iterator[Path]:
    """Yield downloads, copies, documents, tokenizer and examples, which plans with the same keys share."""
    yield from (plan.documents_job.download(shard) for shard in plan.dataset.files)
    if plan.tokenizer_model is not None:
        yield from plan.tokenizer_files
    yield from plan.starting_weights(plan.phases[0])
    if plan.reference_model is not None:
        yield from plan.evaluated_model(REFERENCE)
    for name, model in ((plan.recipe.init_from, plan.init_model), (plan.recipe.expect_reference, plan.reference_model)):
        if name is not None and model is not None and model.converted:
            yield plan.model_download(name, model, PICKLED_WEIGHTS)
    yield from (path for test in plan.tests for path in plan.test_downloads(test).values())
    yield from plan.document_files
    yield plan.tokenizer
    for phase in plan.phases:
        yield plan.manifest(phase)
        yield from with_indexes(plan.examples_jobs[phase].files())


def list_figures(plan: Plan) -> Iterator[Path]:
    """Yield the files of a run whose paths have keys."""
    yield from (path for of in (TRAINED, BEFORE, REFERENCE) for path in plan.evaluations(of).values())
    if not plan.number:
        yield plan.verdict()
        yield from (plan.report_folder / name for name in REPORT_FILES)
    if plan.reference_model is not None:
        yield plan.verdict(REFERENCE)


def list_shared_files(plan: Plan) -> Iterator[Path]:
    """Yield the pushed files that a plan may share with others, existing or not, each with its sidecar and record."""
    rows = [each for each in PRODUCTS.values() if each.pushed and not each.path.startswith(RUN)]
    pattern = re.compile(_join(_make_pattern(each.path, plan) for each in rows))
    data = (path for path in _list_data(plan) if pattern.fullmatch(_inside(plan, path)))
    for path in (*data, *(path for each in rows for path in each.list_files(plan, ()))):
        yield from (path, sidecar_of(path), record_of(path))


def published_files(plan: Plan, in_reference: bool = False, only_required: bool = False) -> dict[str, Path]:
    """Return the files that a run publishes, by their names in the published folder; optional ones if they exist.

    Of the runs after the first, the weights stay in the work folder, since they take as much space as the published model;
    `relm reproduce work/runs/NAME/FINGERPRINT` compares with them there.
    """
    rows = [each for each in PRODUCTS.values() if each.published and each.in_reference == in_reference]
    rows = [each for each in rows if not (only_required and each.optional)]
    files = _name_files(plan, sorted(rows, key=lambda each: each.maker != "report"))
    for run in plan.runs[1:] if not in_reference else ():
        # The crate has the names in this order: figures first, hashes of weights last.
        seed = sorted(rows, key=lambda each: (each.maker == "pretrain", each.path.startswith(_MODEL)))
        named = _name_files(run, (each for each in seed if each.of_each_seed))
        files |= {f"{SEEDS}/{run.recipe.seed}/{name}": path for name, path in named.items()}
    return files


def _name_files(plan: Plan, rows: Iterable[ProductKind]) -> dict[str, Path]:
    files, figures = {}, list(list_figures(plan))
    for each in rows:
        pattern = re.compile(_make_pattern(each.path, plan))
        for path in each.list_files(plan, figures):
            if (found := pattern.fullmatch(_inside(plan, path))) and (path.is_file() or not each.optional):
                logs = final_logs(path.parent.parent) if path.parent.name == FINAL_LOGS else {}
                files[each.published_in(plan.phases).format(**found.groupdict())] = logs.get(path.name, path)
    return files


def name_files(kind: str, files: Mapping[str, Path]) -> dict[str, Path]:
    """Return published name -> path of figures that are given by the names of evaluations or tests."""
    return {PRODUCTS[kind].published.format(task=name, test=name): path for name, path in files.items()}


_WILDCARD = re.compile(r"\{(\w+)\}")
_VISIBLE = r"[^./][^/]*"
# Wildcard -> pattern of its values; those of all others are names.
_VALUES = {
    **dict.fromkeys(("key", "fingerprint"), KEY.pattern),
    "of": f"{TRAINED}|{BEFORE}|{REFERENCE}",
    "step": "[0-9]{8}",
    "seed": "[0-9]+",
    "visible": _VISIBLE,
    "inside": rf"{_VISIBLE}(?:/{_VISIBLE})*",
    "rest": rf"(?:/{_VISIBLE})*",
}


def _inside(plan: Plan, path: Path) -> str:
    return path.relative_to(plan.work).as_posix()


def _make_pattern(path: str, plan: Plan | None = None) -> str:
    """Return the regular expression of a path or name with wildcards, of the files of one plan or of any."""
    values = _VALUES
    if plan is not None:
        tuned = {test: plan.evaluation(test).name for test in plan.tests if plan.evaluation(test).fine_tunes}
        names = {"recipe": [plan.run_name], "fingerprint": [plan.fingerprint], "phase": plan.phases, "tuned": tuned}
        values = values | {key: _either(each) for key, each in {**names, "protocol": tuned.values()}.items()}
    parts = _WILDCARD.split(path)
    return "".join(
        f"(?P<{part}>{values.get(part, NAME.pattern)})" if number % 2 else re.escape(part) for number, part in enumerate(parts)
    )


def _either(names: Iterable[str]) -> str:
    return "|".join(re.escape(name) for name in dict.fromkeys(names)) or "(?!)"


def _join(patterns: Iterable[str]) -> str:
    return "|".join(re.sub(r"\?P<\w+>", "?:", pattern) for pattern in patterns)


def match_run_files(plan: Plan) -> re.Pattern[str]:
    """Return the pattern of the paths inside a run's folder of its pushed files, their sidecars and records."""
    rows = [each for each in PRODUCTS.values() if each.path.startswith(RUN) and each.pushed]
    paths = _join(_make_pattern(each.path.removeprefix(f"{RUN}/"), plan) for each in rows)
    return re.compile(rf"(?:{paths})(?:\.json|\.record\.json)?")


def published_name(record: str, phase: str, phases: Sequence[str]) -> str:
    """Return the name of a phase's record in `results/NAME`.

    >>> published_name("train.jsonl", "long", ["short", "long"]), published_name("train.jsonl", "main", ["main"])
    ('train.long.jsonl', 'train.jsonl')
    """
    return PRODUCTS[record].published_in(phases).format(phase=phase)


def find_maker(name: str) -> tuple[str, str]:
    """Return the step that makes a published file, and the phase in its name; empty texts without them.

    >>> find_maker("eval/held_out.json"), find_maker("seeds/2/train.long.jsonl"), find_maker("notes.txt")
    (('evaluate', ''), ('pretrain', 'long'), ('', ''))
    """
    inside = re.sub(rf"^{SEEDS}/[^/]+/", "", name)
    for product in PRODUCTS.values():
        for published in {product.published, product.published_in(())} - {""}:
            if found := re.fullmatch(_make_pattern(published), inside):
                return product.maker, found.groupdict().get("phase", "")
    return "", ""
