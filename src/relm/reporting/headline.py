"""The top of a report and the last line of a terminal: what the run is, in a few figures, and what it reached."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from relm.errors import RelmError
from relm.formatting import format_count, format_duration, format_price
from relm.recipes.devices import HOST
from relm.recipes.plan import Plan
from relm.reporting.figures import FIGURES
from relm.reporting.result_files import read_evaluation, read_verdict


class Fact(NamedTuple):
    """One figure of the top, with a note beneath."""

    name: str
    value: str
    note: str = ""


class Trained(NamedTuple):
    """The trained model and the hardware that trained it."""

    parameters: int | None
    tokens: int
    processors: str
    """The hosts' processors, or the devices, as the steps recorded them."""
    machines: int
    """The count of machines that trained, one after another."""


def run_facts(plan: Plan, trained: Trained, seconds: float | None) -> list[Fact]:
    """Return what a run is: parameters, tokens, time, throughput, hardware, and the cost on one machine with a price."""
    facts = []
    if trained.parameters is not None:
        facts.append(Fact("parameters", format_count(trained.parameters), plan.recipe.model.architecture))
    steps = sum(phase.steps for phase in plan.recipe.pretrain.values())
    facts.append(Fact("training tokens", format_count(trained.tokens), f"in {steps:,} steps"))
    if seconds:
        facts.append(Fact("training time", format_duration(seconds), "without evaluation"))
        facts.append(Fact("throughput", format_rate(trained.tokens / seconds), "tokens per second"))
    if plan.machine is None or plan.machine.device == HOST:
        facts.append(Fact("hardware", trained.processors or "not recorded"))
    else:
        facts.append(Fact("hardware", str(plan.recipe.run.machine), plan.machine.title))
    if plan.machine is not None and plan.machine.price is not None and seconds and trained.machines == 1:
        price = plan.machine.price
        facts.append(
            Fact("cost", format_price(price.usd_per_hour * seconds / 3600), f"at ${price.usd_per_hour:g} an hour, {price.date}")
        )
    return facts


def format_rate(value: float) -> str:
    """Return a count per second with at least three digits.

    >>> format_rate(13884.2), format_rate(3.14159)
    ('13,884', '3.14')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def describe_gain(evaluations: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what the model reached, without a published figure: its gain over counts of pairs, or its main figure.

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
    """Return a sentence on the loss on held-out documents and that of counts; empty if it was not measured."""
    figures = evaluations.get("held_out", {}).get("figures", {})
    if "nats_per_token" not in figures:
        return ""
    counts = (("bigram_nats_per_token", "bigram"), ("unigram_nats_per_token", "unigram"))
    beside = [f"{figures[key]:.4f} for {name} counts" for key, name in counts if key in figures]
    against = f", against {' and '.join(beside)}" if beside else ""
    return f"On held-out documents: {figures['nats_per_token']:.4f} nats per token{against}."


def describe_outcome(folder: Path) -> str:
    """Return a line on a published folder: its verdict, its main figure, and the page to open; empty if it is none."""
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
