"""Line charts for pages: a drawing without text that stretches to any width; its ticks and legend are text of the page.

The same values give the same bytes. Colours are classes of the page's style, each in a light and a dark form; dashes
distinguish the lines without colour. The macro `draw` in `pieces.html.j2` writes a chart.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Curve = NDArray[np.float64]
POINTS = 300  # of one line; longer lines are averaged in bins of equal length
SMOOTHED_FROM = 100  # rows; a shorter line is not smoothed
SIDE = 1000  # width and height of the drawing, in its units
TICKS = 5  # of an axis at most
# A logarithmic axis where the largest value is this many times the median.
SPREAD = 8
STYLES = ("training", "validation", "published", "held-out", "bigrams", "unigrams", "plain")


class Series(NamedTuple):
    """Values over steps, arrays of shape (rows,); rows whose value is NaN are left out."""

    label: str
    style: str
    """One of `STYLES`."""
    steps: Curve
    values: Curve
    half_widths: Curve | None = None
    """Half-widths of a band around the values."""
    is_noisy: bool = False
    """If True, a long series is drawn smoothed over its faint values."""


class Level(NamedTuple):
    """One value that holds for all steps."""

    label: str
    style: str
    value: float


class Mark(NamedTuple):
    """A step that a vertical line marks."""

    step: float
    kind: str
    """`phase`, which is labelled, or `interruption`."""
    label: str


@dataclass(frozen=True)
class Line:
    """A drawn series or level."""

    label: str
    style: str
    value: str
    """Its last value."""
    path: str
    faint: str = ""
    """Path of the values before they were smoothed."""
    band: str = ""

    @property
    def is_point(self) -> bool:
        """True if the series has one value."""
        return self.path.endswith("h0")


class Tick(NamedTuple):
    """A tick at a share of its axis, in percent, with its text."""

    position: float
    text: str


@dataclass(frozen=True)
class Chart:
    """A chart as its template writes it."""

    title: str
    unit: str
    described: str
    """A sentence for readers who cannot see the chart."""
    lines: Sequence[Line]
    """The highest at the end first."""
    across: Sequence[Tick]
    up: Sequence[Tick]
    marks: Sequence[tuple[float, Mark]]
    """Each mark with its position in percent."""
    is_logarithmic: bool
    across_title: str = "optimizer step"

    @property
    def interruptions(self) -> int:
        """The count of marked interruptions."""
        return sum(mark.kind == "interruption" for _, mark in self.marks)


def draw_chart(
    title: str,
    unit: str,
    series: Sequence[Series],
    *,
    levels: Sequence[Level] = (),
    marks: Sequence[Mark] = (),
    described: str,
    last_step: float,
    from_zero: bool = False,
    may_be_logarithmic: bool = False,
    form: Callable[[float], str] = lambda value: format(value, ".4g"),
) -> Chart:
    """Return a chart of values over steps, whose horizontal axis ends at `last_step`.

    The axis is logarithmic, where allowed, if a few values are far above the rest; `form` formats a value for the legend.
    """
    series = [_finite(each) for each in series]
    values = np.concatenate([*(each.values for each in series), np.array([level.value for level in levels])])
    logs = may_be_logarithmic and values.min() > 0 and values.max() > SPREAD * float(np.median(values))
    low, high = _limits(np.log10(values) if logs else values, from_zero=from_zero and not logs)
    scale = _Scale(last_step or 1.0, low, high, logs)
    drawn = [(float(each.values[-1]), _draw(each, scale, form)) for each in series]
    drawn += [(level.value, Line(level.label, level.style, form(level.value), scale.level(level.value))) for level in levels]
    return Chart(
        title=title,
        unit=unit,
        described=described,
        lines=[line for _, line in sorted(drawn, key=lambda pair: -pair[0])],
        across=[Tick(100 * at / scale.last_step, format_tick(at)) for at in ticks(0, scale.last_step)],
        up=[Tick(scale.height(at), format_tick(at)) for at in (_decades(low, high) if logs else ticks(low, high))],
        marks=[(round(100 * mark.step / scale.last_step, 2), mark) for mark in marks],
        is_logarithmic=bool(logs),
    )


@dataclass(frozen=True)
class _Scale:
    """Positions of values in a drawing of SIDE by SIDE units, whose vertical axis points downwards."""

    last_step: float
    low: float
    high: float
    is_logarithmic: bool

    def height(self, value: float) -> float:
        """Return the share of the vertical axis below a value, in percent."""
        at = math.log10(value) if self.is_logarithmic else value
        return round(100 * (at - self.low) / (self.high - self.low), 2)

    def points(self, steps: Curve, values: Curve) -> Iterator[tuple[int, int]]:
        """Yield the positions of values."""
        heights = np.log10(values) if self.is_logarithmic else values
        across = np.rint(SIDE * steps / self.last_step).astype(int)
        down = np.rint(SIDE * (1 - (heights - self.low) / (self.high - self.low))).astype(int)
        yield from zip(across.tolist(), np.clip(down, 0, SIDE).tolist(), strict=True)

    def level(self, value: float) -> str:
        """Return the path of a value that holds for all steps."""
        ((_, down),) = self.points(np.zeros(1), np.array([value]))
        return f"M0 {down}H{SIDE}"


def _finite(series: Series) -> Series:
    kept = np.isfinite(series.values)
    widths = None if series.half_widths is None else series.half_widths[kept]
    return series._replace(steps=series.steps[kept], values=series.values[kept], half_widths=widths)


def _draw(series: Series, scale: _Scale, form: Callable[[float], str]) -> Line:
    steps, values = decimate(series.steps), decimate(series.values)
    facts: dict[str, Any] = {"label": series.label, "style": series.style, "value": form(float(series.values[-1]))}
    if len(values) == 1:
        ((x, y),) = scale.points(steps, values)
        return Line(**facts, path=f"M{x} {y}h0")
    if series.half_widths is not None:
        widths = decimate(series.half_widths)
        border = np.concatenate([values + widths, (values - widths)[::-1]])
        facts["band"] = path(scale.points(np.concatenate([steps, steps[::-1]]), border)) + "z"
    if series.is_noisy and len(series.values) >= SMOOTHED_FROM:
        facts["faint"] = path(scale.points(steps, values))
        values = decimate(smooth(series.values, len(series.values) // 40))
    return Line(**facts, path=path(scale.points(steps, values)))


def path(points: Iterator[tuple[int, int]]) -> str:
    """Return an SVG path through points, in steps from one to the next.

    >>> path(iter([(0, 10), (5, 8), (9, 8)]))
    'M0 10l5-2 4 0'
    """
    x, y = next(points)
    text, mark = f"M{x} {y}", "l"
    for to_x, to_y in points:
        rise = to_y - y
        text += f"{mark}{to_x - x}{rise if rise < 0 else f' {rise}'}"
        x, y, mark = to_x, to_y, " "
    return text


def decimate(values: Curve, points: int = POINTS) -> Curve:
    """Return means over consecutive bins of equal length, ``(rows,) -> (at most points,)``; short arrays stay unchanged."""
    size = -(-len(values) // points)
    if size <= 1:
        return values
    bins = np.arange(0, len(values), size)
    means: Curve = np.add.reduceat(values, bins) / np.diff(np.append(bins, len(values)))
    return means


def smooth(values: Curve, width: int) -> Curve:
    """Return the centred running mean of ``width`` rows, narrower towards both ends, ``(rows,) -> (rows,)``."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    rows = np.arange(len(values))
    reach = np.minimum(np.minimum(rows, len(values) - 1 - rows), width // 2)
    means: Curve = (sums[rows + reach + 1] - sums[rows - reach]) / (2 * reach + 1)
    return means


def _limits(values: Curve, from_zero: bool) -> tuple[float, float]:
    """Return the ends of an axis, a little beyond the values."""
    low, high = (0.0 if from_zero else float(values.min())), float(values.max())
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
    return (low if from_zero else low - margin), high + margin


def ticks(low: float, high: float) -> list[float]:
    """Return round values between two ends, at most `TICKS` of them.

    >>> ticks(0, 2200), ticks(3.6, 7.2)
    ([0.0, 500.0, 1000.0, 1500.0, 2000.0], [4.0, 5.0, 6.0, 7.0])
    """
    power = 10.0 ** math.floor(math.log10((high - low) / TICKS))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if (high - low) / (power * factor) < TICKS)
    count = math.floor(high / step) - math.ceil(low / step) + 1
    return [round((math.ceil(low / step) + number) * step, 12) for number in range(count)]


def _decades(low: float, high: float) -> list[float]:
    """Return the powers of ten between two logarithms; if there are fewer than two, also 2 and 5 times these."""
    for factors in ((1,), (1, 2, 5)):
        powers = range(math.floor(low), math.ceil(high) + 1)
        found = [factor * 10.0**power for power in powers for factor in factors]
        found = [value for value in found if low <= math.log10(value) <= high]
        if len(found) > 1:
            return found
    return found


def format_tick(value: float) -> str:
    """Return a round value in its shortest form.

    >>> [format_tick(value) for value in (0, 0.25, 0.0004, 1500, 150_000, 2_500_000)]
    ['0', '0.25', '4e-4', '1,500', '150 k', '2.5 M']
    """
    size = abs(value)
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= max(unit, 1e5):
            return f"{value / unit:g} {name}"
    if size >= 1 or not size:
        return f"{value:,.6g}"
    if size >= 0.001:
        return f"{value:g}"
    power = math.floor(math.log10(size))
    return f"{value / 10.0**power:.3g}e{power}"
