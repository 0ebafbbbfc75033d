"""The top of a report and the last line of a terminal: what a run reached."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relm.errors import RelmError
from relm.reporting.figures import FIGURES
from relm.reporting.result_files import read_evaluation, read_verdict


def describe_gain(evaluations: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what the model reached: its gain over bigram counts, or its main figure.

    >>> describe_gain({"held_out": {"figures": {"nats_below_bigram": 0.4314, "bits_per_byte": 2.187}}})
    '0.43 nats per token better than bigram counts, 2.19 bits per byte'
    """
    figures = evaluations.get("held_out", {}).get("figures", {})
    parts = []
    if (gain := figures.get("nats_below_bigram")) is not None:
        parts.append(f"{abs(gain):.2f} nats per token {'worse' if gain < 0 else 'better'} than bigram counts")
    if (bits := figures.get("bits_per_byte")) is not None:
        parts.append(f"{bits:.2f} bits per byte")
    known = (
        f"{name} {value:{form}}"
        for evaluation in evaluations.values()
        for key, (name, form, _) in FIGURES.items()
        if isinstance(value := evaluation["figures"].get(key), int | float)
    )
    return ", ".join(parts) or next(known, "")


def describe_measured(evaluations: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a sentence on the held-out loss of the model and of token counts; empty if it was not measured."""
    figures = evaluations.get("held_out", {}).get("figures", {})
    if "nats_per_token" not in figures:
        return ""
    counts = (("bigram_nats_per_token", "bigram"), ("unigram_nats_per_token", "unigram"))
    baselines = [f"{figures[key]:.4f} for {name} counts" for key, name in counts if key in figures]
    against = f", against {' and '.join(baselines)}" if baselines else ""
    return f"On held-out documents: {figures['nats_per_token']:.4f} nats per token{against}."


def describe_outcome(folder: Path) -> str:
    """Return a line on a published folder: verdict, main figure, page to open; empty if the folder has no verdict."""
    try:
        verdict = read_verdict(folder / "verify.json")
        evaluations = {path.stem: read_evaluation(path) for path in sorted((folder / "eval").glob("*.json"))}
    except (RelmError, OSError):
        return ""
    measured = describe_measured(evaluations) or describe_gain(evaluations)
    parts = [
        f"verdict {verdict['verdict']}: {verdict['sentence']}" if verdict["rows"] else "",
        f"{measured[:1].lower()}{measured[1:]}",
        "a smoke twin, whose figures mean nothing" if folder.parent.name == "smoke" else "",
        f"open {folder / 'report.html'}",
    ]
    return f"{folder}: {'; '.join(part.rstrip('.') for part in parts if part)}"
