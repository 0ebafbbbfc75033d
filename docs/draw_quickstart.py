"""Draw docs/quickstart-loss.svg from a finished quickstart: `make quickstart && python docs/draw_quickstart.py`.

The report's own charts are text of its page; the README needs a separate file.
"""

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from relm.artifact import atomic_file, read_json
from relm.reporting.charts import decimated, smoothed
from relm.reporting.training_log import Log, read_log

CHECKOUT = Path(__file__).resolve().parent.parent
RESULTS = CHECKOUT / "results" / "quickstart"
INK, FAINT, GRID, TRAINING = "#1f2933", "#5b6770", "#e4e8ec", "#0072b2"
# Okabe and Ito's palette (Color Universal Design), dark enough on white; dashes also distinguish the lines.
LEVELS: dict[str, tuple[str, str, Any]] = {
    "nats_per_token": ("held out", "#c04f00", "solid"),
    "bigram_nats_per_token": ("bigrams", "#007a5a", (0, (6, 3))),
    "unigram_nats_per_token": ("unigrams", "#a8497f", (0, (1.5, 2))),
}
SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "svg.hashsalt": "relm",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def main() -> None:
    figures = read_json(RESULTS / "eval" / "held_out.json")["figures"]
    drawing = draw(read_log({"main": RESULTS / "train.jsonl"}), figures)
    # A page may show it on black: it needs its own background.
    background = '<rect width="100%" height="100%" fill="white"/>'
    with atomic_file(CHECKOUT / "docs" / "quickstart-loss.svg", "w") as file:
        file.write(re.sub(r"(<svg[^>]*>)", rf"\1{background}", drawing, count=1))


def draw(log: Log, figures: Mapping[str, float]) -> str:
    """Return the SVG document."""
    with rc_context(SETTINGS):
        figure = Figure(figsize=(8.4, 3.9), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        _draw_losses(axes, log, figures)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None}, facecolor="white")
    return text.getvalue()


def _draw_losses(axes: Axes, log: Log, figures: Mapping[str, float]) -> None:
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    steps = decimated(log.steps)
    axes.plot(steps, decimated(log.losses), color=TRAINING, linewidth=0.8, alpha=0.35)
    axes.plot(steps, decimated(smoothed(log.losses, len(log.losses) // 40)), color=TRAINING, linewidth=2)
    lines = [(float(log.losses[-max(1, len(log.losses) // 20) :].mean()), "training", TRAINING)]
    for key, (label, colour, dashes) in LEVELS.items():
        axes.axhline(figures[key], color=colour, linewidth=1.6, linestyle=dashes)
        lines.append((figures[key], label, colour))
    axes.set_ylabel("loss (nats per token)")
    axes.set_xlabel("optimizer step")
    axes.set_xlim(0, float(log.steps[-1]) * 1.005)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    low, high = axes.get_ylim()
    ordered = sorted(lines)
    wanted = [(height - low) / (high - low) for height, *_ in ordered]
    for (height, label, colour), position in zip(ordered, spread(wanted, 0.07), strict=True):
        text = f"{label} {height:.2f}"
        axes.text(1.015, position, text, transform=axes.transAxes, color=colour, va="center", fontsize=9.5, fontweight="bold")


def spread(wanted: Sequence[float], spacing: float) -> list[float]:
    """Return positions near the sorted ``wanted`` ones that are at least ``spacing`` apart.

    Neighbours that are too close form a group, which is centred at the mean of its members' wanted positions.

    >>> [round(position, 3) for position in spread([0.5, 0.5, 0.9], 0.1)]
    [0.45, 0.55, 0.9]
    """
    groups: list[list[float]] = []
    for position in wanted:
        groups.append([position])
        while len(groups) > 1 and _start(groups[-1], spacing) < _start(groups[-2], spacing) + spacing * len(groups[-2]):
            last = groups.pop()
            groups[-1] += last
    return [_start(group, spacing) + spacing * number for group in groups for number in range(len(group))]


def _start(group: Sequence[float], spacing: float) -> float:
    return sum(group) / len(group) - spacing * (len(group) - 1) / 2


if __name__ == "__main__":
    main()
