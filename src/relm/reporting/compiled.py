"""The TPU compiler's figures of a recipe for the report: a compiler's figures and arithmetic on them, nothing that ran."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from relm.errors import RelmError
from relm.forecast.compilation.consequence_lines import assumptions, describe_step, device, list_facts, list_paces, versions
from relm.forecast.compilation.consequences import consequences
from relm.recipes.recipe import Recipe
from relm.recipes.redaction import shorten_path
from relm.training.machine.compile_record import Compilation, read_compilation


class CompiledPhase(NamedTuple):
    """One phase's section of the page."""

    title: str
    facts: Sequence[tuple[str, str]]
    paces: Sequence[Sequence[str]]
    """Titles and rows: share of the roofline's speed, seconds of a step, tokens a second, hours, chip-hours."""
    assumptions: Sequence[str]


@dataclass(frozen=True)
class ReportedCompilation:
    """A run's `compile.json` and its sections of the page."""

    path: Path
    content: bytes
    compilation: Compilation | None
    """The content; None: it belongs to another recipe or an earlier version of this one, see `left_out`."""
    phases: Sequence[CompiledPhase]
    left_out: str = ""

    @property
    def title(self) -> str:
        """The heading, with the slice where it is known."""
        return f"As compiled for {self.compilation.topology}" if self.compilation else "As compiled"

    @property
    def introduction(self) -> str:
        """The source of the figures, or the reason why there are none."""
        if self.compilation is None:
            return f"compile.json is left out: {self.left_out}."
        return (
            f"Nothing here was run. The TPU's compiler ({versions(self.compilation)}) reports memory, operations and bytes for "
            f"one {device(self.compilation)} of {self.compilation.devices}; all times are arithmetic on these figures and on "
            f"published peaks. Vocabulary: {self.compilation.vocabulary}."
        )

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The entry in `provenance.json`."""
        assert self.compilation is not None
        programs = [
            {
                "phase": each.phase,
                "name": each.name,
                "sha256": each.compiled.program,
                "versions": each.compiled.versions,
                "fits": each.compiled.fits,
            }
            for each in self.compilation.programs
        ]
        return {
            "path": shorten_path(self.path),
            "sha256": hashlib.sha256(self.content).hexdigest(),
            "size": len(self.content),
            "topology": self.compilation.topology,
            "layout": self.compilation.layout,
            "programs": programs,
        }


def read_reported(path: Path, name: str, recipe: Recipe) -> ReportedCompilation:
    """Read `compile.json`; leave out one of another recipe or an earlier version, with the reason: a run is always reported."""
    content = path.read_bytes()
    try:
        compilation = read_compilation(path)
        if compilation.recipe != name:
            raise RelmError(f"it belongs to recipe {compilation.recipe}")
        phases = [
            CompiledPhase(
                describe_step(phase), list_facts(phase), paces := list_paces(phase), assumptions(phase) if paces else []
            )
            for phase in consequences(compilation, recipe)
        ]
    except RelmError as error:
        return ReportedCompilation(path, content, None, [], str(error).replace(f"{path}: ", ""))
    return ReportedCompilation(path, content, compilation, phases)
