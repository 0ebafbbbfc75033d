"""Steps from examples to a model."""

import logging
import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from relm.artifact import atomic_file, seal, write_json
from relm.devices import ranks
from relm.errors import RelmError
from relm.recipes.devices import DEVICES, list_evaluation_devices
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.recipes.resolved import record_run
from relm.recipes.run_folder import DEVICE_FIGURES, FINAL_LOGS, MODEL_PARTS, RECORDS, RESOLVED
from relm.steps.contract import (
    FINGERPRINT,
    RECIPE,
    Arguments,
    Job,
    argument,
    command,
    given_path,
    path,
    plan_of,
    positive,
    process_count,
    step,
)
from relm.training.interruption import STOP_WITH_PARENT

logger = logging.getLogger(__name__)


@step(
    "train one phase of a recipe; after an interruption, the same command resumes it, with the same bytes as result",
    RECIPE,
    argument("--phase", required=True, metavar="PHASE", help="phase to train"),
    FINGERPRINT,
    path("--manifest", "the examples' manifest"),
    path("--tokenizer", "tokenizer.json"),
    path("--init-from", "folder of starting weights", required=False),
    path("--optimizer-from", "last checkpoint of the phase before, whose optimizer is kept", required=False),
    argument("--one-tpu", action="store_true", help="train on one device of a TPU, for debugging"),
    argument("--tpu-report", action="store_true", help="print PyTorch/XLA's metrics report at the end"),
    path("--output", "RUN/PHASE/model/model.safetensors; checkpoints and train.jsonl are written next to model/"),
    epilog="TERM or INT: saves a checkpoint and exits with 75. Where the recipe has run.processes: N, it is started as "
    "`relm --processes N pretrain ...`, or by torchrun or srun.",
)
def pretrain(a: Arguments) -> Job:
    from relm.examples.manifest import read_manifest
    from relm.training.loop import pretrain
    from relm.training.machine.fitting_micro_batch import fill_in_micro_batch
    from relm.training.machine.peak import fill_in_peak

    plan = plan_of(a)
    find_phase(plan, a.phase)
    refuse_another_start(plan, a)
    for option, given in (("--tpu-report", a.tpu_report), ("--one-tpu", a.one_tpu)):
        if given and option not in DEVICES[plan.recipe.run.device].training_options:
            raise RelmError(f"{option}: recipe {a.recipe} has run.device: {plan.recipe.run.device}; remove it")

    def run() -> str:
        with keep_checkpoints(plan):
            return train()

    def train() -> str:
        folder = a.output.parent.parent
        if not ranks.rank():
            write_json(folder.parent / RESOLVED, seal(record_run(plan)))
        fitted, choice = fill_in_micro_batch(plan, a.phase, read_manifest(a.manifest).tokenizer, folder / "checkpoints")
        for line in describe_machine(plan, choice):
            logger.info("%s", line)
        sentence = pretrain(
            fill_in_peak(fitted, a.phase).recipe,
            a.phase,
            manifest=a.manifest,
            tokenizer=a.tokenizer,
            init_from=a.init_from,
            model_folder=a.output.parent,
            run_fingerprint=plan.fingerprint,
            optimizer_from=a.optimizer_from,
            one_tpu=a.one_tpu,
            curve=plan.curve,
        )
        if not ranks.rank():
            _copy_logs(folder)
        if (figures := folder / DEVICE_FIGURES).is_file():  # only some devices write it
            outputs.append(figures)
        if a.tpu_report:
            from relm.devices.xla import metrics_report

            print(metrics_report())
        return sentence

    outputs = trained_files(plan, a.output)
    start = [a.init_from / name for name in ("model.safetensors", "config.json")] if a.init_from else []
    expected = plan.starting_sha256(a.phase)
    return Job(
        run,
        inputs=[a.manifest, a.tokenizer, *start],
        outputs=outputs,
        expected_sha256={file: expected[file.name] for file in start if file.name in expected},
    )


def keep_checkpoints(plan: Plan) -> AbstractContextManager[None]:
    """Keep a run's checkpoints in its store; where several processes train, the one that started them does so."""
    from relm.cluster.bucket.checkpoints import keep_in_store

    if ranks.ranks() == 1:
        return keep_in_store(plan)
    if plan.recipe.run.checkpoints_to is not None and STOP_WITH_PARENT not in os.environ:
        raise RelmError("run.checkpoints_to: several processes need `relm --processes N pretrain ...`; start them by that")
    return nullcontext()


def find_phase(plan: Plan, name: str) -> str:
    """Return the name of a phase that a recipe has."""
    if name not in plan.phases:
        raise RelmError(f"recipe {plan.name} has no phase {name!r}; it has {', '.join(plan.phases)}")
    return name


def _copy_logs(phase: Path) -> None:
    """Copy the logs of a finished phase, which training appends to, to the files that its rule declares."""
    for name in RECORDS:
        with open(phase / name, "rb") as log, atomic_file(phase / FINAL_LOGS / name) as copy:
            shutil.copyfileobj(log, copy)


def describe_machine(plan: Plan, choice: str | None) -> list[str]:
    """Return the lines that training prints at its start on a machine that is not the recipe's own."""
    return [] if plan.own_machine else [plan.recipe.deviations[-1], *([choice] if choice else [])]


def trained_files(plan: Plan, weights: Path) -> list[Path]:
    """Return the files of a finished phase, whose sha256 its record has; the weights come first."""
    parts = [*MODEL_PARTS, *(["generation_config.json"] if plan.recipe.model.generates else [])]
    phase = weights.parent.parent
    logs = [folder / name for folder in (phase, phase / FINAL_LOGS) for name in RECORDS]
    return [weights, *(weights.with_name(part) for part in parts), *logs]


def refuse_another_start(plan: Plan, a: Arguments) -> None:
    """Raise an error if a command starts a phase from other weights or optimizer state than the recipe."""
    starts, kept = plan.starting_weights(a.phase), plan.kept_optimizer(a.phase)
    if (a.init_from is None) != (not starts):
        wanted = f"--init-from {starts[0].parent}" if starts else "no --init-from: it starts with random weights"
        raise RelmError(f"phase {a.phase} of recipe {a.recipe} needs {wanted}")
    if kept is None and a.optimizer_from is not None:
        raise RelmError(f"phase {a.phase} of recipe {a.recipe} has optimizer_state: fresh; remove --optimizer-from")
    if kept is not None and (a.optimizer_from is None or a.optimizer_from.name != kept.name):
        raise RelmError(
            f"phase {a.phase} of recipe {a.recipe} has optimizer_state: kept; it needs --optimizer-from {kept}, the last "
            "checkpoint of the phase before"
        )


@command(
    "train a finished run again from one checkpoint to the next, and compare: bit for bit, elsewhere within a band",
    argument("folder", type=given_path, metavar="FOLDER", help="results/NAME, or work/runs/NAME/FINGERPRINT"),
    argument("--segment", type=int, metavar="K", help="from 0; default: the shortest that can be replayed"),
    argument("--list", action="store_true", help="list the segments instead, and which can be replayed"),
    argument("--phase", metavar="PHASE", help="which phase, where there are several"),
    path("--checkpoints", "where the checkpoints are; default: in the run's folder", required=False),
    argument("--device", choices=list_evaluation_devices, help="default: the one it was trained on"),
    argument("--threads", type=process_count, metavar="N", help="default: as it was trained"),
    argument("--micro-batch-size", type=positive, metavar="N", help="default: as it was trained"),
    epilog="Exits with 1 where the segment is not reproduced. A run of N processes gives the same bits with as many: "
    "`relm --processes N reproduce ...`.",
)
def reproduce(a: Arguments) -> str:
    if a.list:
        from relm.replay.attested_run import find_run

        return find_run(Project(), a.folder, a.phase, a.checkpoints).describe_segments()
    from relm.replay.segment import reproduce

    given = {"device": a.device, "threads": a.threads, "micro_batch_size": a.micro_batch_size}
    wanted = {key: value for key, value in given.items() if value is not None}
    return reproduce(Project(), a.folder, a.phase, a.segment, a.checkpoints, wanted)
