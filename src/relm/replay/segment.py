"""Replay: a segment of an attested run is trained again and compared, bit for bit where sums are rounded alike.

Nothing in the run's folder is touched: a temporary folder in `work/` has links to the checkpoint that the segment begins with.
"""

import contextlib
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from safetensors import safe_open

from relm.artifact import read_json, require_sha256, sha256_of
from relm.devices.ranks import rank, ranks
from relm.errors import RelmError
from relm.examples.attestation import check_attestation
from relm.examples.builders import open_examples
from relm.examples.manifest import read_manifest
from relm.formatting import format_duration
from relm.recipes.devices import DEVICES
from relm.recipes.project import Project
from relm.recipes.recipe import Recipe
from relm.recipes.run_folder import CHECKPOINTS, LOG, ORDER, WEIGHTS, checkpoint_folder
from relm.recipes.section import validate
from relm.replay.attested_run import AttestedRun, Segment, find_run, read_lines
from relm.replay.recorded_files import files_in_words, wrong_files, wrong_inputs
from relm.replay.resemblance import (
    LOSS_WITH_OTHER_DRAWS,
    Band,
    Read,
    UpdateDifference,
    band_of,
    different_line,
    loss_difference,
    update_difference,
)
from relm.training.architecture import configuration, initial_model
from relm.training.interruption import Preempted
from relm.training.loop import pretrain
from relm.training.optimizers import weight_type
from relm.training.phase_run import derived_seed
from relm.training.shard_stamps import known_shards


class NotReproduced(RelmError):
    """A segment, trained again, is not what was attested."""


class Comparison(NamedTuple):
    """What came of it."""

    holds: bool
    verdict: str
    """How alike, where it holds."""
    said: list[str]
    """What was compared, and what was found."""


@dataclass(frozen=True)
class Replay:
    """A segment that was trained again."""

    run: AttestedRun
    segment: Segment
    recipe: Recipe
    folder: Path
    """What training left, like a phase's folder."""

    @property
    def end(self) -> Path:
        """The checkpoint after the last step."""
        return checkpoint_folder(self.folder / "checkpoints", self.segment.last)

    @property
    def made_on(self) -> dict[str, Any]:
        """On what it was trained again."""
        return dict(read_json(self.end / "state.json")["made_on"])

    @property
    def lines(self) -> dict[int, dict[str, Any]]:
        """Step -> line of train.jsonl."""
        return {line["step"]: line for line in read_lines(self.folder / LOG)}

    @property
    def seconds(self) -> float:
        """What its steps took."""
        start = self.segment.start
        before = read_json(self.run.checkpoint(start.step) / "state.json")["seconds"] if start else 0.0
        return float(read_json(self.end / "state.json")["seconds"] - before)

    def update(self) -> UpdateDifference | None:
        """How far the update is from the attested one; None where the checkpoint after the segment was not kept.

        Raises:
            RelmError: it is there, but is not the attested one.
        """
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
    """Train one segment of a run again and compare it; or, without a number, tell which there are.

    Args:
        folder: results/NAME or a run's folder.
        phase: may be left out where there is one.
        number: of the segment, from 0.
        checkpoints: where the checkpoints lie; None: in the run's folder.
        wanted: keys of a recipe's section `run` that are to differ from how it was trained.

    Returns:
        The verdict, what was compared, how long it took, and how long all of it would take.

    Raises:
        NotReproduced: it is not what was attested.
        RelmError: it cannot be trained again; what is lacking, damaged or another one is named.
        Preempted: TERM or INT came.
    """
    run = find_run(project, folder, phase, checkpoints)
    if number is None:
        return run.in_words()
    require_recorded(run)
    segment = run.segment(number)
    require_inputs(run)
    recipe = recipe_as_attested(run, segment, wanted)
    with scratch_folder(run, segment) as place:
        require_order(run, place)
        train_again(run, segment, recipe, place)
        if rank():
            return ""
        replay = Replay(run, segment, recipe, place)
        comparison = compared(replay)
        sentence = in_words(replay, comparison)
    if not comparison.holds:
        raise NotReproduced(sentence)
    return sentence


def require_recorded(run: AttestedRun) -> None:
    """Compare the files that are to be called reproduced with what was recorded of them, before anything is trained.

    Raises:
        NotReproduced: some are absent or others; names each.
        RelmError: what records them is absent or damaged.
    """
    if wrong := [*wrong_files(run), *run.differing_lines()]:
        listed = "\n  ".join(wrong)
        raise NotReproduced(
            f"NOT reproduced: {run.folder} is not as it was recorded, so nothing was trained:\n  {listed}\n"
            "bring these files back, or publish the run again"
        )


def require_inputs(run: AttestedRun) -> None:
    """Refuse to begin without examples, tokenizer and starting weights.

    Raises:
        RelmError: some are absent, and the command that makes them is named; some are not what the run read; or the starting
            weights are not the recipe's.
    """
    plan, phase = run.plan, run.phase
    shards = [plan.examples(phase, shard, "train") for shard in plan.shards]
    wanted = [*shards, plan.manifest(phase), plan.tokenizer, *plan.starting_weights(phase)]
    if absent := [str(path) for path in wanted if not path.exists()]:
        raise RelmError(f"{absent[0]}: no such file, and the segment is trained on it; `snakemake {' '.join(absent)}` makes it")
    expected = plan.starting_sha256(phase)
    for path in plan.starting_weights(phase):
        if path.name in expected:
            require_sha256(path, sha256_of(path), expected[path.name])
    if wrong := wrong_inputs(run):
        raise RelmError(f"{wrong[0]}: the run read another file; bring that back, or have Snakemake make it again")


def init_from(run: AttestedRun) -> Path | None:
    """The folder of the weights that a phase starts from; None: random ones."""
    weights = run.plan.starting_weights(run.phase)
    return weights[0].parent if weights else None


def recipe_as_attested(run: AttestedRun, segment: Segment, wanted: Mapping[str, Any]) -> Recipe:
    """The recipe, to be trained as the segment was, but for what is wanted otherwise.

    Its section `run` may have been edited since, so what decides anything is taken from the records.

    Raises:
        RelmError: no batch can be cut like that.
    """
    made_on = segment.end.made_on
    as_made = {
        "device": made_on["device"],
        "threads": made_on.get("threads"),
        "micro_batch_size": made_on["micro_batch_size"],
        "compile": made_on.get("compile", False),
        "deterministic": made_on.get("deterministic", True),
    }
    if wanted.get("device", made_on["device"]) != made_on["device"]:
        as_made |= {"threads": None, "compile": None}
    logged = math.gcd(*(step for step in run.lines(segment) if step > 1)) or run.settings.steps
    here: dict[str, Any] = {
        "log_interval": logged,
        "checkpoint_interval": run.settings.steps,
        "keep_checkpoints": 1,
        "keep_every": None,
        "validation_interval": None,
        "loggers": [],
        "processes": ranks(),
    }
    section = {**run.plan.recipe.run.model_dump(), **as_made, **wanted, **here}
    return validate(Recipe, {**run.plan.recipe.model_dump(), "run": section}, run.records[CHECKPOINTS])


@contextlib.contextmanager
def scratch_folder(run: AttestedRun, segment: Segment) -> Iterator[Path]:
    """A temporary phase's folder that stands where the segment begins."""
    with TemporaryDirectory(prefix="replay-", dir=run.plan.work) as name:
        place = Path(name) / run.phase
        place.mkdir()
        shutil.copyfile(run.records[ORDER], place / ORDER)
        if segment.start is not None:
            kept = run.checkpoint(segment.start.step)
            linked = place / "checkpoints" / kept.name
            linked.mkdir(parents=True)
            for file in (*segment.start.sha256, "state.json"):
                (linked / file).symlink_to((kept / file).resolve())
        yield place


def require_order(run: AttestedRun, place: Path) -> None:
    """Compare the examples that lie here, and their order, with the attested ones; their shards are hashed.

    Raises:
        RelmError: a shard is not the manifest's, or the run would read something else.
    """
    plan, phase, settings = run.plan, run.phase, run.settings
    manifest, seed = plan.manifest(phase), plan.recipe.seed
    with known_shards(place, manifest, ["train"], goes_on=False, writes=True) as check_content:
        examples = open_examples(manifest, "train", settings, derived_seed(seed, "masks", phase), check_content)
    facts = examples, derived_seed(seed, "order", phase), phase, settings.global_batch_size, settings.steps
    check_attestation(run.records[ORDER], *facts)


def train_again(run: AttestedRun, segment: Segment, recipe: Recipe, place: Path) -> None:
    """Take the segment's steps; after the last of the phase write the model as well.

    Raises:
        Preempted: TERM or INT came.
        RelmError: the checkpoint is of another run, or this machine cannot train it.
    """
    plan, phase = run.plan, run.phase
    until = segment.last if segment.last < run.settings.steps else None
    after = segment.start.step if segment.start else 0
    inputs = plan.manifest(phase), plan.tokenizer, init_from(run), place / "model"
    try:
        kept = plan.kept_optimizer(phase)
        pretrain(recipe, phase, *inputs, plan.fingerprint, until=until, optimizer_from=kept, resumes_after=after)
    except Preempted:
        raise Preempted(f"stopped before step {segment.last:,}; nothing was compared, and nothing is kept") from None


def compared(replay: Replay) -> Comparison:
    """Compare as strictly as the two machines allow."""
    attested, here = replay.segment.end.made_on, replay.made_on
    unlike = [
        f"{key} was {attested.get(key, 'nothing')}, is {here.get(key, 'nothing')}"
        for key in {**attested, **here}
        if attested.get(key) != here.get(key)
    ]
    if not unlike:
        return compared_bits(replay)
    if draws_alike(replay.recipe, attested, here):
        found = compared_updates(replay, band_of(replay.run.settings))
    else:
        found = compared_losses(replay, LOSS_WITH_OTHER_DRAWS, "dropout was drawn otherwise, so only the losses are compared: ")
    return found._replace(said=[f"not the same bits, for {', '.join(unlike)}", *found.said])


def compared_bits(replay: Replay) -> Comparison:
    """Compare files and lines, which must be the same where sums are rounded alike.

    Raises:
        RelmError: they are, but the run's own checkpoint after the segment is damaged.
    """
    run, segment = replay.run, replay.segment
    hashes = {name: sha256_of(replay.end / name) == attested for name, attested in segment.end.sha256.items()}
    if segment.last == run.settings.steps and run.weights.exists():
        hashes[str(run.weights)] = sha256_of(run.weights) == sha256_of(replay.folder / "model" / WEIGHTS)
    lines = run.lines(segment)
    difference = different_line(lines, replay.lines)
    wrong = [name for name, same in hashes.items() if not same]
    if not wrong and difference is None:
        if run.is_kept(segment.end):
            run.require_attested(segment.end)
        files = f"{', '.join(hashes)} after step {segment.last:,} have the attested sha256"
        return Comparison(True, "identical", [files, f"{len(lines)} lines of train.jsonl are the same, times aside"])
    said = [f"{', '.join(wrong)} after step {segment.last:,} not of the attested sha256"] if wrong else []
    said += [f"train.jsonl: {difference}"] if difference else ["train.jsonl is the same"]
    try:
        update = replay.update()
    except RelmError as error:
        return Comparison(False, "", [*said, str(error)])
    return Comparison(False, "", said + ([update.in_words(band_of(run.settings))] if update else []))


def draws_alike(recipe: Recipe, attested: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Whether dropout hides the same numbers in both places: on a CPU for any number of threads, on a GPU on the same one."""
    keys = ["device", "micro_batch_size", "compile", *DEVICES[attested["device"]].draws_depend_on]
    rates = [rate for key, rate in recipe.model.model_dump().items() if key.endswith("dropout")]
    return not any(rates) or all(attested.get(key) == here.get(key) for key in keys)


def compared_updates(replay: Replay, band: Band) -> Comparison:
    """Where sums are rounded otherwise: updates and losses must lie within a band."""
    losses, update = compared_losses(replay, band.loss, ""), replay.update()
    if update is None:
        end = replay.run.checkpoint(replay.segment.last)
        return losses._replace(said=[f"{end} is gone, so only the losses are compared", *losses.said])
    return losses._replace(holds=losses.holds and update.within(band), said=[update.in_words(band), *losses.said])


def compared_losses(replay: Replay, band: float, why: str) -> Comparison:
    """The losses of train.jsonl alone.

    Raises:
        RelmError: the segment has no line.
    """
    lines = replay.run.lines(replay.segment)
    difference = loss_difference(lines, replay.lines)
    if difference is None:
        raise RelmError(
            f"{replay.run.records[LOG]}: has no line of steps {replay.segment.first:,} to {replay.segment.last:,}, so there is "
            "nothing to compare: replay another segment, or this one as it was trained"
        )
    said = f"{why}the {len(lines)} losses of train.jsonl are {difference:.1e} apart (band {band:g})"
    return Comparison(difference <= band, "within the band", [said])


def in_words(replay: Replay, comparison: Comparison) -> str:
    """The verdict, and what it rests on."""
    run, segment = replay.run, replay.segment
    total, seconds = run.settings.steps, replay.seconds
    place = f"segment {segment.number} of {run.plan.name}, phase {run.phase}, steps {segment.first:,} to {segment.last:,}"
    cost = f"{segment.steps:,} of {total:,} steps ({segment.steps / total:.2%}) in {format_duration(seconds)}"
    whole = f"all of them would take {format_duration(seconds / segment.steps * total)} here"
    verdict = comparison.verdict if comparison.holds else "NOT reproduced"
    checked = "; ".join([*files_in_words(run), *attested_in_words(run, segment)])
    return f"{verdict}: {place}: {'; '.join(comparison.said)}; {ORDER} holds; {cost}, {whole}. Checked before: {checked}"


def attested_in_words(run: AttestedRun, segment: Segment) -> list[str]:
    """Return what was compared with `checkpoints.jsonl` beside the replay, and what an earlier version did not attest."""
    told, ends = [], [one.end for one in run.segments]
    if lines := sum(end.log["lines"] for end in ends if end.log is not None):
        told.append(f"{lines} lines of {LOG} are those that {CHECKPOINTS} attests")
    if segment.start is not None:
        state = " and state.json" if segment.start.state_sha256 else ""
        told.append(f"{', '.join(segment.start.sha256)}{state} of step {segment.start.step:,} are the attested ones")
        ends.append(segment.start)
    unattested = sorted({end.step for end in ends if end.log is None or end.state_sha256 is None})
    if unattested:
        steps = f"{unattested[0]:,}" + (f" to {unattested[-1]:,}" if len(unattested) > 1 else "")
        told.append(
            f"not checked, for an earlier version of relm attested neither: the content of state.json and the lines of {LOG}, "
            f"at checkpoints of step {steps}"
        )
    return told
