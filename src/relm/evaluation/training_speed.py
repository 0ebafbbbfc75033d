"""Time and speed of training from its log, as published runs state them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from relm.errors import RelmError
from relm.evaluation.runner import Scored, evaluation
from relm.recipes.evaluation.evaluation_job import PhaseLength
from relm.recipes.run_folder import MACHINES
from relm.training.attested_hashes import read_lines
from relm.training.machine.history import machines_of
from relm.training.model_files import checked_model

DESCRIPTION = (
    "By the run's own log: wall time from the first step to the last over all attempts whose steps count, compilation, "
    "checkpoints and looks at held-out examples included; and the median speed between two lines of the log, the first of each "
    "phase left out."
)
LAST_LINES = 10
"""Lines at the end of a phase's log over which its losses are averaged."""


@evaluation
def evaluate_training(
    model_folder: Path, phases: Mapping[str, PhaseLength], logs: Sequence[Path], trained_on: Mapping[str, str]
) -> Scored:
    """Read the `train.jsonl` of each phase in order; the model is the last phase's."""
    if len(logs) != len(phases):
        raise RelmError(f"--logs names {len(logs)} files; give the train.jsonl of each phase: {', '.join(phases)}")
    seconds, speeds, machines, own = 0.0, list[float](), {}, dict[str, float]()
    for (name, length), log in zip(phases.items(), logs, strict=True):
        rows = _rows(log, length.steps)
        taken, count = rows[-1]["seconds"], length.steps * length.global_batch_size
        found = {"minutes": taken / 60, "sequences_per_second": count / taken} if len(phases) > 1 else {}
        found |= _last_losses(rows)
        seconds += taken
        own |= {f"{name}_{figure}": value for figure, value in found.items()}
        if stretches := machines_of(rows):
            machines[name] = stretches
        speeds += [row["samples_per_second"] for row in rows[1:] if "samples_per_second" in row]
    sequences = sum(length.steps * length.global_batch_size for length in phases.values())
    last = {key: value for key, value in rows[-1].items() if key.startswith("validation_") and key.endswith("loss")}
    figures = {
        "minutes": seconds / 60,
        "sequences_per_second": sequences / seconds,
        **({"steady_sequences_per_second": median(speeds)} if speeds else {}),
        "steps": sum(length.steps for length in phases.values()),
        "sequences": sequences,
        **own,
        **last,
    }
    if not all(math.isfinite(value) for value in figures.values()):
        raise RelmError(f"{logs[-1]}: the seconds are {seconds}, expected finite numbers; train the phase again")
    protocol: dict[str, Any] = {"in_words": DESCRIPTION, "made_on": dict(trained_on), "phases": list(phases)}
    protocol |= {MACHINES: machines} if machines else {}
    protocol |= {"last_lines": LAST_LINES} if any(figure.endswith("_loss") for figure in own) else {}
    sentence = f"training took {figures['minutes']:.1f} minutes, {figures['sequences_per_second']:.2f} sequences/s"
    return Scored(figures, protocol, checked_model(model_folder / "model.safetensors")["sha256"], sentence)


def _last_losses(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return TERM_loss -> its mean over the last lines of a log, for losses of several terms such as BERT's."""
    last = rows[-LAST_LINES:]
    terms = [key for key in last[-1] if key.endswith("_loss") and not key.startswith("validation_")]
    found = {term: [float(row[term]) for row in last if term in row] for term in terms} if len(terms) > 1 else {}
    return {term: sum(values) / len(values) for term, values in found.items()}


def _rows(log: Path, steps: int) -> list[dict[str, Any]]:
    """Return all rows of a phase's log."""
    rows = read_lines(log)
    if not rows or rows[-1]["step"] != steps:
        found = f"ends at step {rows[-1]['step']:,.0f}" if rows else "is empty"
        raise RelmError(f"{log}: {found}, expected step {steps:,}, the last; train the phase again")
    return rows
