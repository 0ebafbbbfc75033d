"""The loss curve of a run as SVG text: the same bytes for the same log, in colours for colour-blind readers too."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from relm.errors import RelmError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = NDArray[np.float64]
POINTS = 400  # more than a page can show; longer logs are averaged in bins of equal length
SMOOTHED_FROM = 100  # rows; a shorter log is not smoothed

# Okabe and Ito's palette (Color Universal Design), dark enough on white.
INK, FAINT, GRID = "#1f2933", "#5b6770", "#e4e8ec"
TRAINING, RATE, PUBLISHED = "#0072b2", "#5b6770", "#8a4b00"
# Maps a figure of eval/held_out.json to its label, colour and dashes, which also distinguish the lines without colour.
LEVELS: dict[str, tuple[str, str, Any]] = {
    "nats_per_token": ("held out", "#c04f00", "solid"),
    "bigram_nats_per_token": ("bigrams", "#007a5a", (0, (6, 3))),
    "unigram_nats_per_token": ("unigrams", "#a8497f", (0, (1.5, 2))),
}


@dataclass(frozen=True)
class PublishedCurve:
    """A published loss curve with its band; arrays of shape (rows,)."""

    phase: str
    steps: Curve
    """Optimizer steps of the phase."""
    losses: Curve
    half_widths: Curve


@dataclass(frozen=True)
class Log:
    """The rows of one or several train.jsonl that hold a loss; arrays of shape (rows,)."""

    steps: Curve
    """Optimizer steps, counted on over the phases."""
    losses: Curve
    """Nats per token."""
    rates: Curve
    """Learning rates."""
    starts: dict[str, float]
    """The step at which each phase begins."""


def read_log(logs: Mapping[str, Path]) -> Log:
    """Return the training logs of all phases in sequence. Where a resumed run wrote a step again, the later row counts."""
    columns: list[Curve] = []
    starts: dict[str, float] = {}
    begin = 0.0
    for phase, path in logs.items():
        rows = dict(_rows(path))
        if not rows:
            raise RelmError(f"{path}: no line has a step and a loss; delete the run's folder of phase {phase} and train again")
        table = np.array([(step, *rows[step]) for step in sorted(rows)], dtype=np.float64)
        table[:, 0] += begin
        starts[phase] = begin
        begin = float(table[-1, 0])
        columns.append(table)
    steps, losses, rates = np.concatenate(columns).T
    return Log(steps, losses, rates, starts)


def _rows(path: Path) -> Iterator[tuple[float, tuple[float, float]]]:
    """Yield (step, (loss, learning rate)) of each line that has them."""
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    raise RelmError(f"{path}, line {number}: not a JSON object ({error}); was the disk full?") from None
                if isinstance(row, dict) and "step" in row and row.get("loss") is not None:
                    yield float(row["step"]), (float(row["loss"]), float(row.get("learning_rate", np.nan)))
    except FileNotFoundError:
        raise RelmError(f"{path}: no such file; it is written while training") from None


def decimated(values: Curve, points: int = POINTS) -> Curve:
    """Return means over consecutive bins of equal length, ``(rows,) -> (at most points,)``; short arrays stay unchanged."""
    size = -(-len(values) // points)
    if size <= 1:
        return values
    bins = np.arange(0, len(values), size)
    means: Curve = np.add.reduceat(values, bins) / np.diff(np.append(bins, len(values)))
    return means


def smoothed(values: Curve, width: int) -> Curve:
    """Centred running mean of ``width`` rows, narrower towards both ends, ``(rows,) -> (rows,)``."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    rows = np.arange(len(values))
    reach = np.minimum(np.minimum(rows, len(values) - 1 - rows), width // 2)
    means: Curve = (sums[rows + reach + 1] - sums[rows - reach]) / (2 * reach + 1)
    return means


def loss_curve(log: Log, levels: Mapping[str, Any], narrow: bool = False, published: PublishedCurve | None = None) -> str:
    """Return an SVG of the training loss over the steps, with the learning rate beneath and lines for measured losses.

    Args:
        levels: `figures` of eval/held_out.json; those in `LEVELS` become lines.
        narrow: draw for a page of 400 pixels instead of a wide one, with letters of the same size.
        published: a published curve, over whose band the losses are drawn.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "svg.hashsalt": "relm",
        "svg.fonttype": "path",
        "axes.edgecolor": FAINT,
        "axes.labelcolor": INK,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "backend": "svg",
    }
    with mpl.rc_context(dict(mpl.rcParamsDefault) | settings):
        figure = Figure(figsize=(4.1, 4.4) if narrow else (8.4, 4.9), layout="constrained")
        FigureCanvasSVG(figure)
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
        _draw_losses(top, log, levels, narrow, published)
        _draw_rates(bottom, log, narrow)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None}, facecolor="white")
    return text.getvalue()


def _draw_losses(
    axes: "Axes", log: Log, levels: Mapping[str, Any], narrow: bool, published: PublishedCurve | None = None
) -> None:
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    steps = decimated(log.steps)
    if len(log.losses) >= SMOOTHED_FROM:
        axes.plot(steps, decimated(log.losses), color=TRAINING, linewidth=0.8, alpha=0.35)
        axes.plot(steps, decimated(smoothed(log.losses, len(log.losses) // 40)), color=TRAINING, linewidth=2)
    else:
        marker = "o" if len(log.losses) == 1 else ""
        axes.plot(steps, log.losses, color=TRAINING, linewidth=2, marker=marker)
    lines = [(float(log.losses[-max(1, len(log.losses) // 20) :].mean()), "training", TRAINING)]
    for key, (label, colour, dashes) in LEVELS.items():
        if levels.get(key) is not None:
            axes.axhline(levels[key], color=colour, linewidth=1.6, linestyle=dashes)
            lines.append((float(levels[key]), label, colour))
    if published is not None:
        lines.append((_draw_published(axes, log, published), "published", PUBLISHED))
    heights = [height for height, *_ in lines] + [float(log.losses.min()), float(log.losses.max())]
    margin = 0.05 * (max(heights) - min(heights)) or 0.5
    axes.set_ylim(min(heights) - margin, max(heights) + margin)
    axes.set_ylabel("loss (nats per token)")
    _label_levels(axes, lines, 0.075 if narrow else 0.058)
    _mark_phases(axes, log)


def _draw_published(axes: "Axes", log: Log, published: PublishedCurve) -> float:
    """Draw a published curve with its band, over which ours stays readable, and return its last loss."""
    steps = decimated(published.steps + log.starts[published.phase])
    losses, widths = decimated(published.losses), decimated(published.half_widths)
    axes.fill_between(steps, losses - widths, losses + widths, color=PUBLISHED, alpha=0.18, linewidth=0)
    axes.plot(steps, losses, color=PUBLISHED, linewidth=1.4, linestyle=(0, (4, 2)))
    return float(published.losses[-1])


def _label_levels(axes: "Axes", lines: Sequence[tuple[float, str, str]], spacing: float) -> None:
    """Name each line at the right edge with its value; labels that would overlap are moved apart."""
    low, high = axes.get_ylim()
    ordered = sorted(lines)
    wanted = [(height - low) / (high - low) for height, *_ in ordered]
    for (height, label, colour), position in zip(ordered, spread(wanted, spacing), strict=True):
        text = f"{label} {height:.2f}"
        axes.text(1.015, position, text, transform=axes.transAxes, color=colour, va="center", fontsize=9.5, fontweight="bold")


def spread(wanted: Sequence[float], spacing: float) -> list[float]:
    """Return positions near the sorted ``wanted`` ones that are at least ``spacing`` apart.

    Neighbours that are too close form a group, which is centred at the mean of its members' wanted positions.
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


def _mark_phases(axes: "Axes", log: Log) -> None:
    """Draw a vertical line with its name where each phase begins, if there are several."""
    if len(log.starts) < 2:
        return
    for phase, start in log.starts.items():
        if start:
            axes.axvline(start, color=FAINT, linewidth=0.9, linestyle=(0, (2, 2)))
        axes.annotate(
            phase, (start, 1), xycoords=("data", "axes fraction"), xytext=(4, -2), textcoords="offset points",
            va="top", color=FAINT, fontsize=9,
        )  # fmt: skip


def _draw_rates(axes: "Axes", log: Log, narrow: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    peak = float(np.nanmax(log.rates, initial=0.0)) or 1.0
    axes.plot(decimated(log.steps), decimated(log.rates), color=RATE, linewidth=1.4)
    axes.set_ylabel("learning\nrate")
    axes.set_xlabel("optimizer step")
    axes.set_ylim(0, 1.12 * peak)
    axes.set_yticks([0, peak], ["0", f"{peak:.3g}".replace("e-0", "e-")])
    axes.set_xlim(0, float(log.steps[-1]) * 1.005)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(4 if narrow else 8, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))


def describe_curve(log: Log, published: str = "") -> str:
    """Return a sentence on the curve for those who cannot see it.

    Args:
        published: the verdict on a published curve; empty: none is drawn.
    """
    beside = f" The published curve is drawn with its band: {published}." if published else ""
    return (
        f"Training loss from {log.losses[0]:.2f} to {log.losses[-1]:.2f} nats per token over "
        f"{log.steps[-1]:,.0f} optimizer steps, with the learning rate beneath.{beside}"
    )
