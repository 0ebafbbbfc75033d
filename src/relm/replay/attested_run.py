"""The records in a published folder, or in a run's folder, that attest one phase: its machine, inputs and checkpoints.

A segment is the steps from one line of `checkpoints.jsonl` to the next; segment 0 begins with the phase. Imports no torch.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from relm.artifact import sha256_of
from relm.errors import RelmError
from relm.json_shapes import ANY, COUNT, LINE, Kind, read_shaped, require_shape
from relm.plan.products import published_name
from relm.recipes.phase import Phase
from relm.recipes.plan import Plan
from relm.recipes.project import Project
from relm.recipes.run_folder import CHECKPOINT_FILES, CHECKPOINTS, LOG, RECORDS, WEIGHTS, checkpoint_folder
from relm.training.attested_hashes import line_facts, read_lines, state_sha256
from relm.training.checkpoint_state import STATE, read_state

_HASHES = Kind(
    f"hashes of {' and '.join(CHECKPOINT_FILES)}", lambda value: isinstance(value, dict) and set(value) == set(CHECKPOINT_FILES)
)
# A line of checkpoints.jsonl; an earlier version did not attest state and log.
_CHECKPOINT = {
    "step": COUNT,
    "sha256": _HASHES,
    "made_on": {"device": ANY, "micro_batch_size": ANY},
    "state_sha256?": LINE,
    "log?": {"lines": COUNT, "sha256": LINE},
}
_FINGERPRINT = re.compile(r"[0-9a-f]{12}")


class AttestedCheckpoint(NamedTuple):
    """A line of `checkpoints.jsonl`."""

    step: int
    sha256: Mapping[str, str]
    """Maps a file to its sha256."""
    made_on: Mapping[str, Any]
    """The device and options that decide how sums are rounded."""
    state_sha256: str | None
    """The sha256 of `state.json`; None: an earlier version did not attest it."""
    log: Mapping[str, Any] | None
    """`line_facts` of the lines of `train.jsonl` since the checkpoint before; None: an earlier version did not attest them."""


class Segment(NamedTuple):
    """The steps between two checkpoints."""

    number: int
    start: AttestedCheckpoint | None
    """None: the beginning of the phase."""
    end: AttestedCheckpoint

    @property
    def first(self) -> int:
        """Its first step."""
        return self.start.step + 1 if self.start else 1

    @property
    def last(self) -> int:
        """Its last step."""
        return self.end.step

    @property
    def steps(self) -> int:
        """The count of its steps."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class AttestedRun:
    """One phase of a run, and the paths of its records."""

    plan: Plan
    folder: Path
    """`results/NAME`, or the run's folder."""
    is_published: bool
    phase: str
    records: Mapping[str, Path]
    """Maps each name of RECORDS to its path."""
    checkpoints: Path
    weights: Path
    """The path of the finished model, which may not exist."""
    segments: Sequence[Segment]

    @property
    def settings(self) -> Phase:
        """The phase's section of the recipe."""
        return self.plan.recipe.pretrain[self.phase]

    def checkpoint(self, step: int) -> Path:
        """Return the folder of a step's checkpoint, which may no longer exist."""
        return checkpoint_folder(self.checkpoints, step)

    def is_kept(self, checkpoint: AttestedCheckpoint) -> bool:
        """Return True if a checkpoint still exists."""
        folder = self.checkpoint(checkpoint.step)
        return all((folder / name).is_file() for name in (*checkpoint.sha256, STATE))

    def can_be_replayed(self, segment: Segment) -> bool:
        """Return True if a segment's first checkpoint exists."""
        return segment.start is None or self.is_kept(segment.start)

    def cheapest_segment(self) -> int:
        """Return the number of the shortest segment that can be replayed, the last of several; segment 0 always can be."""
        return min(filter(self.can_be_replayed, self.segments), key=lambda segment: (segment.steps, -segment.number)).number

    def segment(self, number: int) -> Segment:
        """Return a segment whose first checkpoint exists and is undamaged."""
        if not 0 <= number < len(self.segments):
            raise RelmError(f"{self.records[CHECKPOINTS]}: its segments are 0 to {len(self.segments) - 1}, found {number}")
        segment = self.segments[number]
        if segment.start is None:
            return segment
        if not self.is_kept(segment.start):
            there = ", ".join(str(each.number) for each in filter(self.can_be_replayed, self.segments))
            raise RelmError(
                f"{self.checkpoint(segment.start.step)}: segment {number} begins with this checkpoint, which no longer exists. "
                f"Replay one of segments {there}, or pass --checkpoints FOLDER; run.keep_every keeps some for ever"
            )
        self.require_attested(segment.start)
        return segment

    def require_attested(self, checkpoint: AttestedCheckpoint) -> None:
        """Compare the files of a checkpoint with their attested hashes."""
        for name, attested in checkpoint.sha256.items():
            path = self.checkpoint(checkpoint.step) / name
            if (found := sha256_of(path)) != attested:
                raise RelmError(
                    f"{path}: sha256 is {found}, but {self.records[CHECKPOINTS]} attests {attested}. Restore the checkpoint "
                    "that the run wrote, or replay another segment"
                )
        self._require_state(checkpoint)

    def _require_state(self, checkpoint: AttestedCheckpoint) -> None:
        """Compare `state.json` of a checkpoint with its attested facts."""
        path, way_out = self.checkpoint(checkpoint.step) / STATE, "restore it, or replay another segment"
        state = read_state(path.parent, way_out)
        if state["sha256"] != dict(checkpoint.sha256):
            raise RelmError(f"{path}: belongs to other files; {way_out}")
        named = {"fingerprint": self.plan.fingerprint, "phase": self.phase}
        for key, value in {"step": checkpoint.step, **named, "made_on": dict(checkpoint.made_on)}.items():
            if state.get(key) != value:
                raise RelmError(f"{path}: {key} is {state.get(key)}, but {value} is attested; {way_out}")
        if not {"loss", "seconds"} <= state.keys():
            raise RelmError(f"{path}: loss or seconds is missing; {way_out}")
        if checkpoint.state_sha256 not in (None, state_sha256(state)):
            raise RelmError(f"{path}: differs from the state that {self.records[CHECKPOINTS]} attests; {way_out}")

    def differing_lines(self) -> list[str]:
        """Return a sentence for each segment of `train.jsonl` that lacks lines, or differs from the attested ones."""
        path, lines, steps = self.records[LOG], read_lines(self.records[LOG]), self.settings.steps
        faults = []
        for segment in self.segments:
            found = line_facts(line for line in lines if segment.first <= line["step"] <= segment.last)
            if segment.end.log is not None and found != segment.end.log:
                attested, span = segment.end.log.get("lines"), f"steps {segment.first:,} to {segment.last:,}"
                same_count = f"its {attested} lines of {span} are not those"
                other_count = f"has {found['lines']} lines of {span}, but {attested} are those"
                faults.append(f"{path}: {same_count if found['lines'] == attested else other_count} that were attested")
        length = self.segments[0].end.made_on.get("updates_per_call", 1)
        first = length if type(length) is int else 1
        required = {first, steps} if self.is_finished else {first}
        for step in sorted(required - {line["step"] for line in lines}):
            faults.append(f"{path}: has no line of step {step:,}, which training always writes")
        last = self.segments[-1].last
        if self.is_finished and last != steps:
            faults.append(f"{self.records[CHECKPOINTS]}: ends with step {last:,}, but the finished phase has {steps:,}")
        if lines and lines[-1]["step"] > steps:
            faults.append(f"{path}: ends with step {lines[-1]['step']:,}, but the phase has {steps:,}")
        return faults

    @property
    def is_finished(self) -> bool:
        """True if the phase was trained to its end."""
        return self.is_published or self.weights.exists()

    def lines(self, segment: Segment) -> dict[int, dict[str, Any]]:
        """Return a segment's lines of `train.jsonl` by step."""
        return {line["step"]: line for line in read_lines(self.records[LOG]) if segment.first <= line["step"] <= segment.last}

    def recorded_seconds(self, segment: Segment) -> float:
        """Return the seconds that a segment took, to the nearest lines of `train.jsonl`; 0 if no line has them."""
        lines = [line for line in read_lines(self.records[LOG]) if "seconds" in line]
        until = [[line["seconds"] for line in lines if line["step"] <= step] for step in (segment.first - 1, segment.last)]
        before, after = (seconds[-1] if seconds else 0.0 for seconds in until)
        return max(0.0, float(after - before))

    def describe_segments(self) -> str:
        """Return a table of all segments."""
        rows = [
            f"{segment.number:>7}  {segment.first:>11,} to {segment.last:<11,}  "
            + ("can be replayed" if self.can_be_replayed(segment) else "its first checkpoint is gone")
            for segment in self.segments
        ]
        title = f"{self.plan.name}, phase {self.phase}, {self.settings.steps:,} steps; checkpoints in {self.checkpoints}"
        return "\n".join([title, "segment  steps", *rows, "--segment K trains one of them again"])


def find_run(project: Project, folder: Path, phase: str | None, checkpoints: Path | None = None) -> AttestedRun:
    """Return one phase of the run in a folder, with its records.

    Args:
        folder: results/NAME or a copy of it, or work/runs/NAME/FINGERPRINT[/PHASE].
        phase: None: that in the folder's path, or the only one.
        checkpoints: their folder; None: that in the run's folder.
    """
    if not folder.is_dir():
        raise RelmError(f"{folder}: no such folder; give the results/NAME of a finished run, or its folder in work/runs")
    published = (folder / "recipe.json").is_file()
    remedy = "it differs from what `relm publish` wrote"
    stated = read_shaped(folder / "recipe.json", {"name": LINE, "fingerprint": LINE}, remedy) if published else None
    name, fingerprint, inside = (stated["name"], stated["fingerprint"], None) if stated else _parts_of(folder)
    recipe_plan = project.plan(name)
    plan = recipe_plan.find_run(fingerprint)
    if plan is None:
        raise RelmError(
            f"{folder}: belongs to a run with fingerprint {fingerprint}, but {project.recipe_path(name)} has "
            f"{recipe_plan.fingerprint}: data, model or training changed since; check out the commit in provenance.json"
        )
    phase = _phase(plan, phase or inside)
    own = plan.run_folder / phase
    records = {name: folder / published_name(name, phase, plan.phases) if published else own / name for name in RECORDS}
    is_last = phase == plan.phases[-1]
    return AttestedRun(
        plan=plan,
        folder=folder if published else plan.run_folder,
        is_published=published,
        phase=phase,
        records=records,
        checkpoints=checkpoints or own / "checkpoints",
        weights=folder / WEIGHTS if published and is_last else own / "model" / WEIGHTS,
        segments=_segments(records[CHECKPOINTS], plan.recipe.pretrain[phase].steps),
    )


def _parts_of(folder: Path) -> tuple[str, str, str | None]:
    """Return NAME, FINGERPRINT and PHASE of a run's folder .../runs/NAME/FINGERPRINT[/PHASE]; NAME may have a slash."""
    parts = folder.resolve().parts
    fingerprints = [index for index, part in enumerate(parts) if _FINGERPRINT.fullmatch(part)]
    if "runs" in parts and fingerprints:
        last = fingerprints[-1]
        first = max(index for index, part in enumerate(parts[:last]) if part == "runs") + 1
        after = parts[last + 1 :]
        if first < last and len(after) < 2:
            return "/".join(parts[first:last]), parts[last], after[0] if after else None
    raise RelmError(
        f"{folder}: not the folder of a finished run; pass results/NAME with its recipe.json, or work/runs/NAME/FINGERPRINT"
    )


def is_run_folder(folder: Path) -> bool:
    """Return True for the path of a run's folder, .../runs/NAME/FINGERPRINT[/PHASE]."""
    try:
        return bool(_parts_of(folder))
    except RelmError:
        return False


def run_of_folder(folder: Path) -> str:
    """Return the name of the run with this folder."""
    return _parts_of(folder)[0]


def _phase(plan: Plan, wanted: str | None) -> str:
    if wanted is None and len(plan.phases) == 1:
        return plan.phases[0]
    if wanted not in plan.phases:
        fault = f"has no phase {wanted!r}" if wanted else "has several phases"
        raise RelmError(f"recipe {plan.name} {fault}; pass --phase {' or '.join(plan.phases)}")
    return wanted


def _segments(path: Path, steps: int) -> list[Segment]:
    lines, fault = read_lines(path), "it differs from what training wrote"
    require_shape(lines, [_CHECKPOINT], str(path), fault)
    found = [
        AttestedCheckpoint(line["step"], line["sha256"], line["made_on"], line.get("state_sha256"), line.get("log"))
        for line in lines
    ]
    if not found or found[-1].step > steps:
        last = f"has step {found[-1].step:,}, but the phase has {steps:,}" if found else "has no checkpoint"
        raise RelmError(f"{path}: {last}; {fault}")
    return [Segment(number, start, end) for number, (start, end) in enumerate(zip([None, *found], found, strict=False))]
