"""Trains a segment of an attested run again and compares it, bit for bit if sums are rounded alike.

The run's folder does not change: a temporary folder in `work/` links to the segment's first checkpoint.
"""

import contextlib
import logging
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from safetensors import safe_open

from relm.artifact import require_sha256, sha256_of
from relm.devices.ranks import rank, ranks
from relm.errors import RelmError
from relm.examples.attestation import check_attestation
from relm.examples.builders import open_examples
from relm.examples.manifest import read_manifest
from relm.formatting import format_duration
from relm.recipes.devices import DEVICES, PRECISION, complete_description
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe
from relm.recipes.run_folder import CHECKPOINTS, LOG, LOGS, ORDER, WEIGHTS, checkpoint_folder
from relm.recipes.section import validate
from relm.replay.attested_run import AttestedRun, Segment, find_run
from relm.replay.recorded_files import describe_attested, describe_checked_files, find_wrong_inputs, wrong_files
from relm.replay.resemblance import (
    LOSS_WITH_OTHER_DRAWS,
    Band,
    Read,
    UpdateDifference,
    band_of,
    first_difference,
    loss_difference,
    update_difference,
)
from relm.training.architecture import configuration, initial_model
from relm.training.attested_hashes import read_lines
from relm.training.checkpoint_state import read_state, write_state
from relm.training.interruption import Preempted
from relm.training.loop import pretrain
from relm.training.optimizers import weight_type
from relm.training.phase_run import derived_seed
from relm.training.shard_stamps import known_shards, stamps_of

log = logging.getLogger(__name__)


class NotReproduced(RelmError):
    """Raised if a segment, trained again, differs from the attested one."""


class Comparison(NamedTuple):
    """The result of comparing a replay with the attested run."""

    holds: bool
    verdict: str
    """Identical, or within the band; empty if it does not hold."""
    sentences: list[str]


@dataclass(frozen=True)
class Replay:
    """A segment that was trained again."""

    run: AttestedRun
    segment: Segment
    recipe: Recipe
    folder: Path
    """A folder like a phase's."""

    @property
    def end(self) -> Path:
        """The checkpoint after the last step."""
        return checkpoint_folder(self.folder / "checkpoints", self.segment.last)

    @property
    def made_on(self) -> dict[str, Any]:
        """The device and options of the new training."""
        return dict(read_state(self.end)["made_on"])

    @property
    def lines(self) -> dict[int, dict[str, Any]]:
        """The new lines of train.jsonl by step."""
        lines = {line["step"]: line for line in read_lines(self.folder / LOG)}
        if self.made_on.get("updates_per_call", 1) == 1:
            return lines
        # If a device takes several updates in a call, its lines are at the ends of calls and do not show the log interval: the
        # replay writes one for each call.
        return {step: line for step, line in lines.items() if step in self.run.lines(self.segment)}

    @property
    def seconds(self) -> float:
        """The duration of its steps."""
        start = self.segment.start
        before = read_state(self.run.checkpoint(start.step))["seconds"] if start else 0.0
        return float(read_state(self.end)["seconds"] - before)

    def update(self) -> UpdateDifference | None:
        """Return the update's difference from the attested one; None: the segment's last checkpoint was not kept."""
        run, segment = self.run, self.segment
        if not run.is_kept(segment.end):
            return None
        run.require_attested(segment.end)
        with contextlib.ExitStack() as stack:

            def reader(folder: Path) -> Any:
                return stack.enter_context(safe_open(folder / WEIGHTS, framework="pt"))

            attested, replayed = reader(run.checkpoint(segment.end.step)), reader(self.end)
            start = reader(run.checkpoint(segment.start.step)).get_tensor if segment.start else self._initial_weights()
            return update_difference(list(attested.keys()), start, attested.get_tensor, replayed.get_tensor)

    def _initial_weights(self) -> Read:
        plan, phase = self.run.plan, self.run.phase
        config = configuration(self.recipe, read_manifest(plan.manifest(phase)).tokenizer)
        model = initial_model(config, derived_seed(self.recipe.seed, "weights"), init_from(self.run))
        return model.to(weight_type(self.run.settings.optimizer)).state_dict().__getitem__


def reproduce(
    project: Project, folder: Path, phase: str | None, number: int | None, checkpoints: Path | None, wanted: Mapping[str, Any]
) -> str:
    """Train one segment of a run again, compare it, and return the verdict with the comparisons.

    Raise NotReproduced if it differs, or a RelmError if a file is missing.

    Args:
        folder: results/NAME or a run's folder.
        number: the segment's number, from 0; None: the shortest that can be replayed.
        wanted: keys of a recipe's section `run` with values that replace those of the attested training.
    """
    run = find_run(project, folder, phase, checkpoints)
    require_recorded(run)
    segment = run.segment(run.cheapest_segment() if number is None else number)
    require_inputs(run)
    took, span = format_duration(run.recorded_seconds(segment)), f"steps {segment.first:,} to {segment.last:,}"
    log.info("training segment %d, %s, again; it took %s", segment.number, span, took)
    recipe = recipe_as_attested(run, segment, wanted)
    with scratch_folder(run, segment) as scratch:
        require_order(run, scratch)
        train_again(run, segment, recipe, scratch)
        if rank():
            return ""
        replay = Replay(run, segment, recipe, scratch)
        comparison = compare(replay)
        sentence = describe_comparison(replay, comparison)
    if not comparison.holds:
        raise NotReproduced(sentence)
    return sentence


def require_recorded(run: AttestedRun) -> None:
    """Compare the run's files with their records, before anything is trained."""
    if wrong := [*wrong_files(run), *run.differing_lines()]:
        listed = "\n  ".join(wrong)
        raise NotReproduced(
            f"NOT reproduced: {run.folder} differs from its records, so nothing was trained:\n  {listed}\n"
            "restore these files, or publish the run again"
        )


def require_inputs(run: AttestedRun) -> None:
    """Raise if examples, tokenizer or starting weights are missing or differ from the run's."""
    plan, phase = run.plan, run.phase
    wanted = [*plan.examples_jobs[phase].files("train"), plan.manifest(phase), plan.tokenizer, *plan.starting_weights(phase)]
    if absent := [str(path) for path in wanted if not path.exists()]:
        raise RelmError(f"{absent[0]}: no such file, but the segment needs it; `snakemake {' '.join(absent)}` makes it")
    expected = plan.starting_sha256(phase)
    for path in plan.starting_weights(phase):
        if path.name in expected:
            require_sha256(path, sha256_of(path), expected[path.name])
    if wrong := find_wrong_inputs(run):
        raise RelmError(f"{wrong[0]}: the run read another file; restore that, or make it again with Snakemake")


def init_from(run: AttestedRun) -> Path | None:
    """Return the folder of a phase's starting weights; None: random ones."""
    weights = run.plan.starting_weights(run.phase)
    return weights[0].parent if weights else None


def recipe_as_attested(run: AttestedRun, segment: Segment, wanted: Mapping[str, Any]) -> Recipe:
    """Return the recipe with the options of the attested training, except those in `wanted`.

    The section `run` may have been edited since, so all options that affect results come from the records.
    """
    made_on = segment.end.made_on
    as_made = {
        "device": made_on["device"],
        "threads": made_on.get("threads"),
        "micro_batch_size": made_on["micro_batch_size"],
        "compile": made_on.get("compile", False),
        "deterministic": made_on.get("deterministic", True),
        PRECISION: made_on.get(PRECISION),
    }
    device = wanted.get("device", made_on["device"])
    if device != made_on["device"]:
        as_made |= {"threads": None, "compile": None, PRECISION: None}
    if not DEVICES[device].pipelined:
        as_made |= {"pipeline": None}
    logged = math.gcd(*(step for step in run.lines(segment) if step > 1)) or run.settings.steps
    here: dict[str, Any] = {
        "log_interval": logged,
        "checkpoint_interval": run.settings.steps,
        "keep_checkpoints": 1,
        "keep_every": None,
        "validation_interval": None,
        "loggers": [],
        "processes": 1 if DEVICES[device].pipelined else ranks(),
    }
    section = {**run.plan.recipe.run.model_dump(), **as_made, **wanted, **here}
    return validate(Recipe, {**run.plan.recipe.model_dump(), "run": section}, run.records[CHECKPOINTS])


@contextlib.contextmanager
def scratch_folder(run: AttestedRun, segment: Segment) -> Iterator[Path]:
    """Make a temporary folder for the phase, with the segment's first checkpoint."""
    with TemporaryDirectory(prefix="replay-", dir=run.plan.work) as name:
        scratch = Path(name) / run.phase
        scratch.mkdir()
        shutil.copyfile(run.records[ORDER], scratch / ORDER)
        if segment.start is not None:
            kept = run.checkpoint(segment.start.step)
            linked = scratch / "checkpoints" / kept.name
            linked.mkdir(parents=True)
            for file in segment.start.sha256:
                (linked / file).symlink_to((kept / file).resolve())
            # A replay has no lines of earlier steps.
            write_state(linked, {key: value for key, value in read_state(kept).items() if key != LOGS})
        yield scratch


def require_order(run: AttestedRun, scratch: Path) -> None:
    """Compare the examples on this machine, and their order, with the attested ones; hash their shards."""
    plan, phase, settings = run.plan, run.phase, run.settings
    manifest, seed = plan.manifest(phase), plan.recipe.seed
    with known_shards(scratch, stamps_of(manifest, ["train"]), resumes=False, writes=True) as check_content:
        examples = open_examples(manifest, "train", settings, derived_seed(seed, "masks", phase), check_content)
    facts = examples, derived_seed(seed, "order", phase), phase, settings.global_batch_size, settings.steps
    check_attestation(run.records[ORDER], *facts)


def train_again(run: AttestedRun, segment: Segment, recipe: Recipe, scratch: Path) -> None:
    """Take the segment's steps; after the last of the phase write the model as well."""
    plan, phase = run.plan, run.phase
    until = segment.last if segment.last < run.settings.steps else None
    after = segment.start.step if segment.start else 0
    inputs = plan.manifest(phase), plan.tokenizer, init_from(run), scratch / "model"
    try:
        kept = plan.kept_optimizer(phase)
        pretrain(recipe, phase, *inputs, plan.fingerprint, until=until, optimizer_from=kept, resumes_after=after)
    except Preempted:
        raise Preempted(f"stopped before step {segment.last:,}; nothing was compared, and nothing is kept") from None


def compare(replay: Replay) -> Comparison:
    """Compare a replay with the attested run as strictly as the two machines allow."""
    attested, here = complete_description(replay.segment.end.made_on), complete_description(replay.made_on)
    unlike = [
        f"{key} was {attested.get(key, 'nothing')}, is {here.get(key, 'nothing')}"
        for key in {**attested, **here}
        if attested.get(key) != here.get(key)
    ]
    if not unlike:
        return compare_bits(replay)
    if draws_same_masks(replay.recipe, attested, here):
        found = compare_updates(replay, band_of(replay.run.settings))
    else:
        found = compare_losses(
            replay, LOSS_WITH_OTHER_DRAWS, "dropout was drawn differently, so only the losses are compared: "
        )
    return found._replace(sentences=[f"not the same bits, because {', '.join(unlike)}", *found.sentences])


def compare_bits(replay: Replay) -> Comparison:
    """Compare files and lines, which must be equal if sums are rounded alike."""
    run, segment = replay.run, replay.segment
    hashes = {name: sha256_of(replay.end / name) == attested for name, attested in segment.end.sha256.items()}
    if segment.last == run.settings.steps and run.weights.exists():
        hashes[str(run.weights)] = sha256_of(run.weights) == sha256_of(replay.folder / "model" / WEIGHTS)
    lines = run.lines(segment)
    difference = first_difference(lines, replay.lines)
    wrong = [name for name, same in hashes.items() if not same]
    if not wrong and difference is None:
        if run.is_kept(segment.end):
            run.require_attested(segment.end)
        files = f"{', '.join(hashes)} after step {segment.last:,} have the attested sha256"
        return Comparison(True, "identical", [files, f"{len(lines)} lines of train.jsonl are the same except times"])
    sentences = [f"{', '.join(wrong)} after step {segment.last:,} differ from the attested sha256"] if wrong else []
    sentences += [f"train.jsonl: {difference}"] if difference else ["train.jsonl is the same"]
    try:
        update = replay.update()
    except RelmError as error:
        return Comparison(False, "", [*sentences, str(error)])
    return Comparison(False, "", sentences + ([update.describe(band_of(run.settings))] if update else []))


def draws_same_masks(recipe: Recipe, attested: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Return True if dropout draws the same masks on both machines; the device declares on which facts that depends."""
    keys = ["device", "micro_batch_size", "compile", *DEVICES[attested["device"]].draws_depend_on]
    rates = [rate for key, rate in recipe.model.model_dump().items() if key.endswith("dropout")]
    return not any(rates) or all(attested.get(key) == here.get(key) for key in keys)


def compare_updates(replay: Replay, band: Band) -> Comparison:
    """Compare updates and losses, which must be within a band if sums are rounded differently."""
    losses, update = compare_losses(replay, band.loss, ""), replay.update()
    if update is None:
        end = replay.run.checkpoint(replay.segment.last)
        return losses._replace(sentences=[f"{end} no longer exists, so only the losses are compared", *losses.sentences])
    return losses._replace(holds=losses.holds and update.within(band), sentences=[update.describe(band), *losses.sentences])


def compare_losses(replay: Replay, band: float, reason: str) -> Comparison:
    """Compare only the losses of train.jsonl."""
    lines = replay.run.lines(replay.segment)
    difference = loss_difference(lines, replay.lines)
    if difference is None:
        raise RelmError(
            f"{replay.run.records[LOG]}: no line of steps {replay.segment.first:,} to {replay.segment.last:,} to compare. "
            "Replay another segment, or this one with the options of its training"
        )
    sentence = f"{reason}the {len(lines)} losses of train.jsonl are {difference:.1e} apart (band {band:g})"
    return Comparison(difference <= band, "within the band", [sentence])


def describe_comparison(replay: Replay, comparison: Comparison) -> str:
    """Return the verdict with the comparisons that support it."""
    run, segment = replay.run, replay.segment
    total, seconds = run.settings.steps, replay.seconds
    name = f"segment {segment.number} of {run.plan.name}, phase {run.phase}, steps {segment.first:,} to {segment.last:,}"
    cost = f"{segment.steps:,} of {total:,} steps ({segment.steps / total:.2%}) in {format_duration(seconds)}"
    whole = f"all of them would take {format_duration(seconds / segment.steps * total)} here"
    verdict = comparison.verdict if comparison.holds else "NOT reproduced"
    checked = "; ".join([*describe_checked_files(run), *describe_attested(run, segment)])
    return f"{verdict}: {name}: {'; '.join(comparison.sentences)}; {ORDER} holds; {cost}, {whole}. Checked before: {checked}"
