"""`relm diff`: a comparison as text of a hundred columns, and as JSON."""

import json
import textwrap
from collections.abc import Iterator

from relm.formatting import format_table
from relm.reporting.comparison import RunComparison
from relm.reporting.runs_table import WIDTH, format_value, wrap_lines

INTERVAL = (
    "An interval covers the true difference 95 % of the time; it comes from the standard errors that both evaluations state, "
    "taken as independent, so that it is too wide where both scored the same items."
)
NO_INTERVAL = "None has an interval, because no two evaluations here state a standard error of the same figure."
SEEDS = "`seeds` is how far two seeds of one recipe differ 95 % of the time, by the noise that the recipe states."
LARGE = 10_000
"""From here on, figures are written without digits behind the point."""


def describe_comparison(compared: RunComparison) -> str:
    """Return a comparison as text: the keys, and the figures with their differences."""
    sides = [f"A  {compared.first.label}", f"B  {compared.second.label}"]
    return "\n".join([*sides, "", *_key_lines(compared), "", *_figure_lines(compared)])


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
            yield from wrap_lines(f"{each.key}: {format_value(each.first)} | {format_value(each.second)}", indent="  ")


def _figure_lines(compared: RunComparison) -> Iterator[str]:
    if not compared.figures:
        yield "figures: neither side has any that differ"
        return
    cells = [
        [
            f"  {each.task}.{each.figure}",
            format_figure(each.first),
            format_figure(each.second),
            format_difference(each.difference),
        ]
        for each in compared.figures
    ]
    header, *rows = format_table([["figures:", "A", "B", "B - A"], *cells], "<>>>")
    yield header
    for number, (each, row) in enumerate(zip(compared.figures, rows, strict=True), 1):
        yield row
        following = next((other.not_comparable for other in compared.figures[number:] if other.task == each.task), None)
        if each.note and (each.not_comparable is None or each.not_comparable != following):
            yield from wrap_lines(each.note, indent="      ")
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


def format_difference(difference: float | None) -> str:
    """Return a difference with its sign.

    >>> format_difference(2.28377), format_difference(-4109433.7), format_difference(None)
    ('+2.284', '-4,109,434', '')
    """
    if difference is None:
        return ""
    return f"{difference:+,.0f}" if LARGE <= abs(difference) < 1e15 else f"{difference:+.4g}"


def explain_differences(compared: RunComparison) -> str:
    """Return what the differences and their intervals mean; what no figure here has is not explained."""
    has_interval = any(each.interval is not None for each in compared.figures)
    has_seeds = any(each.seed_half_width is not None for each in compared.figures)
    subtracted = any(each.difference is not None for each in compared.figures)
    parts = [INTERVAL if has_interval else NO_INTERVAL] if subtracted else []
    return " ".join(["Differences are B - A.", *parts, *([SEEDS] if has_seeds else [])])


def describe_as_json(compared: RunComparison) -> str:
    """Return a comparison as JSON."""
    keys = [
        {"key": each.key, "first": each.first, "second": each.second, "in_fingerprint": each.is_meaning}
        for each in compared.keys or ()
    ]
    content = {
        "first": compared.first.label,
        "second": compared.second.label,
        "keys": None if compared.keys is None else keys,
        "figures": [{**each._asdict(), "difference": each.difference} for each in compared.figures],
    }
    return json.dumps(content, indent=1, ensure_ascii=False)
