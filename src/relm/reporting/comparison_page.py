"""The page of a comparison: keys, figures, and the loss curves of both sides over each other, in one file."""

from collections.abc import Mapping
from pathlib import Path

from relm.artifact import atomic_file
from relm.reporting.charts import Chart, Series, draw_chart
from relm.reporting.comparison import RunComparison, Side
from relm.reporting.comparison_text import explain_differences, format_difference, format_figure
from relm.reporting.pages import template
from relm.reporting.runs_table import format_value
from relm.reporting.training_log import Log, read_log

# Styles of A and B in the chart, which dashes tell apart without colour.
STYLES = {"A": "training", "B": "second"}


def write_comparison_page(compared: RunComparison, path: Path) -> str:
    """Write the comparison as one HTML page that needs nothing else, and return a sentence with its path."""
    sides = {"A": compared.first, "B": compared.second}
    logs = {letter: read_log(side.logs) for letter, side in sides.items() if side.logs}
    page = template("diff.html").render(
        sides=sides,
        keys=compared.keys,
        figures=compared.figures,
        value=format_value,
        figure=format_figure,
        explanation=explain_differences(compared),
        difference=format_difference,
        chart=overlay_losses(logs, sides) if logs else None,
        missing=[side.label for letter, side in sides.items() if letter not in logs],
    )
    with atomic_file(path, "w") as file:
        file.write(page)
    return f"the curves are in {path}"


def overlay_losses(logs: Mapping[str, Log], sides: Mapping[str, Side]) -> Chart:
    """Return the chart of the training losses of one or both sides."""
    parts = [
        f"{letter}, {sides[letter].label}, from {log.losses[0]:.2f} to {log.losses[-1]:.2f} over {log.steps[-1]:,.0f} steps"
        for letter, log in logs.items()
    ]
    return draw_chart(
        "Loss",
        "nats per token",
        [
            Series(f"{letter}: {sides[letter].label}", STYLES[letter], log.steps, log.losses, is_noisy=True)
            for letter, log in logs.items()
        ],
        described=f"Training loss in nats per token: {'; '.join(parts)}.",
        last_step=max(float(log.steps[-1]) for log in logs.values()),
    )
