"""`relm diff`: a comparison as text of a hundred columns, as JSON, and as one HTML page."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from relm.artifact import atomic_file
from relm.recipes.identity import work_folder
from relm.recipes.project import Project
from relm.reporting.comparison import FigureDifference, RunComparison, compare_sides, find_side
from relm.reporting.runs_table import WIDTH, format_value

INTERVAL = (
    "An interval covers the true difference 95 % of the time; it comes from the standard errors that both evaluations state, "
    "taken as independent, so that it is too wide where both scored the same items."
)
NO_INTERVAL = "None has an interval, because no two evaluations here state a standard error of the same figure."
SEEDS = "`seeds` is how far two seeds of one recipe differ 95 % of the time, by the noise that the recipe states."
LARGE = 10_000
"""From here on, figures are written without digits behind the point."""


def describe_comparison(project: Project, first: str, second: str, html: Path | None = None, as_json: bool = False) -> str:
    """Compare what two names or folders stand for, and return the text; the page is written as well if wanted.

    Raises:
        RelmError: a name or folder stands for nothing, or the page cannot be written.
    """
    work = work_folder()
    compared = compare_sides(find_side(project, work, first), find_side(project, work, second))
    if html is not None:
        from relm.reporting.comparison_page import comparison_page

        page = comparison_page(compared)
        with atomic_file(html, "w") as file:
            file.write(page)
    if as_json:
        return json.dumps(describe_as_json(compared), indent=1, ensure_ascii=False)
    lines = [
        f"A  {compared.first.label}",
        f"B  {compared.second.label}",
        "",
        *_key_lines(compared),
        "",
        *_figure_lines(compared),
    ]
    return "\n".join([*lines, *([f"the curves are in {html}"] if html is not None else [])])


def _key_lines(compared: RunComparison) -> Iterator[str]:
    if compared.keys is None:
        yield "keys: the recipe of one side was not recorded, so they cannot be compared"
        return
    meaning = [each for each in compared.keys if each.is_meaning]
    others = [each for each in compared.keys if not each.is_meaning]
    if not meaning:
        yield "keys: none differs that the fingerprint depends on"
    for title, differences in (("keys of the fingerprint:", meaning), ("other keys:", others)):
        if differences:
            yield title
        for each in differences:
            text = f"{each.key}: {format_value(each.first)} | {format_value(each.second)}"
            yield from textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)


def _figure_lines(compared: RunComparison) -> Iterator[str]:
    if not compared.figures:
        yield "figures: neither side has any that differ"
        return
    width = max(len(f"{each.task}.{each.figure}") for each in compared.figures)
    width = min(width, 44)
    yield f"{'figures:':<{width + 2}}  {'A':>10}  {'B':>10}  {'B - A':>9}"
    for number, each in enumerate(compared.figures, 1):
        difference = "" if each.difference is None else format_difference(each.difference)
        row = f"  {f'{each.task}.{each.figure}':<{width}}  {format_figure(each.first):>10}  {format_figure(each.second):>10}"
        yield f"{row}  {difference:>9}".rstrip()
        following = next((other.not_comparable for other in compared.figures[number:] if other.task == each.task), None)
        if (note := describe_figure(each)) and (each.not_comparable is None or each.not_comparable != following):
            yield from textwrap.wrap(note, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False)
    yield ""
    yield from textwrap.wrap(explain_differences(compared), WIDTH)


def format_figure(value: float | None) -> str:
    """Return a figure as text, a dash for an absent one.

    >>> format_figure(4.25), format_figure(123456), format_figure(4.1223e6), format_figure(None)
    ('4.25', '123,456', '4,122,300', '–')
    """
    if value is None:
        return "–"
    return f"{value:,.0f}" if isinstance(value, int) or LARGE <= abs(value) < 1e15 else f"{value:.5g}"


def format_difference(difference: float) -> str:
    """Return a difference with its sign.

    >>> format_difference(2.28377), format_difference(-4109433.7)
    ('+2.284', '-4,109,434')
    """
    return f"{difference:+,.0f}" if LARGE <= abs(difference) < 1e15 else f"{difference:+.4g}"


def explain_differences(compared: RunComparison) -> str:
    """Return what the differences and their intervals mean; what no figure here has is not explained."""
    has_interval = any(each.interval is not None for each in compared.figures)
    has_seeds = any(each.seed_half_width is not None for each in compared.figures)
    subtracted = any(each.difference is not None for each in compared.figures)
    parts = [INTERVAL if has_interval else NO_INTERVAL] if subtracted else []
    return " ".join(["Differences are B - A.", *parts, *([SEEDS] if has_seeds else [])])


def describe_figure(figure: FigureDifference) -> str:
    """Return the interval of a difference, how far seeds differ, or the reason why there is no difference."""
    if figure.not_comparable:
        return f"not comparable: {figure.not_comparable}"
    parts = []
    if figure.interval is not None:
        low, high = figure.interval
        parts.append(f"95 % interval {low:+.3g} to {high:+.3g}")
    if figure.seed_half_width is not None:
        parts.append(f"seeds ±{figure.seed_half_width:.3g}")
    return ", ".join(parts)


def describe_as_json(compared: RunComparison) -> dict[str, Any]:
    """Return a comparison as a JSON object."""
    keys = compared.keys
    return {
        "first": compared.first.label,
        "second": compared.second.label,
        "keys": None
        if keys is None
        else [
            {"key": each.key, "first": each.first, "second": each.second, "in_fingerprint": each.is_meaning} for each in keys
        ],
        "figures": [{**each._asdict(), "difference": each.difference} for each in compared.figures],
    }
