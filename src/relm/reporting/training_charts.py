"""The charts of a finished run: loss, learning rate, gradient norm, throughput, memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from relm.formatting import GIB
from relm.recipes.run_folder import COLUMNS
from relm.reporting.charts import Chart, Curve, Level, Mark, Series, draw_chart
from relm.reporting.training_log import Log

# Maps a figure of eval/held_out.json to its label and style in the chart of the loss.
LEVELS = {
    "nats_per_token": ("held out", "held-out"),
    "bigram_nats_per_token": ("bigram counts", "bigrams"),
    "unigram_nats_per_token": ("unigram counts", "unigrams"),
}
TABLE_ROWS = 12


class PublishedCurve(NamedTuple):
    """A published loss curve with its band; arrays of shape (rows,)."""

    phase: str
    steps: Curve
    """Optimizer steps of the phase."""
    losses: Curve
    half_widths: Curve


@dataclass(frozen=True)
class _Column:
    """The form of the chart of one column of the log."""

    column: str
    title: str
    unit: str
    is_noisy: bool
    divisor: float = 1.0

    def form(self, value: float) -> str:
        """Return a value as text."""
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}".replace("e-0", "e-")


OTHERS = (
    _Column("learning_rate", "Learning rate", "of the optimizer's step", is_noisy=False),
    _Column("gradient_norm", "Gradient norm", "before clipping", is_noisy=True),
    _Column("tokens_per_second", "Throughput", "tokens per second", is_noisy=True),
    _Column("memory_bytes", "Memory", "peak of one process or device, GiB", is_noisy=False, divisor=GIB),
)


def training_charts(
    log: Log, levels: Mapping[str, Any], published: PublishedCurve | None = None, verdict: str = ""
) -> list[Chart]:
    """Return the chart of the loss, with the `LEVELS` of eval/held_out.json as lines, and one chart for each other column."""
    phases = [Mark(start, "phase", phase) for phase, start in log.starts.items()] if len(log.starts) > 1 else []
    marks = [*phases, *(Mark(at, "interruption", f"resumed after step {at:,.0f}") for at in log.interruptions)]
    last_step = float(log.steps[-1])
    found = [_loss_chart(log, levels, published, marks, verdict)]
    for each in OTHERS:
        values = log.columns[each.column] / each.divisor
        if np.isfinite(values).any():
            found.append(
                draw_chart(
                    each.title,
                    each.unit,
                    [Series(each.title.lower(), "plain", log.steps, values, is_noisy=each.is_noisy)],
                    marks=marks,
                    described=_describe(each, values),
                    last_step=last_step,
                    from_zero=True,
                    may_be_logarithmic=each.column == "gradient_norm",
                    form=each.form,
                )
            )
    return found


def _loss_chart(
    log: Log, levels: Mapping[str, Any], published: PublishedCurve | None, marks: Sequence[Mark], verdict: str
) -> Chart:
    series = [Series("training", "training", log.steps, log.losses, is_noisy=True)]
    if np.isfinite(log.columns["validation_loss"]).any():
        series.append(Series("validation", "validation", log.steps, log.columns["validation_loss"]))
    if published is not None:
        steps = published.steps + log.starts[published.phase]
        series.insert(0, Series("published", "published", steps, published.losses, published.half_widths))
    return draw_chart(
        "Loss",
        "nats per token",
        series,
        levels=[Level(*LEVELS[key], float(levels[key])) for key in LEVELS if levels.get(key) is not None],
        marks=marks,
        described=describe_loss(log, verdict),
        last_step=float(log.steps[-1]),
        form=lambda value: f"{value:.3f}",
    )


def describe_loss(log: Log, verdict: str = "") -> str:
    """Return a sentence on the loss, for readers who cannot see the chart."""
    published = f" The published curve is drawn with its band: {verdict}." if verdict else ""
    return (
        f"Training loss from {log.losses[0]:.2f} to {log.losses[-1]:.2f} nats per token over "
        f"{log.steps[-1]:,.0f} optimizer steps.{published}"
    )


def _describe(column: _Column, values: Curve) -> str:
    known = values[np.isfinite(values)]
    first, last, least, most = (column.form(float(value)) for value in (known[0], known[-1], known.min(), known.max()))
    return f"{column.title} ({column.unit}) from {first} to {last}, between {least} and {most}."


def tabulate_values(log: Log) -> tuple[list[str], list[list[str]]]:
    """Return titles and rows of a table of some rows of the log."""
    columns = [name for name in COLUMNS if np.isfinite(log.columns[name]).any()]
    rows = np.unique(np.rint(np.linspace(0, len(log.steps) - 1, TABLE_ROWS)).astype(int))
    forms = {column.column: column for column in OTHERS}

    def cell(name: str, row: int) -> str:
        value = float(log.columns[name][row])
        if np.isnan(value):
            return ""
        return forms[name].form(value / forms[name].divisor) if name in forms else f"{value:.4f}"

    titles = ["step", *(name.replace("_bytes", " (GiB)").replace("_", " ") for name in columns)]
    return titles, [[f"{log.steps[row]:,.0f}", *(cell(name, row) for name in columns)] for row in rows]
