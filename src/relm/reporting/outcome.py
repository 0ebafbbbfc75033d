"""The outcome of a run in a line: its verdict, its most telling figures, and the page to open."""

from pathlib import Path
from typing import Any

from relm.errors import RelmError
from relm.reporting.result_files import read_evaluation, read_verdict

# The figures of an evaluation that tell most, the first one that it has, and the words around it.
HEADLINES = (
    ("nats_per_token", "{task} {value:.4f} nats per token"),
    ("masked_nats_per_token", "{task} {value:.4f} nats per masked token"),
    ("pseudo_perplexity", "{task} pseudo-perplexity {value:.3f}"),
    ("ambiguous_word_accuracy", "{task} {value:.2%} of ambiguous words right"),
    ("last_token_accuracy", "{task} {value:.2%} of last tokens right"),
    ("loss", "{task} {value:.4f} nats per token"),
)
BASELINE = "bigram_nats_per_token"


def describe_outcome(folder: Path) -> str:
    """Return a line on a published folder; an empty string if it is none."""
    try:
        verdict = read_verdict(folder / "verify.json")
        evaluations = [read_evaluation(path) for path in sorted((folder / "eval").glob("*.json"))]
    except (RelmError, OSError):
        return ""
    rows = verdict.get("rows", ())
    parts = [f"verdict {verdict['verdict']}: {verdict['sentence']}" if rows else "", _describe_figures(evaluations)]
    parts.append("a smoke twin, whose figures mean nothing" if folder.parent.name == "smoke" else "")
    told = "; ".join(part.rstrip(".") for part in parts if part)
    return f"{folder}: {told}; open {folder / 'report.html'}" if told else f"{folder}: open {folder / 'report.html'}"


def _describe_figures(evaluations: list[dict[str, Any]]) -> str:
    """Return the headline of the evaluation that tells most, with its baseline; an empty string without one."""
    for key, form in HEADLINES:
        for evaluation in evaluations:
            figures = evaluation.get("figures", {})
            if isinstance(value := figures.get(key), int | float):
                headline = form.format(task=str(evaluation.get("task", "")).replace("_", " "), value=value)
                return f"{headline}, bigrams {figures[BASELINE]:.4f}" if BASELINE in figures else headline
    return ""
