"""How each command becomes a job: what it reads, what it writes, and the function of the package that does it.

Nothing heavy is imported before the step that needs it runs.
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from relm.catalogue import TOKENIZER_FILES, PretrainedModel, load_dataset, load_model
from relm.errors import RelmError
from relm.identity import digest, documents_identity, work_folder
from relm.objectives import Objective
from relm.plan import Plan, Project
from relm.recipe import DataChoice
from relm.section import validate

Arguments = argparse.Namespace


@dataclass(frozen=True)
class Job:
    """One step, ready to run: what it reads, what it writes, and the function that does it and says so in a sentence."""

    run: Callable[[], str]
    inputs: Sequence[Path] = ()
    outputs: Sequence[Path] = ()


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


def download_job(a: Arguments) -> Job:
    from relm.corpus.download import download
    from relm.corpus.own_model import copy_own_file

    if (a.dataset is None) == (a.model is None):
        raise RelmError("download: give either --dataset or --model")
    spec = a.dataset or a.model
    named = load_dataset(spec) if a.dataset else load_model(spec)
    if isinstance(named, PretrainedModel) and named.folder is not None:
        source = Path(named.folder).expanduser() / a.file
        return Job(lambda: copy_own_file(source, a.sha256, a.output), outputs=[a.output])
    files = dict(named.files)
    if a.file not in files:
        raise RelmError(f"{spec}: has no file {a.file!r}; it has {', '.join(files)}")
    if a.sha256 not in (None, files[a.file].sha256):
        raise RelmError(f"{spec}: {a.file} has sha256 {files[a.file].sha256} there, --sha256 is {a.sha256}; leave it out")
    return Job(lambda: download(a.file, files[a.file], a.output), outputs=[a.output])


def extract_job(a: Arguments) -> Job:
    from relm.corpus.extract import extract

    dataset = load_dataset(a.dataset)
    source = None if dataset.hub is not None else a.source
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

    return Job(run, inputs=[source] if source else [], outputs=list(outputs.values()))


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
    return Job(lambda: import_tokenizer(a.kind, files, a.output), inputs=a.files, outputs=[a.output])


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
    except json.JSONDecodeError as error:
        raise RelmError(f"--settings: not valid JSON ({error}); quote it for the shell, as in --settings '{{...}}'") from None
    if not isinstance(given, dict):
        raise RelmError(f"--settings: expected an object, found {settings}")
    if given.get("objective") != "masked":  # all others are stored whole, and cut to a length as they are read
        given = {"sequence_length": Objective.LONGEST, **given}
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


# --- training and evaluation -------------------------------------------------------------------------------------------------


def pretrain_job(a: Arguments) -> Job:
    from relm.training.loop import pretrain

    plan = plan_of(a)
    if a.phase not in plan.phases:
        raise RelmError(f"recipe {a.recipe} has no phase {a.phase!r}; it has {', '.join(plan.phases)}")
    refuse_another_start(plan, a)

    def run() -> str:
        places = a.manifest, a.tokenizer, a.init_from, a.output.parent
        return pretrain(plan.recipe, a.phase, *places, plan.fingerprint, a.optimizer_from)

    start = [a.init_from / name for name in ("model.safetensors", "config.json")] if a.init_from else []
    return Job(run, inputs=[a.manifest, a.tokenizer, *start], outputs=[a.output])


def refuse_another_start(plan: Plan, a: Arguments) -> None:
    """Compare a command's way to begin a phase with the recipe's.

    Raises:
        RelmError: it has starting weights or an optimizer and the recipe has none, or the other way round.
    """
    starts, kept = plan.starting_weights(a.phase), plan.kept_optimizer(a.phase)
    if (a.init_from is None) != (not starts):
        wanted = f"--init-from {starts[0].parent}" if starts else "no --init-from: it starts with random weights"
        raise RelmError(f"phase {a.phase} of recipe {a.recipe} needs {wanted}")
    if kept is None and a.optimizer_from is not None:
        raise RelmError(f"phase {a.phase} of recipe {a.recipe} has optimizer_state: fresh; leave --optimizer-from out")
    if kept is not None and (a.optimizer_from is None or a.optimizer_from.name != kept.name):
        raise RelmError(
            f"phase {a.phase} of recipe {a.recipe} has optimizer_state: kept; it needs --optimizer-from {kept}, the last "
            "checkpoint of the phase before"
        )


def rehearse_job(a: Arguments) -> Job:
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else torch's profiler tells stderr when it begins and ends
    from relm.launch.expected_tokenizer import tokenizer_of
    from relm.training.rehearsal import STEPS, Rehearsal, rehearse, require_options

    plan = plan_of(a)
    phase = a.phase or plan.phases[0]
    if phase not in plan.phases:
        raise RelmError(f"recipe {a.recipe} has no phase {phase!r}; it has {', '.join(plan.phases)}")
    require_options(a.steps, a.compile_only, a.profile)

    def run() -> str:
        tokenizer, known_from = tokenizer_of(plan, a.manifest, a.tokenizer)
        steps, only = a.steps or STEPS, a.compile_only
        found = rehearse(Rehearsal(plan.recipe, phase, tokenizer, a.manifest, steps, compile_only=only, trace=a.profile))
        return f"rehearsal of {plan.name}\ntokenizer: {known_from}\n{found}"

    return Job(run, inputs=[given for given in (a.manifest, a.tokenizer) if given])


def reproduce_job(a: Arguments) -> Job:
    from relm.training.replay import reproduce

    given = {"device": a.device, "threads": a.threads, "micro_batch_size": a.micro_batch_size}
    wanted = {key: value for key, value in given.items() if value is not None}
    return Job(lambda: reproduce(Project(), a.folder, a.phase, a.segment, a.checkpoints, wanted))


def evaluate_job(a: Arguments) -> Job:
    from relm.evaluation.perplexity import evaluate_held_out

    return Job(
        lambda: evaluate_held_out(a.model.parent, a.manifest, a.output, context=a.context, batch_size=a.batch_size),
        inputs=[a.model, a.manifest],
        outputs=[a.output],
    )


def random_windows_job(a: Arguments) -> Job:
    from relm.evaluation.random_windows import evaluate_random_windows

    sizes = {"context": a.context, "batch_size": a.batch_size, "batches": a.batches, "seed": a.seed}
    return Job(
        lambda: evaluate_random_windows(a.model.parent, a.manifest, a.output, **sizes),
        inputs=[a.model, a.manifest],
        outputs=[a.output],
    )


def samples_job(a: Arguments) -> Job:
    from relm.evaluation.samples import write_samples

    return Job(
        lambda: write_samples(a.model.parent, a.model.parent / "tokenizer.json", a.output, prompts=a.prompt, seed=a.seed),
        inputs=[a.model],
        outputs=[a.output],
    )


# --- reporting ---------------------------------------------------------------------------------------------------------------


def _by_task(files: Sequence[Path]) -> dict[str, Path]:
    return {file.stem: file for file in files if not file.name.endswith(".record.json")}


def verify_job(a: Arguments) -> Job:
    from relm.reporting.verify import verify

    plan = plan_of(a)
    return Job(
        lambda: verify(plan.recipe, plan.fingerprint, _by_task(a.evaluations), a.model, a.output),
        inputs=[a.model, *a.evaluations],
        outputs=[a.output],
    )


def report_job(a: Arguments) -> Job:
    from relm.reporting.report import write_report

    plan = plan_of(a)
    return Job(
        lambda: write_report(plan, a.verify, _by_task(a.evaluations), a.output.parent),
        inputs=[a.verify, *a.evaluations],
        outputs=[a.output],
    )


def publish_job(a: Arguments) -> Job:
    from relm.reporting.publish import publish, published_files

    plan = plan_of(a)
    return Job(lambda: publish(published_files(plan), a.output or plan.results))


# --- looking around ----------------------------------------------------------------------------------------------------------


def list_job(a: Arguments) -> Job:
    from relm.launch.status import describe_recipes

    return Job(lambda: describe_recipes(Project()))


def status_job(a: Arguments) -> Job:
    from relm.launch.status import describe_progress

    return Job(lambda: describe_progress(plan_of(a)))


def estimate_job(a: Arguments) -> Job:
    from relm.launch.estimate import describe_estimate

    plan = plan_of(a)
    return Job(lambda: describe_estimate(plan, a.phase, a.price_per_hour, calibrates=not a.no_calibration))


def doctor_job(a: Arguments) -> Job:
    from relm.launch.doctor import describe_machine

    return Job(describe_machine)


def schema_job(a: Arguments) -> Job:
    from relm.recipe_schema import write_schemas

    return Job(lambda: write_schemas(a.output))
