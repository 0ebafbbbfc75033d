"""Time and speed of training, from its own log, as published runs state them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from relm.errors import RelmError
from relm.evaluation.result import Result
from relm.recipes.evaluation.evaluation_job import PhaseLength
from relm.recipes.run_folder import MACHINES
from relm.training.attested_hashes import read_lines
from relm.training.machine_history import machines_of
from relm.training.model_files import checked_model

DESCRIPTION = (
    "By the run's own log: wall time from the first step to the last over all attempts whose steps count, compilation, "
    "checkpoints and looks at held-out examples included; and the median speed between two lines of the log, the first of each "
    "phase left out."
)


LAST_LINES = 10
"""Lines at the end of a phase's log over which its losses are averaged."""


@dataclass(frozen=True)
class LoggedPhase:
    """A finished phase and its log."""

    name: str
    log: Path
    """Its `train.jsonl`."""
    steps: int
    sequences: int
    """Sequences of a global batch."""


def evaluate_training(phases: Sequence[LoggedPhase], model: Path, output: Path, task: str, made_on: Mapping[str, str]) -> str:
    """Read the logs of all phases and write `eval/training.json`.

    Args:
        phases: in order.
        model: the weights of the last one, with their sidecar.
        output: the JSON file.
        task: the name of the evaluation.
        made_on: device and topology, for the protocol.
    """
    seconds, speeds, machines, own = 0.0, list[float](), {}, dict[str, float]()
    for phase in phases:
        rows = _rows(phase)
        seconds += rows[-1]["seconds"]
        found = {**(_speed_of_phase(phase, rows) if len(phases) > 1 else {}), **_last_losses(rows)}
        own |= {f"{phase.name}_{figure}": value for figure, value in found.items()}
        if stretches := machines_of(rows):
            machines[phase.name] = stretches
        speeds += [row["samples_per_second"] for row in rows[1:] if "samples_per_second" in row]
    sequences = sum(phase.steps * phase.sequences for phase in phases)
    last = {key: value for key, value in rows[-1].items() if key.startswith("validation_") and key.endswith("loss")}
    figures = {
        "minutes": seconds / 60,
        "sequences_per_second": sequences / seconds,
        **({"steady_sequences_per_second": median(speeds)} if speeds else {}),
        "steps": sum(phase.steps for phase in phases),
        "sequences": sequences,
        **own,
        **last,
    }
    if not all(math.isfinite(value) for value in figures.values()):
        raise RelmError(f"{phases[-1].log}: its seconds are {seconds}; train the phase again")
    protocol: dict[str, Any] = {"in_words": DESCRIPTION, "made_on": dict(made_on), "phases": [phase.name for phase in phases]}
    protocol |= {MACHINES: machines} if machines else {}
    protocol |= {"last_lines": LAST_LINES} if any(figure.endswith("_loss") for figure in own) else {}
    Result(task=task, protocol=protocol, figures=figures, model_sha256=checked_model(model)["sha256"]).write(output)
    return f"training took {figures['minutes']:.1f} minutes, {figures['sequences_per_second']:.2f} sequences/s"


def evaluate_logs(
    *,
    model_folder: Path,
    output: Path,
    task: str,
    phases: Mapping[str, PhaseLength],
    logs: Sequence[Path],
    trained_on: Mapping[str, str],
) -> str:
    """Write `eval/training.json` with the arguments of the declared evaluation.

    Args:
        model_folder: folder of the last phase's model.
        output: the JSON file.
        task: the name of the evaluation.
        phases: phase -> its length, in order.
        logs: the `train.jsonl` of each phase, in this order.
        trained_on: device and topology, for the protocol.
    """
    if len(logs) != len(phases):
        raise RelmError(f"--logs names {len(logs)} files; give the train.jsonl of each phase: {', '.join(phases)}")
    logged = [
        LoggedPhase(name, log, length.steps, length.global_batch_size)
        for (name, length), log in zip(phases.items(), logs, strict=True)
    ]
    return evaluate_training(logged, model_folder / "model.safetensors", output, task, made_on=trained_on)


def _speed_of_phase(phase: LoggedPhase, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the minutes and the speed of one phase of several."""
    seconds = rows[-1]["seconds"]
    return {"minutes": seconds / 60, "sequences_per_second": phase.steps * phase.sequences / seconds}


def _last_losses(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return TERM_loss, the mean over the last lines of a log, for losses of several terms such as BERT's."""
    last = rows[-LAST_LINES:]
    terms = [key for key in last[-1] if key.endswith("_loss") and not key.startswith("validation_")]
    found = {term: [float(row[term]) for row in last if term in row] for term in terms} if len(terms) > 1 else {}
    return {term: sum(values) / len(values) for term, values in found.items()}


def _rows(phase: LoggedPhase) -> list[dict[str, Any]]:
    """Return all rows of a phase's log."""
    rows = read_lines(phase.log)
    if not rows or rows[-1]["step"] != phase.steps:
        found = f"ends at step {rows[-1]['step']:,.0f}" if rows else "is empty"
        raise RelmError(f"{phase.log}: {found}, expected step {phase.steps:,}, the last; train the phase again")
    return rows
