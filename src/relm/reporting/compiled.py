"""What the TPU's compiler said of a recipe, as a report tells it: a compiler's figures and arithmetic, nothing that ran."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from relm.errors import RelmError
from relm.forecast.compilation.compile_record import Compilation, read_compilation
from relm.forecast.compilation.consequence_lines import (
    assumptions,
    device,
    look_in_words,
    memory_in_words,
    roofline_in_words,
    versions,
    work_in_words,
)
from relm.forecast.compilation.consequences import PhaseConsequences, consequences
from relm.formatting import format_hours, format_step_time
from relm.recipes.recipe import Recipe
from relm.recipes.redaction import shorten_path


class PhaseTold(NamedTuple):
    """One phase, ready to be shown."""

    name: str
    rows: Sequence[tuple[str, str]]
    paces: Sequence[Sequence[str]]
    """Share of the roofline's speed, seconds of a step, tokens a second, hours, chip-hours."""
    assumptions: Sequence[str]


@dataclass(frozen=True)
class AsCompiled:
    """`compile.json` of a run."""

    path: Path
    content: bytes
    told: Compilation | None
    """None: it is not of this recipe as it is; `left_out` says why."""
    phases: Sequence[PhaseTold]
    left_out: str = ""

    @property
    def title(self) -> str:
        """What was compiled for, or nothing."""
        return f"As compiled for {self.told.topology}" if self.told else "As compiled"

    @property
    def introduction(self) -> str:
        """Whose figures they are."""
        if self.told is None:
            return f"compile.json is left out: {self.left_out}."
        return (
            f"Nothing here was run. Memory, operations and bytes are what the TPU's compiler ({versions(self.told)}) says of "
            f"one {device(self.told)} of {self.told.devices}; all times are arithmetic on them and on published peaks. "
            f"Vocabulary: {self.told.vocabulary}."
        )

    @property
    def provenance(self) -> Mapping[str, Any]:
        """What `provenance.json` says of it."""
        assert self.told is not None
        programs = [
            {
                "phase": each.phase,
                "name": each.name,
                "sha256": each.program.sha256,
                "key": each.compiled.key,
                "versions": each.compiled.versions,
                "options": each.compiled.options,
                "fits": each.compiled.fits,
            }
            for each in self.told.programs
        ]
        return {
            "path": shorten_path(self.path),
            "sha256": hashlib.sha256(self.content).hexdigest(),
            "size": len(self.content),
            "topology": self.told.topology,
            "layout": self.told.layout,
            "programs": programs,
        }


def as_compiled(path: Path, name: str, recipe: Recipe) -> AsCompiled:
    """Read it; what is not of this recipe as it is now is left out, with the reason: a run is reported in any case."""
    content = path.read_bytes()
    try:
        compilation = read_compilation(path)
        if compilation.recipe != name:
            raise RelmError(f"it is of recipe {compilation.recipe}")
        phases = [_told(phase) for phase in consequences(compilation, recipe)]
    except RelmError as error:
        return AsCompiled(path, content, None, [], str(error).replace(f"{path}: ", ""))
    return AsCompiled(path, content, compilation, phases)


def _told(phase: PhaseConsequences) -> PhaseTold:
    rows = [(f"memory, {name}", memory_in_words(compiled)) for name, compiled in phase.programs.items()]
    if phase.step is None or phase.roofline is None:
        return PhaseTold(phase.name, [*rows, ("time", "not known: a program of the step does not fit")], [], [])
    number = phase.micro_batches
    rows += [
        (f"a step of {number:,} micro-batch{'' if number == 1 else 'es'}", work_in_words(phase.step)),
        ("roofline", roofline_in_words(phase.roofline, phase.ceiling)),
    ]
    if phase.look is not None or phase.looks:
        rows.append(("held-out", look_in_words(phase)))
    paces = [
        [
            f"{pace.share:.0%}",
            format_step_time(pace.step_seconds),
            f"{pace.tokens_per_second:,.0f}",
            format_hours(pace.hours),
            format_hours(pace.chip_hours),
        ]
        for pace in phase.paces
    ]
    return PhaseTold(phase.name, rows, paces, assumptions(phase))
