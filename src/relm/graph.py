"""What the rules ask while Snakemake builds its graph: inputs, parameters and targets as functions of wildcards.

Everything here is cheap: no torch, no network. A fault in one recipe is an error only for those who ask for that recipe.
"""

import contextlib
import difflib
import functools
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_args

from snakemake_interface_common.exceptions import WorkflowError

from relm import identity
from relm.artifact import canonical_json, sidecar_of
from relm.catalogue import ModelFile
from relm.errors import RelmError
from relm.launch import ranks
from relm.plan import SPLITS, Plan, Project
from relm.section import read_yaml

PROJECT = Project()
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
KEY = "[0-9a-f]{12}"
FILE = "|".join(re.escape(name) for name in get_args(ModelFile))
MODEL_PARTS = ("config.json", "tokenizer.json", "tokenizer_config.json")

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def in_words(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Let a RelmError reach the user as Snakemake's own kind of error: its message and no traceback."""

    @functools.wraps(function)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        try:
            return function(*args, **kwargs)
        except RelmError as error:
            raise WorkflowError(str(error)) from None

    return wrapper


def sidecars(paths: list[Path]) -> list[str]:
    """The sidecars of files, which stand for their content."""
    return [str(sidecar_of(path)) for path in paths]


def strings(paths: list[Path]) -> list[str]:
    """Paths as Snakemake wants them."""
    return [str(path) for path in paths]


@in_words
def image(wildcards: Any) -> str | None:
    """The image that a step runs in under `--sdm apptainer`, by digest, from `containers/lock.yaml`; None: no image yet."""
    return read_yaml(Path("containers/lock.yaml")).get("cpu")


# --- data ------------------------------------------------------------------------------------------------------------------


@in_words
def dataset_file_sha256(wildcards: Any) -> str:
    """The sha256 a downloaded file must have: another one in the dataset's YAML downloads again."""
    files = PROJECT.dataset(wildcards.dataset).files
    if wildcards.shard not in files:
        raise RelmError(f"{PROJECT.dataset_path(wildcards.dataset)}: has no file {wildcards.shard}; it has {', '.join(files)}")
    return files[wildcards.shard].sha256


@in_words
def model_file_sha256(wildcards: Any) -> str:
    """The same for a file of a published model."""
    files = dict(PROJECT.model(wildcards.model).files)
    if wildcards.file not in files:
        raise RelmError(f"{PROJECT.model_path(wildcards.model)}: has no file {wildcards.file}; it has {', '.join(files)}")
    return files[wildcards.file].sha256


@in_words
def own_model_file_sha256(wildcards: Any) -> str:
    """The same for a model in a folder of one's own, whose content is in the path."""
    model = PROJECT.model(wildcards.model)
    content = identity.model_content(wildcards.model, model, identity.work_folder() / "folders")
    parts = [identity.part_of(content, files) for files in (model.weights_files, model.tokenizer_files)]
    for part in parts:
        if identity.digest(part) == wildcards.key and wildcards.file in part:
            return part[wildcards.file]
    raise RelmError(
        f"{PROJECT.model_path(wildcards.model)}: folder {model.folder} has other content now than {wildcards.key}: was it "
        "edited while this ran? Give the same command again"
    )


def _plan_of_documents(wildcards: Any) -> Plan:
    return PROJECT.plan_where(wildcards.dataset, documents_key=wildcards.key)


@in_words
def source_sidecar(wildcards: Any) -> list[str]:
    """What stands for the source of a shard; a folder's content is in the path already."""
    plan = _plan_of_documents(wildcards)
    return sidecars([plan.download(wildcards.shard)]) if plan.dataset.files else []


@in_words
def source(wildcards: Any) -> list[str]:
    """The downloaded file of a shard; nothing for a folder, which is no rule's business."""
    plan = _plan_of_documents(wildcards)
    return strings([plan.download(wildcards.shard)]) if plan.dataset.files else []


@in_words
def source_path(wildcards: Any) -> str:
    """The downloaded file, the folder, or what a dataset of the hub is called, quoted for the shell."""
    plan = _plan_of_documents(wildcards)
    if plan.dataset.hub is not None:
        return shlex.quote(f"{plan.dataset.hub.name}@{plan.dataset.hub.revision}")
    path = plan.dataset.folder if plan.dataset.folder is not None else str(plan.download(wildcards.shard))
    return shlex.quote(str(Path(path).expanduser()))


@in_words
def documents_limit(wildcards: Any) -> str:
    """`--documents N` where the recipe reads only so many."""
    limit = _plan_of_documents(wildcards).recipe.data.documents
    return f"--documents {limit}" if limit else ""


def _plan_of_tokenizer(wildcards: Any) -> Plan:
    return PROJECT.plan_where(tokenizer_key=wildcards.key)


def _training_documents(plan: Plan) -> list[Path]:
    return [plan.documents(shard, "train") for shard in plan.shards]


@in_words
def tokenizer_training_sidecars(wildcards: Any) -> list[str]:
    """What stands for the documents a tokenizer is trained on."""
    return sidecars(_training_documents(_plan_of_tokenizer(wildcards)))


@in_words
def tokenizer_training_documents(wildcards: Any) -> list[str]:
    """The documents a tokenizer is trained on."""
    return strings(_training_documents(_plan_of_tokenizer(wildcards)))


@in_words
def tokenizer_training_options(wildcards: Any) -> str:
    """How it is trained."""
    choice = _plan_of_tokenizer(wildcards).recipe.tokenizer
    kind = [] if choice.train == "byte_level_bpe" else [f"--kind {choice.train}"]
    size = [f"--vocabulary-size {choice.vocabulary_size}"] if choice.vocabulary_size else []
    case = ["--lower-case"] if choice.lower_case else []
    special = [] if choice.special_tokens else ["--no-special-tokens"]
    return " ".join([*kind, *size, *case, *special, f"--training-bytes {choice.training_bytes}"])


@in_words
def imported_tokenizer_sidecars(wildcards: Any) -> list[str]:
    """What stands for the files of a published tokenizer."""
    return sidecars(_plan_of_tokenizer(wildcards).tokenizer_files)


@in_words
def imported_tokenizer_files(wildcards: Any) -> list[str]:
    """The files of a published tokenizer."""
    return strings(_plan_of_tokenizer(wildcards).tokenizer_files)


@in_words
def imported_tokenizer_kind(wildcards: Any) -> str:
    """Its format."""
    model = _plan_of_tokenizer(wildcards).tokenizer_model
    assert model is not None
    return str(model.tokenizer)


def _plan_of_examples(wildcards: Any) -> Plan:
    return PROJECT.plan_where(wildcards.dataset, examples_keys=wildcards.key)


def _phase_of_examples(wildcards: Any) -> tuple[Plan, str]:
    plan = _plan_of_examples(wildcards)
    return plan, plan.examples_keys[wildcards.key]


@in_words
def example_documents_sidecars(wildcards: Any) -> list[str]:
    """What stands for the documents of a shard, both splits, and for the tokenizer."""
    plan = _plan_of_examples(wildcards)
    return sidecars([*(plan.documents(wildcards.shard, split) for split in SPLITS), plan.tokenizer])


@in_words
def example_documents(wildcards: Any) -> list[str]:
    """The documents of a shard, both splits."""
    plan = _plan_of_examples(wildcards)
    return strings([plan.documents(wildcards.shard, split) for split in SPLITS])


@in_words
def example_tokenizer(wildcards: Any) -> str:
    """The tokenizer they are encoded with."""
    return str(_plan_of_examples(wildcards).tokenizer)


@in_words
def shard_sidecars(wildcards: Any) -> list[str]:
    """The sidecars of all shards of examples, training first."""
    plan, phase = _phase_of_examples(wildcards)
    return sidecars([plan.examples(phase, shard, split) for split in SPLITS for shard in plan.shards])


@in_words
def table_settings(wildcards: Any) -> str:
    """`--settings JSON` with the keys of the objective that decide what is stored: the same for all recipes that share it."""
    plan, phase = _phase_of_examples(wildcards)
    return f"--settings {shlex.quote(canonical_json(plan.recipe.pretrain[phase].what_is_stored()))}"


@in_words
def language(wildcards: Any) -> str:
    """The language of the text, for the sentence splitter."""
    return shlex.quote(_plan_of_examples(wildcards).dataset.language)


@in_words
def dataset_in_words(wildcards: Any) -> dict[str, Any]:
    """What Croissant says of a dataset beside its content: edited words are written again."""
    dataset = PROJECT.dataset(wildcards.dataset)
    return dataset.model_dump(mode="json", include={"title", "licence", "homepage", "language"})


# --- training and after ------------------------------------------------------------------------------------------------------


def _plan_of_run(wildcards: Any) -> Plan:
    plan = PROJECT.plan(wildcards.recipe)
    if hasattr(wildcards, "fingerprint") and plan.fingerprint != wildcards.fingerprint:
        raise RelmError(
            f"recipe {wildcards.recipe} now has fingerprint {plan.fingerprint}, asked for {wildcards.fingerprint}: "
            "was it edited while this ran? Give the same command again"
        )
    return plan


@in_words
def manifest(wildcards: Any) -> str:
    """The manifest of a phase's examples; in an evaluation, of the last phase's."""
    plan = _plan_of_run(wildcards)
    return str(plan.manifest(getattr(wildcards, "phase", plan.phases[-1])))


@in_words
def shards(wildcards: Any) -> list[str]:
    """The training shards of a phase's examples; the manifest stands for their content, and a lost one is made again."""
    plan = _plan_of_run(wildcards)
    return strings([plan.examples(wildcards.phase, shard, "train") for shard in plan.shards])


@in_words
def tokenizer(wildcards: Any) -> str:
    """The recipe's tokenizer."""
    return str(_plan_of_run(wildcards).tokenizer)


@in_words
def starting_weights_sidecars(wildcards: Any) -> list[str]:
    """What stands for the starting weights."""
    return sidecars(_plan_of_run(wildcards).starting_weights(wildcards.phase)[:1])


@in_words
def starting_weights(wildcards: Any) -> list[str]:
    """The starting weights and their configuration."""
    return strings(_plan_of_run(wildcards).starting_weights(wildcards.phase))


@in_words
def start_options(wildcards: Any) -> str:
    """`--init-from FOLDER` where there are starting weights, and `--optimizer-from CHECKPOINT` where the optimizer is kept."""
    plan = _plan_of_run(wildcards)
    files, kept = plan.starting_weights(wildcards.phase), plan.kept_optimizer(wildcards.phase)
    start = [f"--init-from {shlex.quote(str(files[0].parent))}"] if files else []
    return " ".join([*start, *([f"--optimizer-from {shlex.quote(str(kept))}"] if kept else [])])


@in_words
def processes(wildcards: Any) -> int:
    """How many processes train together."""
    return PROJECT.plan(wildcards.recipe).recipe.run.processes


@in_words
def trainer_threads(wildcards: Any) -> int:
    """CPU threads of the trainer, as the recipe fixes them, over all its processes."""
    run = PROJECT.plan(wildcards.recipe).recipe.run
    return run.threads * run.processes if run.threads else 1_000_000  # Snakemake scales it down to the cores there are


def launcher(wildcards: Any, resources: Any) -> str:
    """What starts the trainer. Snakemake holds what comes of resources for no reason to train again."""
    return shlex.join(ranks.launcher(resources.processes))


def _final_model(wildcards: Any) -> Path:
    plan = _plan_of_run(wildcards)
    return plan.model_folder(plan.phases[-1]) / "model.safetensors"


@in_words
def final_model(wildcards: Any) -> str:
    """The weights of the last phase."""
    return str(_final_model(wildcards))


@in_words
def final_model_sidecar(wildcards: Any) -> str:
    """What stands for them."""
    return str(sidecar_of(_final_model(wildcards)))


@in_words
def context_option(wildcards: Any) -> int:
    """Tokens of context in the evaluation: what the last phase trained on."""
    return list(_plan_of_run(wildcards).recipe.pretrain.values())[-1].sequence_length


@in_words
def random_windows_options(wildcards: Any) -> str:
    """How many random windows are evaluated, and which."""
    recipe = _plan_of_run(wildcards).recipe
    batch_size = list(recipe.pretrain.values())[-1].global_batch_size
    return f"--batch-size {batch_size} --batches {recipe.random_windows.batches} --seed {recipe.random_windows.seed}"


@in_words
def evaluations(wildcards: Any) -> list[str]:
    """The figures of all tasks the recipe evaluates."""
    plan = _plan_of_run(wildcards)
    return strings([plan.evaluation(task) for task in plan.recipe.evaluate])


@in_words
def judged(wildcards: Any) -> list[Any]:
    """What the verdict depends on beside the figures: an edited expectation judges again and trains nothing."""
    return [row.model_dump(mode="json") for row in _plan_of_run(wildcards).recipe.expect]


@in_words
def described(wildcards: Any) -> dict[str, Any]:
    """What the report says beside the figures: edited words are reported again."""
    plan = _plan_of_run(wildcards)
    words = plan.recipe.model_dump(mode="json", include={"title", "paper", "source", "deviations", "expect", "run"})
    named = [plan.dataset, plan.tokenizer_model, plan.init_model]
    return {**words, "named": [part.model_dump(mode="json") if part else None for part in named]}


@in_words
def fingerprint(wildcards: Any) -> str:
    """What the recipe means now: `publish` refuses another run's files."""
    return PROJECT.plan(wildcards.recipe).fingerprint


@in_words
def published(wildcards: Any) -> dict[str, str]:
    """Every file that the report and the run give to `results/NAME`."""
    plan = PROJECT.plan(wildcards.recipe)
    folder = plan.run_folder
    return {
        "report": str(folder / "report" / "report.html"),
        "card": str(folder / "report" / "README.md"),
        "verdict": str(folder / "verify.json"),
        "model": str(sidecar_of(plan.model_folder(plan.phases[-1]) / "model.safetensors")),
    }


def papers() -> dict[str, list[str]]:
    """Paper key -> results of all its recipes; a recipe with faults is left out here and speaks up when it is asked for."""
    targets: dict[str, list[str]] = {}
    for name in PROJECT.names():
        with contextlib.suppress(RelmError):
            paper = PROJECT.plan(name).recipe.paper
            if paper is not None:
                targets.setdefault(paper.key, []).append(f"results/{name}")
    return targets


@in_words
def all_results(wildcards: Any) -> list[str]:
    """The results of all recipes."""
    return [f"results/{name}" for name in PROJECT.names()]


@in_words
def nearest_target(wildcards: Any) -> list[str]:
    """Nothing makes this target: say so, and name the nearest one."""
    results = [f"results/{prefix}{name}" for name in PROJECT.names() for prefix in ("", "smoke/")]
    targets = [*results, "all", "list", *(f"paper_{key}" for key in papers())]
    by_name = {target.removeprefix("results/"): target for target in targets}
    near = difflib.get_close_matches(wildcards.target, [*targets, *by_name], n=1, cutoff=0.5)
    hint = f"did you mean {by_name.get(near[0], near[0])}?" if near else "`snakemake list` shows what there is"
    raise RelmError(f"there is no target {wildcards.target!r}; {hint}")
